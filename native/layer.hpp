// What a decoder's layer computes before and behind attention, each as one call, for whoever makes graph operations of them.
//
// Rows go from product to product in memory that stays in the cache. Norms and turning are computed in f32, in one order on
// every processor: a row's results depend on nothing but the row.
#pragma once

#include <cstdint>

#include "product.hpp"

namespace dragoman {

// Root-mean-square normalisation of each `size` values of a row: x / sqrt(mean(x^2) + epsilon) * weight. `size` 0 = there is none.
struct Norm {
    int64_t size;
    const float* weight;
    float epsilon;
};

// What a product's results go through: the norm, then the first `turned` values of each `head` are turned by the row's position.
struct Heads {
    Norm norm;
    int64_t head;
    int64_t turned;
};

// cos and sin of a row's angles, [rows, turned].
struct Angles {
    const float* cos;
    const float* sin;
};

// Several products of the same rows, which are normed before.
void normed_products(const Norm& norm, const Product* all, const Heads* heads, int count, const Angles& angles, const Input& x,
                     const ParallelFor& parallel_for);

// residual' = residual + scale * output_norm(output x); y = residual' + scale * mlp_norm(mlp(norm(residual'))). Without a norm values
// stay as they are.
struct OutputAndMlp {
    Matrix output;
    const float* output_bias;
    Norm output_norm, norm;
    GatedMlp mlp;
    Norm mlp_norm;
    float scale;
};
void output_and_mlp(const OutputAndMlp& layer, const Input& x, const float* residual, float* y, const ParallelFor& parallel_for);

// One row: each `norm.size` of its `count` values normed; `y` may be `x`.
void normed(const Norm& norm, const float* x, int64_t count, float* y);

}  // namespace dragoman
