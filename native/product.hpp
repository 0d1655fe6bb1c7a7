// Products of rows with packed matrices, for whoever makes graph operations of them.
//
// A row is quantised to 8 bits, 32 columns of it sharing a scale, and to 16 bits where few columns have most of its error (rows.hpp). Sums
// of 32 products are exact integers; these are added up in floats, chunk by chunk, in one order. With matrices of floats a row is multiplied as it is, column by column. Either way a row's
// result depends neither on other rows, nor on threads, nor on the processor.
#pragma once

#include <cstdint>
#include <functional>

#include "formats.hpp"

namespace dragoman {

// Runs `body(i)` for each i in [0, count), on as many threads as it likes. While it waits, the calling thread must run nothing
// else of ours: what `products` holds belongs to the thread.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& body)>;

// Rows of floats. `stride`: floats from one to the next.
struct Input {
    const float* data;
    int64_t count;
    int64_t stride;
};

// y[row, output] = sum over columns of x[row, column] * matrix[output, column], then + bias[output] where there is one.
struct Product {
    Matrix matrix;
    const float* bias;
    float* y;
    int64_t stride;
};

// Several products of the same rows, which are quantised once.
void products(const Product* all, int count, const Input& x, const ParallelFor& parallel_for);

enum class Activation : int32_t { silu, relu, relu2, gelu, gelu_tanh, quick_gelu, bounded_swiglu, count };

// What stands between the products of a gated MLP: activation(gate) * up. Of bounded_swiglu alone, `gain` and `limit`: g * sigmoid(gain
// * g) * (u + 1) with g = gate up to limit, and u = up between -limit and limit.
struct Gating {
    Activation activation = Activation::silu;
    float gain = 1;
    float limit = 0;
};

// y = down(activation(gate x) * up x), whose inner rows are in memory only while they are needed. Biases may be null.
struct GatedMlp {
    Matrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;
    Gating activation;
};
void gated_mlp(const GatedMlp& mlp, const Input& x, float* y, int64_t stride, const ParallelFor& parallel_for);

// The instruction set that kernels were chosen for: "avx512vnni", "avxvnni", "avx2"; on Arm "i8mm", "neon" (which is with dot
// products); "plain". DRAGOMAN_KERNELS_ISA holds it down.
const char* instruction_set();

}  // namespace dragoman
