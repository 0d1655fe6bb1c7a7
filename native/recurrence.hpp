// Layers that keep something of a sequence from token to token: short convolutions and recurrent states, for whoever makes graph
// operations of them.
//
// What is kept lies in blocks of 32 tokens, as keys and values do. A block of states holds the state behind its last token, or behind
// the last one that was computed, so whoever goes on behind a full block finds its state there. A block of a convolution holds the rows
// of its last tokens, `slots` of them, each in the slot of its position modulo `slots`. What a step reads it overwrites, unless a block
// ends there: it cannot be computed a second time.
//
// Bits: every number of a state goes through its sequence's tokens in their order, and each sum is one chain in a fixed order. So
// results depend neither on other rows of the step, nor on threads, nor on how a prompt was cut, nor on the instruction set.
#pragma once

#include <cstdint>

#include "attention.hpp"

namespace dragoman {

// A step's rows: runs of tokens of a sequence, computed one after the other, so a row may go on where an earlier one ends. Those of row i
// are from begins[i] to begins[i + 1], and its blocks in `blocks` from block_begins[i] to block_begins[i + 1]. `past`: tokens in these
// blocks before the row's own; 0 = its sequence begins here.
struct StateTables {
    int64_t num_tokens, num_rows, num_blocks, num_table_blocks;
    const int32_t *past, *begins, *blocks, *block_begins;

    // The block with the token `index` of a row's blocks.
    int64_t block(int64_t row, int64_t index) const { return blocks[block_begins[row] + index / kSlots]; }
};

// What is wrong with them, null if nothing is.
const char* fault_of(const StateTables& tables);

// A short causal convolution of each channel. Of a block it keeps [slots][width].
struct Convolution {
    int64_t width, length, slots;
    bool has_silu;
    const float* taps;  // [length][width], the last ones are for the token itself
    const float* bias;  // [width], null = there is none

    int64_t reach() const { return length - 1; }
};

// A state for each head, a matrix [key][value], of which every token leaves a part and to which it adds the product of its key and its
// value. What a head reads is its query times the state. A token's step is softplus(its number + bias), within limits, and it leaves
// exp(rate * step) of the state. Several heads may share keys and queries.
// Sources: Mamba 2 (arXiv:2405.21060), where the value is multiplied by the step; Gated DeltaNet (arXiv:2412.06464), which corrects: its
// value is, of what lies under the key before, the difference to the token's value times a part, sigmoid(its second number); its keys
// and queries have length 1, and queries are divided by the root of their size.
struct HeadStates {
    bool corrects;
    int64_t key_heads, heads, key, value;
    float lowest, highest;  // a step's limits
    const float *rates, *biases,
        *skips;  // [heads]; skips: how much of its value a head gives beside what it reads, null = nothing

    int64_t key_width() const { return key_heads * key; }
    int64_t value_width() const { return heads * value; }
    int64_t width() const { return 2 * key_width() + value_width(); }
};

// Rows of tokens. `mixed` [tokens, width]: queries, keys, values; where states are not corrected values, keys, queries.
struct HeadRows {
    const float *mixed, *steps, *parts;  // [tokens, heads]; parts null where states are not corrected
};

// A state [numbers][width] for all channels; each token has a key and a query for its numbers, and each channel a step and rates.
// Source: Mamba (arXiv:2312.00752).
struct ChannelStates {
    int64_t width, numbers;
    const float *rates, *biases, *skips;  // [numbers][width], [width], [width]
};

struct ChannelRows {
    const float *x, *steps, *keys, *queries;  // [tokens, width] twice, [tokens, numbers] twice
};

// A gated linear recurrence: state [width]. Each channel leaves exp(rate * sigmoid(its gate)) of its number and adds its gated input, by
// as much as keeps the size; a sequence's first token adds all. Source: Griffin (arXiv:2402.19427), RG-LRU.
struct GatedStates {
    int64_t width;
    const float* rates;  // [width]
};

struct GatedRows {
    const float *x, *input_gates, *gates;  // [tokens, width]
};

struct RecurrenceKernels;

// The kernels of the instruction set that products are computed with, and those for tests to compare with.
const RecurrenceKernels& recurrence_kernels();

// y: [tokens, width] of a convolution, of channels and gates; [tokens, heads, value] of heads. States and rows kept are written.
void convolve(const RecurrenceKernels& with, const Convolution& how, const StateTables& tables, const float* x, float* kept,
              float* y, const ParallelFor& parallel_for);
void run_heads(const RecurrenceKernels& with, const HeadStates& how, const StateTables& tables, const HeadRows& rows,
               float* states, float* y, const ParallelFor& parallel_for);
void run_channels(const RecurrenceKernels& with, const ChannelStates& how, const StateTables& tables, const ChannelRows& rows,
                  float* states, float* y, const ParallelFor& parallel_for);
void run_gates(const RecurrenceKernels& with, const GatedStates& how, const StateTables& tables, const GatedRows& rows,
               float* states, float* y, const ParallelFor& parallel_for);

}  // namespace dragoman
