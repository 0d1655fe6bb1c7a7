// Writes matrices into packed formats, and reads them back. Does: one thread's part. Does not: compute products.
// Called by the C entry points (loaders, tests) and by operations that read rows of a packed table.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace dragoman {

// Values of one output and chunk: `scale[half] * code - minimum[half]`, halves of 16 columns (equal where they share a scale).
struct ChunkValues {
    int codes[kChunk];
    float scale[2];
    float minimum[2];
};

// What a chunk of an output holds. The plain twin of what kernels read.
ChunkValues chunk_values(const Matrix& matrix, int64_t output, int64_t chunk);

// Packs outputs [first, first + count) of a format of groups; `first` is a multiple of 16. `codes`, one byte each [count, columns],
// without their offset taken away (i4: 0 to 15); `scales` f16 [count, groups]; `minima`, f16 (i4m, i5m) or bytes (i4z, i8z), of as many.
void pack_groups(const Matrix& matrix, int64_t first, int64_t count, const uint8_t* codes, const uint16_t* scales,
                 const void* minima, uint8_t* out);

enum class Number : int32_t { f32, f16, bf16 };

// Quantises such outputs in the groups of the matrix, i8z or i4z, from rows of numbers [count, columns], and packs them. False if
// a number is not finite, or too large for a scale of f16.
bool pack_numbers(const Matrix& matrix, int64_t first, int64_t count, Number number, const uint8_t* rows, uint8_t* out);

// Packs such outputs from rows of a GGUF file, of the type that belongs to the format (Q4_0: i4, ..., MXFP4: mxfp4); no floats.
void pack_gguf(const Matrix& matrix, int64_t first, int64_t count, const uint8_t* rows, uint8_t* out);

// The same from an open file that has the rows from `begin` on. `order`: which of these they are, null = the first ones. 0, or why not: an
// errno, -1 if the file ends before. Rows are read into a cache of the processor: mapping their pages takes longer than copying them.
int32_t pack_gguf_file(const Matrix& matrix, int64_t first, int64_t count, int32_t descriptor, int64_t begin,
                       const int64_t* order, uint8_t* out);

// Packs such outputs of a format of floats: `values`, of two bytes, [count, columns].
void pack_floats(const Matrix& matrix, int64_t first, int64_t count, const uint16_t* values, uint8_t* out);

// Values of one output and chunk of such a format; zeros behind the last column.
void float_values(const Matrix& matrix, int64_t output, int64_t chunk, float (&values)[kChunk]);

// Bytes of a row of that type in a GGUF file.
int64_t gguf_row_bytes(const Matrix& matrix);

// Rows of a table, f32 [count, columns].
void unpack_rows(const Matrix& matrix, const int64_t* rows, int64_t count, float* out);

// The format of that name; false if there is none.
bool find_format(const char* name, Format* format);

}  // namespace dragoman
