// Attention of a step's tokens over block tables, for whoever makes graph operations of it.
//
// Keys and values lie in blocks of 32 tokens. A block holds, for each head of keys, what lies at `key_bytes` and `value_bytes`: keys
// [head][32], one number of 32 tokens after the other, so that tokens are lanes of vectors; values [32][padded], token by token. Numbers
// that are multiplied at once lie side by side: keys [head / 2][32][2] and values [16][padded][2] in bf16, four at a time in 8 bits. In 8
// bits each token has a scale and a middle, which the code 128 stands for, f32 [32] each behind the codes. Memory of slots that nobody
// has written is never used.
//
// Keys in 8 bits: some models add hundreds to a few numbers of every key, and steps over such a range lose all that is in the others. So
// keys are spread by Hadamard's matrix, as queries are, which leaves scores as they are and makes of one large number many smaller ones.
// Then codes tell how a key differs from the first one of its block, which lies behind the middles as bf16 [head] and zeros. A sequence
// writes slot 0 of a block before all others, and whoever shares a block shares its first key.
//
// Bits: a sequence's tokens are divided into parts of 256 by their positions. What a token reads of a part is computed in one order of
// operations, whatever else is computed beside it, and parts are joined in their order. So a token's result depends neither on other
// tokens of the step, nor on threads, on how a prompt was cut, or on whether sequences share blocks, nor on the instruction
// set: in 8 bits queries and weights are rounded to 16 bits, and sums of products are exact integers. But processors with products of bf16 round queries and weights to bf16 where the cache is bf16. Tokens that read the same blocks
// are computed together, and read them once.
#pragma once

#include <cstdint>

#include "product.hpp"

namespace dragoman {

enum class CacheType : int32_t { f32, bf16, f16, u8, count };

constexpr int64_t kSlots = 32;          // tokens of a block
constexpr int64_t kPartTokens = 256;    // tokens that are read in one go
constexpr int64_t kPadding = 16;        // of which a token's values in the cache are a multiple
constexpr int64_t kMostNumbers = 1024;  // of a head

struct Attention {
    int64_t heads, kv_heads;
    int64_t head, value;  // numbers of a head's keys and values
    float scale;
    float cap;       // of scores: cap * tanh(score / cap); 0 = there is none
    int64_t window;  // tokens that are seen, itself included; 0 = all
    CacheType type;
    const float* sinks;   // [heads], null = there are none
    const float* slopes;  // [heads], of a bias by distance, null = there is none

    int64_t group() const { return heads / kv_heads; }
    int64_t padded() const { return (value + kPadding - 1) / kPadding * kPadding; }
    int64_t number_bytes() const { return type == CacheType::f32 ? 4 : type == CacheType::u8 ? 1 : 2; }
    // Numbers that lie side by side.
    int64_t together() const { return type == CacheType::u8 ? 4 : type == CacheType::bf16 ? 2 : 1; }
    int64_t key_codes() const { return (head + together() - 1) / together() * together() * kSlots * number_bytes(); }
    int64_t value_codes() const { return padded() * kSlots * number_bytes(); }
    int64_t scale_bytes() const { return type == CacheType::u8 ? 2 * kSlots * 4 : 0; }
    int64_t first_key_bytes() const { return type == CacheType::u8 ? (2 * head + 63) / 64 * 64 : 0; }
    // Numbers of a key that are spread over each other: the largest power of two that a head is a multiple of.
    int64_t spread() const { return type == CacheType::u8 ? head & -head : 1; }
    // Of a block and a head of keys.
    int64_t key_bytes() const { return key_codes() + scale_bytes() + first_key_bytes(); }
    int64_t value_bytes() const { return value_codes() + scale_bytes(); }
};

// A step's rows: runs of tokens of a sequence. Those of row i are from begins[i] to begins[i + 1], and its blocks in `blocks` from
// block_begins[i] to block_begins[i + 1]. `past`: tokens in these blocks before the row's own. `positions`: of each token in its
// sequence; where blocks are left out that a window has passed, they are more than what `past` says.
struct AttentionStep {
    int64_t num_tokens, num_rows;
    const float *q, *k, *v;  // [tokens, heads or kv_heads, head or value]
    uint8_t *key_cache, *value_cache;
    int64_t num_blocks;
    const int32_t *positions, *past, *begins, *blocks, *block_begins;
    int64_t num_table_blocks;
    const int32_t* types;  // [tokens]: neighbours of type 1 in a row see each other; null = nobody sees later ones
    float* y;              // [tokens, heads, value]
};

// What is wrong with a step's tables, null if nothing is.
const char* fault_of(const Attention& how, const AttentionStep& step);

struct AttentionKernels;

// Writes the step's keys and values, then computes what its tokens read; with other kernels than those that are used, for tests.
void attend(const Attention& how, const AttentionStep& step, const ParallelFor& parallel_for);
void attend_with(const AttentionKernels& kernels, const Attention& how, const AttentionStep& step,
                 const ParallelFor& parallel_for);

}  // namespace dragoman
