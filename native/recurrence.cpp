// Shares recurrences among threads: a thread takes a tile of channels, or a head, through all rows of a step. See recurrence.hpp.
#include "recurrence.hpp"

#include <vector>

#include "kernels.hpp"
#include "parts.hpp"
#include "recurrence_kernels.hpp"

namespace dragoman {
namespace {

constexpr int64_t kSmall = 64 * 1024;  // products, which are not worth threads

float* memory(int64_t size) {
    static thread_local std::vector<float> held_by_thread;
    return held(held_by_thread, size);
}

template <class Body>
void run(int64_t count, int64_t num_products, const ParallelFor& parallel_for, const Body& body) {
    if (num_products < kSmall) {
        for (int64_t index = 0; index < count; ++index) body(index);
    } else {
        parallel_for(count, body);
    }
}

int64_t tiles(int64_t width, int64_t tile) { return (width + tile - 1) / tile; }

}  // namespace

const RecurrenceKernels& recurrence_kernels() {
    const AttentionKernels* set = kernels().attention;
#if defined(DRAGOMAN_HAS_AVX512VNNI)
    if (set == &kAvx512Attention) return kAvx512Recurrence;
#endif
#if defined(DRAGOMAN_HAS_AVXVNNI)
    if (set == &kAvxVnniAttention) return kAvx2Recurrence;
#endif
#if defined(DRAGOMAN_HAS_AVX2)
    if (set == &kAvx2Attention) return kAvx2Recurrence;
#endif
#if defined(DRAGOMAN_HAS_NEON)
    if (set == &kNeonAttention) return kNeonRecurrence;
#endif
    return kPlainRecurrence;
}

const char* fault_of(const StateTables& tables) {
    if (tables.begins[0] != 0 || tables.begins[tables.num_rows] != tables.num_tokens) return "rows do not end where tokens do";
    for (int64_t row = 0; row < tables.num_rows; ++row) {
        const int64_t first = tables.begins[row], count = tables.begins[row + 1] - first, past = tables.past[row];
        const int64_t begin = tables.block_begins[row], blocks = tables.block_begins[row + 1] - begin;
        if (count < 1) return "a row has no tokens";
        if (first + count > tables.num_tokens) return "rows do not end where tokens do";
        if (begin < 0 || blocks < 1 || begin + blocks > tables.num_table_blocks)
            return "the blocks of a row are not in the table";
        if (past < 0 || past + count > blocks * kSlots) return "a row has more tokens than its blocks";
        for (int64_t block = begin; block < begin + blocks; ++block)
            if (tables.blocks[block] < 0 || tables.blocks[block] >= tables.num_blocks)
                return "a row has a block that there is not";
    }
    return nullptr;
}

void convolve(const RecurrenceKernels& with, const Convolution& how, const StateTables& tables, const float* x, float* kept,
              float* y, const ParallelFor& parallel_for) {
    const int64_t size = (how.reach() + how.length + 2) * with.tile;
    run(tiles(how.width, with.tile), tables.num_tokens * how.width * how.length, parallel_for,
        [&](int64_t index) { with.convolve(how, tables, x, index * with.tile, memory(size), kept, y); });
}

void run_heads(const RecurrenceKernels& with, const HeadStates& how, const StateTables& tables, const HeadRows& rows,
               float* states, float* y, const ParallelFor& parallel_for) {
    const int64_t size = (tiles(how.value, with.tile) * with.tile + 2 * kSlots) * how.key + 4 * kSlots + 2 * with.tile;
    run(how.heads, (tables.num_tokens + tables.num_rows) * how.heads * how.key * how.value, parallel_for,
        [&](int64_t head) { with.heads(how, tables, rows, head, memory(size), states, y); });
}

void run_channels(const RecurrenceKernels& with, const ChannelStates& how, const StateTables& tables, const ChannelRows& rows,
                  float* states, float* y, const ParallelFor& parallel_for) {
    const int64_t size = (2 * how.numbers + 5) * with.tile;
    run(tiles(how.width, with.tile), (tables.num_tokens + tables.num_rows) * how.width * how.numbers * 4, parallel_for,
        [&](int64_t index) { with.channels(how, tables, rows, index * with.tile, memory(size), states, y); });
}

void run_gates(const RecurrenceKernels& with, const GatedStates& how, const StateTables& tables, const GatedRows& rows,
               float* states, float* y, const ParallelFor& parallel_for) {
    const int64_t size = 6 * with.tile;
    run(tiles(how.width, with.tile), tables.num_tokens * how.width * 16, parallel_for,
        [&](int64_t index) { with.gates(how, tables, rows, index * with.tile, memory(size), states, y); });
}

}  // namespace dragoman
