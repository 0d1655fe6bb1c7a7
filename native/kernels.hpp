// What the file of each instruction set provides, and the quantised rows that it works on. Called by product.cpp only.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace dragoman {

// Rows in 8 bits. `codes` i8 [rows, chunks * 32], zeros behind the last column; `scales` [rows, chunks]. For each chunk, or each
// half of one where a format's scales have 16 columns: `starts`, the sum of codes times what the kernel's codes are too large by,
// negative, where a sum of products begins; `shifts`, the sum of values, negative, by which a minimum counts.
struct Rows {
    int64_t chunks;
    int8_t* codes;
    float* scales;
    int32_t* starts;
    float* shifts;
};

// How one instruction set computes. Panels are those of one matrix.
struct Kernels {
    const char* name;
    // By how much codes of that format are too large when they are multiplied.
    int (*offset)(Format);
    // Quantises one row of `columns` floats; `halves`: starts and shifts are those of 16 columns.
    void (*quantise)(const float* x, int64_t columns, int offset, bool halves, const Rows& row);
    // y[row, output] for all rows and the panels [first, last). `y` points to the first row and output 0.
    void (*product)(const Matrix& matrix, const Rows& rows, int64_t num_rows, int64_t first, int64_t last, float* y, int64_t y_stride);
};

extern const Kernels kPlain;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvxVnni, kAvx512Vnni;
#endif

// Row `index` of them.
DRAGOMAN_INLINE Rows row_of(const Rows& rows, int64_t index, int64_t subs) {
    return {rows.chunks, rows.codes + index * rows.chunks * kChunk, rows.scales + index * rows.chunks,
            rows.starts + index * rows.chunks * subs, rows.shifts + index * rows.chunks * subs};
}

}  // namespace dragoman
