// Products of rows with packed matrices, for whoever makes graph operations of them.
//
// A row is quantised to 8 bits, 32 columns of it sharing a scale. Sums of 32 products are exact integers; these are added up in
// floats, chunk by chunk, in one order: a row's result depends neither on other rows, nor on threads, nor on the processor.
#pragma once

#include <cstdint>
#include <functional>

#include "formats.hpp"

namespace dragoman {

// Runs `body(i)` for each i in [0, count), on as many threads as it likes.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& body)>;

// y[row, output] = sum over columns of x[row, column] * matrix[output, column]. `x_stride`, `y_stride`: floats between rows.
void product(const Matrix& matrix, const float* x, int64_t num_rows, int64_t x_stride, float* y, int64_t y_stride,
             const ParallelFor& parallel_for);

// The instruction set that kernels were chosen for: "avx512vnni", "avxvnni", "avx2", "plain". DRAGOMAN_KERNELS_ISA holds it down.
const char* instruction_set();

}  // namespace dragoman
