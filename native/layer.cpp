// Norms, turning and residuals around products, and the threads that share them. See layer.hpp.
//
// The loops over values are plain C++: without contraction they have the same results with all vectors that compilers use.
#include "layer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.hpp"
#include "parts.hpp"

namespace dragoman {
namespace {

struct Scratch {
    RowMemory rows;
    std::vector<float> normed, residual, gate, up;
};

Scratch& scratch() {
    static thread_local Scratch held_by_thread;
    return held_by_thread;
}

constexpr int kLanes = 16;

// The sum of squares: 16 sums of every 16th value, which are then added up in pairs.
float sum_of_squares(const float* x, int64_t count) {
    float sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int lane = 0; i + lane < count; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

// Turns pairs (i, i + turned / 2) of a head's values.
void turn(float* x, int64_t turned, const float* cos, const float* sin) {
    const int64_t half = turned / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float first = x[i], second = x[i + half];
        x[i] = first * cos[i] - second * sin[i];
        x[i + half] = second * cos[i + half] + first * sin[i + half];
    }
}

// The rows, normed if there is a norm, and in 8 bits if somebody needs that, until the thread calls this again.
Rows made_ready(const Norm& norm, const Input& x, int64_t columns, bool needs_codes, const ParallelFor& parallel_for) {
    float* memory = norm.size ? held(scratch().normed, x.count * columns) : nullptr;
    const Rows rows = scratch().rows.rows(norm.size ? Input{memory, x.count, columns} : x, columns, needs_codes);
    if (!norm.size && !needs_codes) return rows;
    for_rows(x.count, parallel_for, [&](int64_t row) {
        const Rows to = row_of(rows, row);
        if (norm.size) normed(norm, x.data + row * x.stride, columns, memory + row * columns);
        if (needs_codes) kernels().quantise(to.x, columns, to);
    });
    return rows;
}

// to = residual + scale * change.
void add_scaled(const float* change, float scale, const float* residual, int64_t count, float* to) {
    if (scale == 1.0f) {
        for (int64_t i = 0; i < count; ++i) to[i] = residual[i] + change[i];
    } else {
        for (int64_t i = 0; i < count; ++i) to[i] = residual[i] + scale * change[i];
    }
}

// y = residual + scale * norm(product of rows); y may not be the residual.
void added(const Product& product, const Rows& rows, int64_t count, const Norm& norm, float scale, const float* residual,
           const ParallelFor& parallel_for) {
    const Parts parts(product.matrix, count);
    const int64_t width = product.matrix.outputs;
    parallel_for(parts.count(), [&](int64_t part) {
        const Span span = compute(product, rows, parts, part, count);
        if (norm.size) return;
        for (int64_t row = span.row; row < span.row + span.num_rows; ++row) {
            float* y = product.y + row * product.stride + span.output;
            add_scaled(y, scale, residual + row * width + span.output, span.num_outputs, y);
        }
    });
    if (norm.size == 0) return;
    for_rows(count, parallel_for, [&](int64_t row) {
        float* y = product.y + row * product.stride;
        normed(norm, y, width, y);
        add_scaled(y, scale, residual + row * width, width, y);
    });
}

}  // namespace

void normed(const Norm& norm, const float* x, int64_t count, float* y) {
    for (int64_t begin = 0; begin < count; begin += norm.size) {
        const float mean = sum_of_squares(x + begin, norm.size) / static_cast<float>(norm.size);
        const float inverse = 1.0f / std::sqrt(mean + norm.epsilon);
        for (int64_t i = 0; i < norm.size; ++i) y[begin + i] = x[begin + i] * inverse * norm.weight[i];
    }
}

void normed_products(const Norm& norm, const Product* all, const Heads* heads, int count, const Angles& angles, const Input& x,
                     const ParallelFor& parallel_for) {
    if (x.count == 0 || count == 0) return;
    const bool needs_codes = std::any_of(all, all + count, [](const Product& each) { return !each.matrix.is_float(); });
    const Rows rows = made_ready(norm, x, all[0].matrix.columns, needs_codes, parallel_for);
    products_of(all, count, rows, x.count, parallel_for);
    if (std::none_of(heads, heads + count, [](const Heads& one) { return one.norm.size || one.turned; })) return;
    for_rows(x.count, parallel_for, [&](int64_t row) {
        for (int i = 0; i < count; ++i) {
            float* y = all[i].y + row * all[i].stride;
            const int64_t width = all[i].matrix.outputs, turned = heads[i].turned;
            if (heads[i].norm.size) normed(heads[i].norm, y, width, y);
            if (turned == 0) continue;
            for (int64_t head = 0; head < width; head += heads[i].head)
                turn(y + head, turned, angles.cos + row * turned, angles.sin + row * turned);
        }
    });
}

void output_and_mlp(const OutputAndMlp& layer, const Input& x, const float* residual, float* y, const ParallelFor& parallel_for) {
    if (x.count == 0) return;
    const int64_t hidden = layer.output.outputs, inner = layer.mlp.gate.outputs;
    float* between = held(scratch().residual, x.count * hidden);
    float* gate = held(scratch().gate, x.count * inner);
    float* up = held(scratch().up, x.count * inner);
    const Norm none{};

    Rows rows = made_ready(none, x, layer.output.columns, !layer.output.is_float(), parallel_for);
    added({layer.output, layer.output_bias, between, hidden}, rows, x.count, layer.output_norm, layer.scale, residual,
          parallel_for);
    const bool needs_codes = !layer.mlp.gate.is_float() || !layer.mlp.up.is_float();
    rows = made_ready(layer.norm, {between, x.count, hidden}, hidden, needs_codes, parallel_for);
    gate_and_up(layer.mlp, rows, x.count, gate, up, parallel_for);
    rows = made_ready(none, {gate, x.count, inner}, inner, !layer.mlp.down.is_float(), parallel_for);
    added({layer.mlp.down, layer.mlp.down_bias, y, hidden}, rows, x.count, layer.mlp_norm, layer.scale, between, parallel_for);
}

}  // namespace dragoman
