// What the file of each instruction set provides for attention. Called by attention.cpp, which shares work among threads, and by tests.
#pragma once

#include "attention.hpp"

namespace dragoman {

// One part of the context, for rows of one head of keys that read the same blocks of it. A row is a token's head of queries.
struct PartOfRows {
    const Attention* how;
    int64_t num_rows;
    int64_t q_step;                // from a row's queries to the next ones: a multiple of 16
    const float* q;                // [rows, head and zeros], scaled, and spread as keys are
    const uint16_t* q_codes;       // of those that are multiplied in pairs, as round_queries writes them
    const float* q_scales;         // [rows], of codes, where the cache has 8 bits
    const int32_t* q_sums;         // [rows], of these
    const float* slopes;           // [rows], null = there are none
    const float* distances;        // [rows]: from the row's token to the part's first slot
    const int32_t *begins, *ends;  // [rows]: the slots of the part that a row sees
    int32_t begin, end;            // those that any row sees
    const uint8_t* const* keys;    // by blocks of the part; those outside of these slots are never read
    const uint8_t* const* values;
    const uint8_t* const* next_keys;  // blocks that the thread reads next, most likely: at least one
    int64_t num_next;
    float* scores;  // [rows, kPartTokens], memory
    // Results. The highest score, [rows], minus infinity where a row sees nothing; the sum of exponentials, [rows]; values mixed by
    // these, [rows, padded].
    float *most, *sums, *mixed;
};

// What a row has read so far, joined in the order of parts.
struct RowState {
    float most, sum;
    float* mixed;  // [padded]
};

struct AttentionKernels {
    void (*read)(const PartOfRows& part);
    void (*join)(RowState& state, float most, float sum, const float* mixed, int64_t padded);
    // y = mixed / sum; zeros where nothing was seen.
    void (*finish)(const RowState& state, int64_t value, float* y);
    // Spreads a token's queries [heads, head] as keys are spread.
    void (*spread_queries)(const Attention& how, const float* q, float* spread);
    // Queries of the part's rows as they are multiplied in pairs. `codes` has room for `q_step` numbers of each row and of one more.
    void (*round_queries)(const PartOfRows& part, uint16_t* codes, float* scales, int32_t* sums);
    // Writes keys and values of a token and a head into their slot. In 8 bits slot 0 comes before all others of its block.
    void (*write)(const Attention& how, const float* k, const float* v, int64_t slot, uint8_t* keys, uint8_t* values);
};

#if defined(DRAGOMAN_HAS_AVX512BF16)
extern const AttentionKernels kAvx512Bf16Attention;  // in place of those with AVX-512 where a processor has it
#endif

}  // namespace dragoman
