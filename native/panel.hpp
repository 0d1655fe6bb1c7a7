// Panels from codes, and from rows of a GGUF file, in vectors of 32 bits for each of 16 outputs: each file of an instruction set compiles
// them for itself, to the same bits.
//
// Source of the blocks of GGUF files: ggml's ggml-common.h; the formats' own places are told in formats.hpp.
#pragma once

#include <cstring>

#include "kernels.hpp"

// All that takes or returns vectors is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace dragoman {

using FourNumbers = uint32_t __attribute__((vector_size(16)));
using Sixteen = uint32_t __attribute__((vector_size(64)));  // a number of each output

#if defined(__clang__)
#define DRAGOMAN_SHUFFLED(first, second, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else
#define DRAGOMAN_SHUFFLED(first, second, ...) __builtin_shuffle(first, second, FourNumbers{__VA_ARGS__})
#endif

constexpr uint32_t kEach = 0x01010101u;  // times a byte: that byte in all four

// Four bytes of each output from `from` on, and `Count - 1` times the next four. Turned in registers, four outputs at a time: loads of
// vectors wait long for stores of single numbers.
template <int Count>
DRAGOMAN_INLINE void read_fours(const uint8_t* const* rows, int64_t from, Sixteen* to) {
    static_assert(Count >= 4, "four are read at once");
    for (int begin = 0; begin < Count; begin += 4) {
        const int first = begin + 4 <= Count ? begin : Count - 4;
        for (int output = 0; output < kPanel; output += 4) {
            FourNumbers row[4];
            for (int i = 0; i < 4; ++i) std::memcpy(&row[i], rows[output + i] + from + 4 * first, sizeof row[i]);
            const FourNumbers low = DRAGOMAN_SHUFFLED(row[0], row[1], 0, 4, 1, 5),
                              high = DRAGOMAN_SHUFFLED(row[0], row[1], 2, 6, 3, 7),
                              low2 = DRAGOMAN_SHUFFLED(row[2], row[3], 0, 4, 1, 5),
                              high2 = DRAGOMAN_SHUFFLED(row[2], row[3], 2, 6, 3, 7);
            const FourNumbers turned[4] = {DRAGOMAN_SHUFFLED(low, low2, 0, 1, 4, 5), DRAGOMAN_SHUFFLED(low, low2, 2, 3, 6, 7),
                                           DRAGOMAN_SHUFFLED(high, high2, 0, 1, 4, 5),
                                           DRAGOMAN_SHUFFLED(high, high2, 2, 3, 6, 7)};
            for (int i = 0; i < 4; ++i)
                std::memcpy(reinterpret_cast<uint8_t*>(to + first + i) + 4 * output, &turned[i], sizeof turned[i]);
        }
    }
}

DRAGOMAN_INLINE void put_halves(const uint8_t* const* rows, int64_t from, uint16_t flipped, uint8_t* to) {
    for (int output = 0; output < kPanel; ++output) {
        uint16_t half;
        std::memcpy(&half, rows[output] + from, 2);
        half ^= flipped;
        std::memcpy(to + 2 * output, &half, 2);
    }
}

// The lower bits of each number.
template <class Number>
DRAGOMAN_INLINE void put_narrow(const Sixteen& numbers, uint8_t* to) {
    Number narrow[kPanel];
    for (int output = 0; output < kPanel; ++output) narrow[output] = static_cast<Number>(numbers[output]);
    std::memcpy(to, narrow, sizeof narrow);
}

// The planes of a chunk of codes of `Bits`, a quad's in the bytes of one number.
template <int Bits>
DRAGOMAN_INLINE void put_planes(const Sixteen (&quads)[kQuads], uint8_t* out) {
    constexpr bool kHasFour = Bits >= 4 && Bits < 8, kHasTwo = Bits == 2 || Bits == 3 || Bits == 6,
                   kHasOne = Bits == 3 || Bits == 5;
    constexpr int kTwo = kHasFour ? 4 : 0, kOne = kHasFour ? 4 : 2;
    const auto put = [&](const Sixteen& line) __attribute__((always_inline)) {
        std::memcpy(out, &line, kLine);
        out += kLine;
    };
    for (int i = 0; Bits == 8 && i < kQuads; ++i) put(quads[i]);
    for (int i = 0; kHasFour && i < kQuads; i += 2) put((quads[i] & 15 * kEach) | (quads[i + 1] & 15 * kEach) << 4);
    for (int i = 0; kHasTwo && i < kQuads; i += 4) {
        Sixteen line = quads[i] >> kTwo & 3 * kEach;
        for (int k = 1; k < 4; ++k) line |= (quads[i + k] >> kTwo & 3 * kEach) << 2 * k;
        put(line);
    }
    if (!kHasOne) return;
    Sixteen line = quads[0] >> kOne & kEach;
    for (int k = 1; k < kQuads; ++k) line |= (quads[k] >> kOne & kEach) << k;
    put(line);
}

// --- blocks of files --------------------------------------------------------------------------------------------------------

// Where a block of a file has its f16 scale and minimum, and the first of its other bytes, which are read in fours.
struct FileBlock {
    int bytes, scale, minimum, first;
};

constexpr FileBlock file_block(Format format) {
    switch (format) {
        case Format::i4:
        case Format::iq4_nl: return {18, 0, -1, 2};
        case Format::i4m: return {20, 0, 2, 4};
        case Format::i5: return {22, 0, -1, 2};
        case Format::i5m: return {24, 0, 2, 4};
        case Format::i8: return {34, 0, -1, 2};
        case Format::q2_k: return {84, 80, 82, 0};
        case Format::q3_k: return {110, 108, -1, 0};
        case Format::q4_k: return {144, 0, 2, 4};
        case Format::q5_k: return {176, 0, 2, 4};
        case Format::q6_k: return {210, 208, -1, 0};
        case Format::mxfp4: return {17, -1, -1, 1};
        default: return {0, -1, -1, 0};
    }
}

// How many fours a block has besides scale and minimum.
constexpr int fours_of(Format format) {
    const FileBlock block = file_block(format);
    return ((block.scale > block.first ? block.scale : block.bytes) - block.first) / 4;
}

// The codes of a quad of columns.
template <Format F>
DRAGOMAN_INLINE Sixteen quad_of(const Sixteen* fours, int chunk, int quad) {
    if constexpr (F == Format::i8) return fours[quad];
    if constexpr (F == Format::i4 || F == Format::iq4_nl || F == Format::i4m || F == Format::mxfp4)
        return fours[quad % 4] >> 4 * (quad / 4) & 15 * kEach;
    if constexpr (F == Format::i5 || F == Format::i5m) {
        // a fifth bit for each column, of which the product puts four in a byte each
        const Sixteen fifth = (fours[0] >> 4 * quad & 15) * 0x00204081u & kEach;
        return (fours[1 + quad % 4] >> 4 * (quad / 4) & 15 * kEach) | fifth << 4;
    }
    if constexpr (F == Format::q2_k) return fours[4 + chunk / 4 * 8 + quad] >> 2 * (chunk % 4) & 3 * kEach;
    if constexpr (F == Format::q3_k)
        return (fours[8 + chunk / 4 * 8 + quad] >> 2 * (chunk % 4) & 3 * kEach) | (fours[quad] >> chunk & kEach) << 2;
    if constexpr (F == Format::q4_k) return fours[3 + chunk / 2 * 8 + quad] >> 4 * (chunk % 2) & 15 * kEach;
    if constexpr (F == Format::q5_k)
        return (fours[11 + chunk / 2 * 8 + quad] >> 4 * (chunk % 2) & 15 * kEach) | (fours[3 + quad] >> chunk & kEach) << 4;
    if constexpr (F == Format::q6_k) {
        const Sixteen low = fours[chunk / 4 * 16 + chunk % 2 * 8 + quad] >> 4 * (chunk % 4 / 2) & 15 * kEach;
        return low | (fours[32 + chunk / 4 * 8 + quad] >> 2 * (chunk % 4) & 3 * kEach) << 4;
    }
}

// The two smaller scales of a chunk, of six bits: a scale and a minimum, or those of 16 columns each.
template <Format F>
DRAGOMAN_INLINE Sixteen pair_of(const Sixteen* fours, int chunk) {
    if constexpr (F == Format::q3_k) {
        const auto scale = [&](int i) __attribute__((always_inline)) {
            const Sixteen high = fours[26] >> (8 * (i % 4) + 2 * (i / 4)) & 3;
            return (fours[24 + i % 8 / 4] >> (8 * (i % 4) + 4 * (i / 8)) & 15) | high << 4;
        };
        return scale(2 * chunk) | scale(2 * chunk + 1) << kInnerBits;
    } else {
        const int from = 8 * (chunk % 4);
        if (chunk < 4) return (fours[0] >> from & 63) | (fours[1] >> from & 63) << kInnerBits;
        const Sixteen scale = (fours[2] >> from & 15) | (fours[0] >> (from + 6) & 3) << 4,
                      minimum = (fours[2] >> (from + 4) & 15) | (fours[1] >> (from + 6) & 3) << 4;
        return scale | minimum << kInnerBits;
    }
}

// The smaller scales of a block of a K-quant, as formats.hpp has them.
template <Format F>
DRAGOMAN_INLINE void put_inner(const Sixteen* fours, uint8_t* inner) {
    if constexpr (has_words(F)) {
        for (int first = 0; first < kSuper / kChunk; first += kWordChunks) {
            const Sixteen fourth = pair_of<F>(fours, first + kWordChunks - 1);
            for (int i = 0; i < kWordChunks - 1; ++i, inner += kWordBytes)
                put_narrow<uint16_t>(pair_of<F>(fours, first + i) | (fourth >> 4 * i & 15) << 12, inner);
        }
    } else {
        constexpr int kFirst = F == Format::q2_k ? 0 : 48;
        for (int i = 0; i < kSuper / 16; ++i) put_narrow<uint8_t>(fours[kFirst + i / 4] >> 8 * (i % 4), inner + kPanel * i);
    }
}

// A panel from rows of a file.
template <Format F>
DRAGOMAN_INLINE void put_file_panel(const Matrix& matrix, const uint8_t* const* rows, uint8_t* panel) {
    constexpr Shape kShape = shape_of(F);
    constexpr FileBlock kBlock = file_block(F);
    constexpr int kChunks = (kShape.columns ? kSuper : kChunk) / kChunk, kFours = fours_of(F);
    uint8_t *parameters = panel, *planes = panel + matrix.parameter_bytes();
    for (int64_t block = 0; block < matrix.chunks() / kChunks; ++block, parameters += kShape.block_bytes) {
        const int64_t from = block * kBlock.bytes;
        Sixteen fours[kFours];
        read_fours<kFours>(rows, from + kBlock.first, fours);
        if constexpr (kBlock.scale >= 0) {
            put_halves(rows, from + kBlock.scale, 0, parameters);
        } else {
            for (int output = 0; output < kPanel; ++output) parameters[output] = rows[output][from];  // an exponent
        }
        // files add what a minimum takes away, but for K-quants
        constexpr uint16_t kMinus = kShape.columns ? 0 : 0x8000;
        if constexpr (kBlock.minimum >= 0) put_halves(rows, from + kBlock.minimum, kMinus, parameters + 2 * kPanel);
        if constexpr (kShape.columns != 0) put_inner<F>(fours, parameters + inner_place(kShape));
        for (int chunk = 0; chunk < kChunks; ++chunk, planes += kShape.bits * kLine) {
            Sixteen quads[kQuads];
            for (int quad = 0; quad < kQuads; ++quad) quads[quad] = quad_of<F>(fours, chunk, quad);
            put_planes<kShape.bits>(quads, planes);
        }
    }
    std::memset(parameters, 0, static_cast<size_t>(panel + matrix.parameter_bytes() - parameters));
}

// See Kernels.
template <class Isa>
void file_panel_with(const Matrix& matrix, const uint8_t* const* rows, uint8_t* panel) {
    switch (matrix.format) {
        case Format::i4: return put_file_panel<Format::i4>(matrix, rows, panel);
        case Format::i4m: return put_file_panel<Format::i4m>(matrix, rows, panel);
        case Format::i5: return put_file_panel<Format::i5>(matrix, rows, panel);
        case Format::i5m: return put_file_panel<Format::i5m>(matrix, rows, panel);
        case Format::i8: return put_file_panel<Format::i8>(matrix, rows, panel);
        case Format::q2_k: return put_file_panel<Format::q2_k>(matrix, rows, panel);
        case Format::q3_k: return put_file_panel<Format::q3_k>(matrix, rows, panel);
        case Format::q4_k: return put_file_panel<Format::q4_k>(matrix, rows, panel);
        case Format::q5_k: return put_file_panel<Format::q5_k>(matrix, rows, panel);
        case Format::q6_k: return put_file_panel<Format::q6_k>(matrix, rows, panel);
        case Format::iq4_nl: return put_file_panel<Format::iq4_nl>(matrix, rows, panel);
        case Format::mxfp4: return put_file_panel<Format::mxfp4>(matrix, rows, panel);
        default: return;
    }
}

}  // namespace dragoman
