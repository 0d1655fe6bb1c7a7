// Runs layers on rows that lie in memory of the thread. See layers.hpp.
#include "layers.hpp"

#include <algorithm>

#include "parts.hpp"

namespace dragoman {
namespace {

struct Scratch {
    std::vector<float> q, k, v, attended, residuals[2], kept_attended, kept_residual;
};

Scratch& scratch() {
    static thread_local Scratch held_by_thread;
    return held_by_thread;
}

const float* picked(const float* from, int64_t width, const std::vector<int64_t>& rows, std::vector<float>& memory) {
    float* to = held(memory, static_cast<int64_t>(rows.size()) * width);
    for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from + rows[i] * width, width, to + static_cast<int64_t>(i) * width);
    return to;
}

}  // namespace

void run_layers(const std::vector<Layer>& layers, const float* x, const std::vector<int64_t>* kept, float* y,
                const ParallelFor& parallel_for) {
    Scratch& memory = scratch();
    const float* residual = x;
    for (size_t i = 0; i < layers.size(); ++i) {
        const Layer& layer = layers[i];
        const bool is_last = i + 1 == layers.size();
        int64_t count = layer.step.num_tokens;
        const int64_t hidden = layer.rest.output.outputs, width = layer.rest.output.columns;

        Product qkv[3];
        std::vector<float>* results[] = {&memory.q, &memory.k, &memory.v};
        for (int part = 0; part < 3; ++part) {
            qkv[part] = layer.qkv[part];
            qkv[part].y = held(*results[part], count * qkv[part].stride);
        }
        normed_products(layer.norm, qkv, layer.heads, 3, layer.angles, {residual, count, hidden}, parallel_for);

        AttentionStep step = layer.step;
        step.q = qkv[0].y;
        step.k = qkv[1].y;
        step.v = qkv[2].y;
        step.y = held(memory.attended, count * width);
        attend(layer.attention, step, parallel_for);

        const float* attended = step.y;
        if (is_last && kept) {
            attended = picked(attended, width, *kept, memory.kept_attended);
            residual = picked(residual, hidden, *kept, memory.kept_residual);
            count = static_cast<int64_t>(kept->size());
        }
        float* next = is_last ? y : held(memory.residuals[i % 2], count * hidden);
        output_and_mlp(layer.rest, {attended, count, width}, residual, next, parallel_for);
        residual = next;
    }
}

}  // namespace dragoman
