// How packed matrices lie in memory. Does: describe each format and the place of every value, in plain C++. Does not: compute.
//
// A matrix [outputs, columns] is cut into panels of 16 outputs, and a panel into chunks of 32 columns (the last one padded).
// A panel is first its parameters (scales, minima), then its chunks, both whole cache lines. A chunk is one to three planes:
//
//   4 bits: 4 vectors of 64 bytes; byte 4 * output + column % 4, even quads of columns in the low half, odd ones in the high
//   2 bits: 2 vectors, four quads in a byte;  1 bit: 1 vector, eight quads in a byte;  8 bits: 8 vectors, one for each quad
//
// so that a vector instruction multiplies four columns of 16 outputs with four values of a row, whatever the format. A value is
// `scale * code - minimum`, where code is what the planes hold together, less `offset`.
//
// K-quants share f16 scales (and minima) among 256 columns, behind which a block has smaller scales. Where these have 6 bits, those of
// a chunk (a scale and a minimum, or two scales) are 12 bits of a word of 16 for each output: three chunks have words of their own,
// and the fourth one's bits are the upper four of these three, the lowest first.
//
// Floats of two bytes have no parameters, and 16 lines in a chunk, of two columns each: bf16 with the second column's value behind
// the first one's, output by output, so that a shift and a mask make f32 of them; f16 with 16 outputs of one column, then the other's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

constexpr int kPanel = 16;  // outputs of a panel
constexpr int kChunk = 32;  // columns of a chunk, for which a row's values share a scale
constexpr int kQuads = kChunk / 4;
constexpr int kSuper = 256;  // columns that share the outer scales of K-quants
constexpr int kLine = 64;

enum class Format : int32_t {
    i4z,  // 4 bits, groups with an f16 scale and a zero point of a byte
    i4,   // 4 bits less 8, groups with an f16 scale (Q4_0)
    i4m,  // 4 bits, groups of 32 with f16 scale and minimum (Q4_1)
    i5,   // 5 bits less 16 (Q5_0)
    i5m,  // 5 bits with a minimum (Q5_1)
    i8,   // 8 bits, signed, groups with an f16 scale (Q8_0; or one group: per output)
    i8z,  // the same with a signed zero point of a byte
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,  // 4 bits that stand for 16 unequal values, groups of 32 with an f16 scale
    mxfp4,   // 4 bits that stand for floats of four bits, groups of 32 with a power of two
    bf16,
    f16,
    count,
};

enum class Codes : uint8_t { plain, signed8, iq4_nl, mxfp4, floats };

// `bits`: 4 + 2 or 4 + 1 lie in two planes. `columns`: of a group, 0 = the matrix says. `sub`: columns that share a scale inside a
// chunk, 32 or 16. `block_bytes`: the parameters of 16 outputs for each group (or 256 columns).
struct Shape {
    const char* name;
    int bits;
    Codes codes;
    int offset;
    int columns;
    int sub;
    bool has_minimum;
    int block_bytes;
};

constexpr Shape kShapes[] = {
    {"i4z", 4, Codes::plain, 0, 0, 32, true, 48},         {"i4", 4, Codes::plain, 8, 0, 32, false, 32},
    {"i4m", 4, Codes::plain, 0, 0, 32, true, 64},         {"i5", 5, Codes::plain, 16, 0, 32, false, 32},
    {"i5m", 5, Codes::plain, 0, 0, 32, true, 64},         {"i8", 8, Codes::signed8, 0, 0, 32, false, 32},
    {"i8z", 8, Codes::signed8, 0, 0, 32, true, 48},       {"q2_k", 2, Codes::plain, 0, kSuper, 16, true, 320},
    {"q3_k", 3, Codes::plain, 4, kSuper, 16, false, 224}, {"q4_k", 4, Codes::plain, 0, kSuper, 32, true, 256},
    {"q5_k", 5, Codes::plain, 0, kSuper, 32, true, 256},  {"q6_k", 6, Codes::plain, 32, kSuper, 16, false, 288},
    {"iq4_nl", 4, Codes::iq4_nl, 0, 0, 32, false, 32},    {"mxfp4", 4, Codes::mxfp4, 0, 0, 32, false, 16},
    {"bf16", 16, Codes::floats, 0, 0, 32, false, 0},      {"f16", 16, Codes::floats, 0, 0, 32, false, 0},
};

constexpr int kInnerBits = 6;            // of the smaller scales of Q3_K, Q4_K and Q5_K
constexpr float kInnerOffset = 32;       // which codes of Q3_K's smaller scales have too much
constexpr int kWordBytes = 2 * kPanel;   // of a chunk's words
constexpr int kWordChunks = 4;           // that share three chunks' words
constexpr int kByteScales = 2 * kPanel;  // bytes of a chunk's smaller scales in Q2_K and Q6_K

constexpr int kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // times two

// Inlined always: files for several instruction sets include this, and the linker keeps one copy of what is not.
#define DRAGOMAN_INLINE inline __attribute__((always_inline))

constexpr const Shape& shape_of(Format format) { return kShapes[static_cast<int>(format)]; }

// True if a block's smaller scales are words.
constexpr bool has_words(Format format) { return format == Format::q3_k || format == Format::q4_k || format == Format::q5_k; }

// Where a block of a K-quant has its smaller scales: behind those in f16.
constexpr int inner_place(const Shape& shape) { return 2 * kPanel * (shape.has_minimum ? 2 : 1); }

// The formats whose groups checkpoints and profiles choose; those of files of other kinds have 32 columns.
constexpr bool may_be_wide(Format format) {
    return format == Format::i4z || format == Format::i4 || format == Format::i8 || format == Format::i8z;
}

// A packed matrix. `group`: the columns that share a scale, a multiple of 32, or all of them.
struct Matrix {
    Format format;
    int64_t group;
    int64_t outputs;
    int64_t columns;
    const uint8_t* data;

    DRAGOMAN_INLINE bool is_float() const { return shape_of(format).codes == Codes::floats; }
    DRAGOMAN_INLINE int64_t chunks() const { return (columns + kChunk - 1) / kChunk; }
    DRAGOMAN_INLINE int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
    DRAGOMAN_INLINE int64_t chunks_of_block() const { return group >= columns ? chunks() : group / kChunk; }
    DRAGOMAN_INLINE int64_t blocks() const { return (chunks() + chunks_of_block() - 1) / chunks_of_block(); }
    // Several chunks of an output share a scale, which is multiplied with what they have together.
    DRAGOMAN_INLINE bool is_wide() const { return may_be_wide(format) && chunks_of_block() > 1; }
    DRAGOMAN_INLINE int64_t chunk_bytes() const { return int64_t{kPanel} * kChunk * shape_of(format).bits / 8; }
    DRAGOMAN_INLINE int64_t parameter_bytes() const {
        return (blocks() * shape_of(format).block_bytes + kLine - 1) / kLine * kLine;
    }
    DRAGOMAN_INLINE int64_t panel_bytes() const { return parameter_bytes() + chunks() * chunk_bytes(); }
    DRAGOMAN_INLINE int64_t bytes() const { return panels() * panel_bytes(); }
    DRAGOMAN_INLINE const uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
};

}  // namespace dragoman
