// Chooses kernels for the processor, quantises rows, and shares panels among threads. See product.hpp.
#include "product.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "parts.hpp"

#if defined(DRAGOMAN_HAS_AVXVNNI)
#include <cpuid.h>
#endif
#if defined(DRAGOMAN_HAS_NEON) || defined(DRAGOMAN_HAS_I8MM)
#include <sys/auxv.h>
#endif

namespace dragoman {
namespace {

#if defined(DRAGOMAN_HAS_AVXVNNI)
// GCC 12 does not know the name of this one.
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#endif

#if defined(DRAGOMAN_HAS_NEON) || defined(DRAGOMAN_HAS_I8MM)
// Linux' words for what an Arm processor can do; old headers lack them.
constexpr unsigned long kHasDotProducts = 1ul << 20;  // of AT_HWCAP: asimddp
constexpr unsigned long kHasI8mm = 1ul << 13;         // of AT_HWCAP2
#endif

// The best of the usable kernels; those that are named, or else what is below, where that is held down.
const Kernels& choose() {
    const char* named = std::getenv("DRAGOMAN_KERNELS_ISA");
    bool may = named == nullptr || *named == 0;
    for (const Kernels* kernels : usable_kernels()) {
        may = may || std::strcmp(kernels->name, named) == 0;
        if (may) return *kernels;
    }
    return kPlain;
}

struct Scratch {
    RowMemory rows;
    std::vector<float> gate, up;
};

Scratch& scratch() {
    static thread_local Scratch held_by_thread;
    return held_by_thread;
}

// The rows, in 8 bits too if somebody needs that, until the thread calls this again.
Rows made_ready(const Input& x, int64_t columns, bool needs_codes, const ParallelFor& parallel_for) {
    const Rows rows = scratch().rows.rows(x, columns, needs_codes);
    if (!needs_codes) return rows;
    for_rows(x.count, parallel_for,
             [&](int64_t row) { kernels().quantise(x.data + row * x.stride, columns, row_of(rows, row)); });
    return rows;
}

}  // namespace

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> order;
#if defined(DRAGOMAN_HAS_AVX512VNNI)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        order.push_back(&kAvx512Vnni);
#endif
#if defined(DRAGOMAN_HAS_AVXVNNI)
    if (has_avx_vnni()) order.push_back(&kAvxVnni);
#endif
#if defined(DRAGOMAN_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        order.push_back(&kAvx2);
#endif
#if defined(DRAGOMAN_HAS_I8MM)
    if (getauxval(AT_HWCAP) & kHasDotProducts && getauxval(AT_HWCAP2) & kHasI8mm) order.push_back(&kI8mm);
#endif
#if defined(DRAGOMAN_HAS_NEON)
    if (getauxval(AT_HWCAP) & kHasDotProducts) order.push_back(&kNeon);
#endif
    return order;
}

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

const char* instruction_set() { return kernels().name; }

void products(const Product* all, int count, const Input& x, const ParallelFor& parallel_for) {
    if (x.count == 0 || count == 0) return;
    const bool needs_codes = std::any_of(all, all + count, [](const Product& each) { return !each.matrix.is_float(); });
    products_of(all, count, made_ready(x, all[0].matrix.columns, needs_codes, parallel_for), x.count, parallel_for);
}

void products_of(const Product* all, int count, const Rows& rows, int64_t num_rows, const ParallelFor& parallel_for) {
    std::vector<Parts> parts;
    std::vector<int64_t> ends;
    for (int i = 0; i < count; ++i) {
        parts.emplace_back(all[i].matrix, num_rows);
        ends.push_back((ends.empty() ? 0 : ends.back()) + parts.back().count());
    }
    parallel_for(ends.back(), [&](int64_t part) {
        const size_t i = std::upper_bound(ends.begin(), ends.end(), part) - ends.begin();
        compute(all[i], rows, parts[i], i ? part - ends[i - 1] : part, num_rows);
    });
}

void gate_and_up(const GatedMlp& mlp, const Rows& rows, int64_t num_rows, float* gate, float* up,
                 const ParallelFor& parallel_for) {
    const int64_t inner = mlp.gate.outputs;
    const Product first = {mlp.gate, mlp.gate_bias, gate, inner}, second = {mlp.up, mlp.up_bias, up, inner};
    Parts parts(mlp.gate, num_rows), up_parts(mlp.up, num_rows);
    up_parts.panels_of_part = parts.panels_of_part;  // so that a part has the same outputs of both
    parallel_for(parts.count(), [&](int64_t part) {
        compute(second, rows, up_parts, part, num_rows);
        const Span span = compute(first, rows, parts, part, num_rows);
        for (int64_t row = span.row; row < span.row + span.num_rows; ++row) {
            const int64_t at = row * inner + span.output;
            kernels().activate(mlp.activation, gate + at, up + at, span.num_outputs);
        }
    });
}

void gated_mlp(const GatedMlp& mlp, const Input& x, float* y, int64_t stride, const ParallelFor& parallel_for) {
    if (x.count == 0) return;
    const int64_t inner = mlp.gate.outputs;
    float* gate = held(scratch().gate, x.count * inner);
    float* up = held(scratch().up, x.count * inner);
    const bool needs_codes = !mlp.gate.is_float() || !mlp.up.is_float();
    gate_and_up(mlp, made_ready(x, mlp.gate.columns, needs_codes, parallel_for), x.count, gate, up, parallel_for);
    const Product last = {mlp.down, mlp.down_bias, y, stride};
    products(&last, 1, {gate, x.count, inner}, parallel_for);
}

}  // namespace dragoman
