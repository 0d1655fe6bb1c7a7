// What the file of each instruction set provides, and the quantised rows that it works on. Called by the files that share work
// among threads, and by tests.
#pragma once

#include <cstdint>
#include <vector>

#include "formats.hpp"
#include "product.hpp"

namespace dragoman {

struct Finer;

// Rows: as they are, `x` with `stride` floats from one to the next, which matrices of floats are multiplied with; and in 8 bits, for
// all others; null if there are none. `codes` i8 [rows, chunks * 32], zeros behind the last column; `scales` [rows, chunks]. `sums`
// of codes, negative, [rows, chunks, 3]: of the first 16 columns of a chunk, of the others, of all. `shifts` [rows, chunks, 4]: the
// same of values, by which a minimum counts, and those of four chunks up to this one; `totals` [rows], those of all chunks. `finer`
// [rows, finer_of(chunks)]: what codes leave out of the worst chunks.
struct Rows {
    const float* x;
    int64_t stride;
    int64_t chunks;
    int8_t* codes;
    float* scales;
    int32_t* sums;
    float* shifts;
    float* totals;
    Finer* finer;
};

constexpr int kSums = 3, kShifts = 4;
constexpr int kBlockChunks = 16;  // that are unpacked together; what codes leave out of them is added behind them
constexpr int kFour = 4;          // chunks of most groups, whose shifts are summed once for all outputs

// Rows whose values are all below this in a chunk count as zeros there: 127 by less is no number of 32 bits.
constexpr float kSmallest = 1e-35f;

// Which of the sums is that of a part of a chunk; `sub`: the columns that share a scale.
constexpr int sum_index(int sub, int part) { return sub == 16 ? part : 2; }

// What the codes of a chunk leave out of its values, as rows have these; `chunk` -1 = there is none, nor behind it.
struct Finer {
    int64_t chunk;
    int8_t codes[kChunk];
    float scale;
    int32_t sums[kSums];
    float shifts[kShifts];

    // The same as the only chunk of a row.
    DRAGOMAN_INLINE Rows row() { return {nullptr, 0, 1, codes, &scale, sums, shifts, nullptr, nullptr}; }
};

// How many chunks of a row may have these. Each costs what one more chunk does.
DRAGOMAN_INLINE constexpr int64_t finer_of(int64_t chunks) { return (chunks + 63) / 64; }

struct AttentionKernels;  // attention_kernels.hpp

// How one instruction set computes. Panels are those of one matrix.
struct Kernels {
    const char* name;
    // Quantises one row of `columns` floats.
    void (*quantise)(const float* x, int64_t columns, const Rows& row);
    // Codes of `columns` weights, from 0 to `highest`, and an f16 scale and a zero point for each group. False if a number is not
    // finite, or too large for such a scale.
    bool (*codes)(const float* x, int64_t columns, int64_t group, int highest, uint8_t* codes, uint16_t* scales, uint8_t* zeros);
    // A panel of a format of GGUF files, from 16 rows of its type.
    void (*file_panel)(const Matrix& matrix, const uint8_t* const* rows, uint8_t* panel);
    // gate[i] = activation(gate[i]) * up[i].
    void (*activate)(const Gating& activation, float* gate, const float* up, int64_t count);
    // y[row, output] for all rows and the panels [first, last). `y` points to the first row and output 0.
    void (*product)(const Matrix& matrix, const Rows& rows, int64_t num_rows, int64_t first, int64_t last, float* y,
                    int64_t y_stride);
    const AttentionKernels* attention;
};

extern const AttentionKernels kPlainAttention;
extern const Kernels kPlain;
#if defined(DRAGOMAN_HAS_AVX2)
extern const AttentionKernels kAvx2Attention;
extern const Kernels kAvx2;
#endif
#if defined(DRAGOMAN_HAS_AVXVNNI)
extern const AttentionKernels kAvxVnniAttention;
extern const Kernels kAvxVnni;
#endif
#if defined(DRAGOMAN_HAS_AVX512VNNI)
extern const AttentionKernels kAvx512Attention;
extern const Kernels kAvx512Vnni;
#endif
#if defined(DRAGOMAN_HAS_NEON)
extern const AttentionKernels kNeonAttention;
extern const Kernels kNeon;
#endif
#if defined(DRAGOMAN_HAS_I8MM)
extern const Kernels kI8mm;
#endif

// The kernels that the compiler knew and this processor has, the best first, without the plain ones.
std::vector<const Kernels*> usable_kernels();

// Those that are used: the best, unless they are held down.
const Kernels& kernels();

// Row `index` of them.
DRAGOMAN_INLINE Rows row_of(const Rows& rows, int64_t index) {
    const float* x = rows.x + index * rows.stride;
    if (rows.codes == nullptr) return {x, rows.stride, rows.chunks, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    return {x,
            rows.stride,
            rows.chunks,
            rows.codes + index * rows.chunks * kChunk,
            rows.scales + index * rows.chunks,
            rows.sums + index * rows.chunks * kSums,
            rows.shifts + index * rows.chunks * kShifts,
            rows.totals + index,
            rows.finer + index * finer_of(rows.chunks)};
}

}  // namespace dragoman
