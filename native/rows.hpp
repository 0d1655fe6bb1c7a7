// Rows in 8 bits, from what an instruction set makes of 32 values. Included by the file of each.
//
// Some channels of a model are many times as large as their neighbours. The chunk with such a value has a step as much larger, and most
// of a row's error: of SmolLM2's normed rows one chunk of 18 has two thirds of it. What the codes of such a chunk leave out is
// stored in 8 bits once more, and multiplied as one more chunk. That halves the divergence from exact products.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels.hpp"

namespace dragoman {

constexpr float kMuchLarger = 8.0f;  // than a chunk's share of a row's squared error would be if all had the same

// Whether an instruction set quantises several chunks at once.
template <class Isa, class = void>
struct QuantisesChunks : std::false_type {};
template <class Isa>
struct QuantisesChunks<Isa, std::void_t<decltype(Isa::chunks_quantised)>> : std::true_type {};

// Sums of a chunk's codes, of its halves at first, become what rows have; its shifts are written.
DRAGOMAN_INLINE void finish_chunk(float scale, int32_t* sums, float* shifts) {
    if (!std::isfinite(scale)) sums[0] = sums[1] = 0;  // results are no numbers, whatever codes are
    sums[0] = -sums[0];
    sums[1] = -sums[1];
    sums[2] = sums[0] + sums[1];
    for (int i = 0; i < kSums; ++i) shifts[i] = scale * static_cast<float>(sums[i]);
}

// The scale of 32 floats, whose codes are written, sums and shifts. `Isa::quantise` has the codes.
template <class Isa>
float quantise_chunk(const float* from, int8_t* codes, int32_t* sums, float* shifts) {
    const float scale = Isa::quantise(from, codes, sums);
    finish_chunk(scale, sums, shifts);
    return scale;
}

// Values of a chunk of a row, zeros behind the last column in `padded`.
DRAGOMAN_INLINE const float* values_of(const float* x, int64_t columns, int64_t chunk, float (&padded)[kChunk]) {
    const float* from = x + chunk * kChunk;
    const int64_t left = columns - chunk * kChunk;
    if (left >= kChunk) return from;
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, from, sizeof(float) * static_cast<size_t>(left));
    return padded;
}

// The chunk whose scale is the largest of those behind `last`, -1 = before all: by their scales, then by their places.
DRAGOMAN_INLINE int64_t next_by_scale(const Rows& row, int64_t last) {
    int64_t found = -1;
    for (int64_t c = 0; c < row.chunks; ++c) {
        const float scale = row.scales[c];
        const bool is_behind = last < 0 || scale < row.scales[last] || (scale == row.scales[last] && c > last);
        if (is_behind && (found < 0 || scale > row.scales[found])) found = c;
    }
    return found;
}

// Stores what codes leave out of the chunks with the largest errors. `squares`: of all scales; `largest`: of them.
template <class Isa>
void refine(const float* x, int64_t columns, const Rows& row, float squares, float largest) {
    const float limit = kMuchLarger * squares / static_cast<float>(row.chunks);
    const int64_t count = finer_of(row.chunks);
    int64_t chunk = -1, index = 0;
    for (; index < count && largest * largest > limit; ++index) {  // false where a number is not finite
        chunk = next_by_scale(row, chunk);
        const float scale = chunk < 0 ? 0 : row.scales[chunk];
        if (!(scale * scale > limit)) break;
        float padded[kChunk], left[kChunk];
        const float* from = values_of(x, columns, chunk, padded);
        const int8_t* codes = row.codes + chunk * kChunk;
        for (int i = 0; i < kChunk; ++i) left[i] = from[i] - scale * static_cast<float>(codes[i]);
        Finer& finer = row.finer[index];
        finer.chunk = chunk;
        finer.scale = quantise_chunk<Isa>(left, finer.codes, finer.sums, finer.shifts);
    }
    for (; index < count; ++index) row.finer[index].chunk = -1;
}

// Quantises as many chunks from the row's first on as can be at once; their number.
template <class Isa>
DRAGOMAN_INLINE int64_t quantise_first(const float* x, int64_t columns, const Rows& row) {
    int64_t c = 0;
    if constexpr (QuantisesChunks<Isa>::value) {
        constexpr int kAtOnce = Isa::chunks_quantised;
        for (; (c + kAtOnce) * kChunk <= columns; c += kAtOnce) {
            int32_t sums[2][kAtOnce];
            Isa::quantise_chunks(x + c * kChunk, row.codes + c * kChunk, row.scales + c, sums);
            for (int i = 0; i < kAtOnce; ++i) {
                int32_t* to = row.sums + (c + i) * kSums;
                to[0] = sums[0][i];
                to[1] = sums[1][i];
                finish_chunk(row.scales[c + i], to, row.shifts + (c + i) * kShifts);
            }
        }
    }
    return c;
}

template <class Isa>
void quantise_with(const float* x, int64_t columns, const Rows& row) {
    for (int64_t c = quantise_first<Isa>(x, columns, row); c < row.chunks; ++c) {
        float padded[kChunk];
        row.scales[c] = quantise_chunk<Isa>(values_of(x, columns, c, padded), row.codes + c * kChunk, row.sums + c * kSums,
                                            row.shifts + c * kShifts);
    }
    float total = 0, squares = 0, largest = 0;
    for (int64_t c = 0; c < row.chunks; ++c) {
        float* shifts = row.shifts + c * kShifts;
        const float scale = row.scales[c];
        shifts[kSums] = (c % kFour ? shifts[-1] : 0) + shifts[2];
        total += shifts[2];
        squares += scale * scale;
        largest = scale > largest ? scale : largest;
    }
    *row.totals = total;
    refine<Isa>(x, columns, row, squares, largest);
}

}  // namespace dragoman
