// What the file of each instruction set provides for recurrences: the work of one thread, for some channels or a head, over all rows of
// a step. Called by recurrence.cpp, which shares work among threads, and by tests.
#pragma once

#include "recurrence.hpp"

namespace dragoman {

struct RecurrenceKernels {
    int64_t tile;  // columns that are computed at once
    // Channels [first, first + tile), as far as there are. `memory`: [(reach + length + 2)][tile].
    void (*convolve)(const Convolution& how, const StateTables& tables, const float* x, int64_t first, float* memory, float* kept,
                     float* y);
    // One head. `memory`: [value in whole tiles][key], then [2 * kSlots][key], then [4 * kSlots + 2 * tile].
    void (*heads)(const HeadStates& how, const StateTables& tables, const HeadRows& rows, int64_t head, float* memory,
                  float* states, float* y);
    // As those of `convolve`. `memory`: [2 * numbers + 5][tile].
    void (*channels)(const ChannelStates& how, const StateTables& tables, const ChannelRows& rows, int64_t first, float* memory,
                     float* states, float* y);
    // As those of `convolve`. `memory`: [6][tile].
    void (*gates)(const GatedStates& how, const StateTables& tables, const GatedRows& rows, int64_t first, float* memory,
                  float* states, float* y);
};

extern const RecurrenceKernels kPlainRecurrence;
#if defined(DRAGOMAN_HAS_AVX2)
extern const RecurrenceKernels kAvx2Recurrence;
#endif
#if defined(DRAGOMAN_HAS_AVX512VNNI)
extern const RecurrenceKernels kAvx512Recurrence;
#endif
#if defined(DRAGOMAN_HAS_NEON)
extern const RecurrenceKernels kNeonRecurrence;
#endif

}  // namespace dragoman
