// Chooses kernels for the processor, quantises rows, and shares panels among threads. See product.hpp.
#include "product.hpp"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.hpp"

namespace dragoman {
namespace {

const Kernels& choose() {
#if defined(__x86_64__)
    const char* named = std::getenv("DRAGOMAN_KERNELS_ISA");
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool has_512 = has_avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool has_vnni = has_avx2 && __builtin_cpu_supports("avxvnni");
    const Kernels* order[] = {has_512 ? &kAvx512Vnni : nullptr, has_vnni ? &kAvxVnni : nullptr, has_avx2 ? &kAvx2 : nullptr, &kPlain};
    bool may = named == nullptr || *named == 0;
    for (const Kernels* kernels : order) {
        if (kernels == nullptr) continue;
        may = may || std::strcmp(kernels->name, named) == 0;
        if (may) return *kernels;
    }
#endif
    return kPlain;
}

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

// Memory of a thread for rows in 8 bits.
struct Scratch {
    std::vector<int8_t> codes;
    std::vector<float> scales, shifts;
    std::vector<int32_t> starts;

    Rows rows(int64_t count, int64_t chunks, int64_t subs) {
        grow(codes, count * chunks * kChunk);
        grow(scales, count * chunks);
        grow(starts, count * chunks * subs);
        grow(shifts, count * chunks * subs);
        return {chunks, codes.data(), scales.data(), starts.data(), shifts.data()};
    }

    template <class Values>
    static void grow(Values& values, int64_t size) {
        if (static_cast<int64_t>(values.size()) < size) values.resize(size);
    }
};

constexpr int64_t kRowsOfPart = 96;    // that a thread multiplies with one part of the panels
constexpr int64_t kPartBytes = 65536;  // of panels at least, so that a part is worth a call

}  // namespace

const char* instruction_set() { return kernels().name; }

void product(const Matrix& matrix, const float* x, int64_t num_rows, int64_t x_stride, float* y, int64_t y_stride,
             const ParallelFor& parallel_for) {
    if (num_rows == 0 || matrix.outputs == 0) return;
    const Kernels& with = kernels();
    const int64_t subs = kChunk / shape_of(matrix.format).sub;
    static thread_local Scratch scratch;
    const Rows rows = scratch.rows(num_rows, matrix.chunks(), subs);
    const int offset = with.offset(matrix.format);
    const auto quantise = [&](int64_t row) {
        with.quantise(x + row * x_stride, matrix.columns, offset, subs == 2, row_of(rows, row, subs));
    };
    if (num_rows < 8) {
        for (int64_t row = 0; row < num_rows; ++row) quantise(row);
    } else {
        parallel_for(num_rows, quantise);
    }
    const int64_t panels = matrix.panels(), row_parts = (num_rows + kRowsOfPart - 1) / kRowsOfPart;
    const int64_t fewest = kPartBytes / matrix.panel_bytes() + 1;  // panels of a part
    const int64_t size = fewest + (fewest & 1), parts = (panels + size - 1) / size;
    parallel_for(parts * row_parts, [&](int64_t part) {
        const int64_t row = part / parts * kRowsOfPart, first = part % parts * size;
        const int64_t count = num_rows - row < kRowsOfPart ? num_rows - row : kRowsOfPart;
        with.product(matrix, row_of(rows, row, subs), count, first, first + size < panels ? first + size : panels, y + row * y_stride,
                     y_stride);
    });
}

}  // namespace dragoman
