// Compares experts, shared among threads, with the MLP of each one in turn, bit for bit, for hostile shapes and choices.
#include "experts.hpp"

#include <cstdio>
#include <cstring>
#include <vector>

#include "random.hpp"

namespace {

using dragoman::Format;
using dragoman::in_turn;
using dragoman::on_three;
using dragoman::random_below;
using dragoman::random_floats;
using dragoman::Stack;

struct Sizes {
    int64_t experts, active, rows, columns, inner, outputs;
};

// Of gate, up and down.
struct Formats {
    Format gate, up, down;
};

bool holds(const Sizes& sizes, const Formats& formats, bool has_biases, bool is_gated, dragoman::Gating gating) {
    const Stack gate(formats.gate, 32, sizes.inner, sizes.columns, sizes.experts);
    const Stack up(formats.up, sizes.columns, sizes.inner, sizes.columns, sizes.experts);
    const Stack down(formats.down, sizes.inner, sizes.outputs, sizes.inner, sizes.experts);
    const std::vector<float> x = random_floats(sizes.rows * sizes.columns), shares = random_floats(sizes.rows * sizes.active);
    const std::vector<float> inner_bias = random_floats(sizes.experts * sizes.inner),
                             bias = random_floats(sizes.experts * sizes.outputs);
    std::vector<int32_t> chosen(shares.size());
    for (int32_t& expert : chosen) expert = random_below(static_cast<int>(sizes.experts));
    const auto at = [&](const std::vector<float>& biases, int64_t expert, int64_t outputs) {
        return has_biases ? biases.data() + expert * outputs : nullptr;
    };
    const auto expert = [&](int64_t index) {
        return dragoman::GatedMlp{gate.matrix(index),
                                  up.matrix(index),
                                  down.matrix(index),
                                  at(inner_bias, index, sizes.inner),
                                  at(inner_bias, index, sizes.inner),
                                  at(bias, index, sizes.outputs),
                                  gating};
    };
    std::vector<float> expected(static_cast<size_t>(sizes.rows * sizes.outputs), 0.0f), found(expected.size(), -1.0f);
    std::vector<float> one(static_cast<size_t>(sizes.outputs));
    for (int64_t pair = 0; pair < sizes.rows * sizes.active; ++pair) {
        const int64_t row = pair / sizes.active;
        const dragoman::GatedMlp its = expert(chosen[static_cast<size_t>(pair)]);
        const dragoman::Input input = {x.data() + row * sizes.columns, 1, sizes.columns};
        if (is_gated) {
            dragoman::gated_mlp(its, input, one.data(), sizes.outputs, in_turn);
        } else {  // whose activation is relu2
            std::vector<float> inner(static_cast<size_t>(sizes.inner));
            const dragoman::Product in = {its.gate, its.gate_bias, inner.data(), sizes.inner},
                                    out = {its.down, its.down_bias, one.data(), sizes.outputs};
            dragoman::products(&in, 1, input, in_turn);
            for (float& value : inner) value = value > 0 ? value * value : 0;
            dragoman::products(&out, 1, {inner.data(), 1, sizes.inner}, in_turn);
        }
        for (size_t output = 0; output < one.size(); ++output)
            expected[static_cast<size_t>(row) * one.size() + output] += shares[static_cast<size_t>(pair)] * one[output];
    }
    dragoman::GatedMlp first = expert(0);
    if (!is_gated) first.up = {}, first.up_bias = nullptr;
    dragoman::experts({first, sizes.experts}, {chosen.data(), shares.data(), sizes.active}, {x.data(), sizes.rows, sizes.columns},
                      found.data(), sizes.outputs, on_three);
    return found.empty() || std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0;
}

}  // namespace

// How many comparisons failed; each is told.
int count_failures_of_experts() {
    const Sizes all[] = {
        {4, 2, 0, 64, 32, 32},  {1, 1, 1, 32, 1, 1},     {8, 2, 1, 209, 33, 17}, {8, 3, 5, 64, 48, 40},
        {3, 2, 40, 96, 50, 33}, {300, 8, 2, 32, 32, 16}, {2, 1, 200, 32, 16, 1}, {5, 9, 7, 1, 31, 48},
    };
    const Formats integers = {Format::i4z, Format::i8, Format::i8z}, floats = {Format::f16, Format::f16, Format::f16},
                  both = {Format::i4z, Format::f16, Format::f16};
    int failures = 0;
    for (const Sizes& sizes : all) {
        for (const Formats& formats : {integers, floats, both}) {
            const bool has_biases = formats.up == Format::f16;
            dragoman::Gating gating;
            if (has_biases) gating = {dragoman::Activation::bounded_swiglu, 1.702f, 7.0f};
            if (holds(sizes, formats, has_biases, true, gating) &&
                holds(sizes, formats, has_biases, false, {dragoman::Activation::relu2}))
                continue;
            ++failures;
            std::printf("experts: %lld, %lld of them for each of %lld rows, %lld columns, %lld inner, %lld outputs\n",
                        static_cast<long long>(sizes.experts), static_cast<long long>(sizes.active),
                        static_cast<long long>(sizes.rows), static_cast<long long>(sizes.columns),
                        static_cast<long long>(sizes.inner), static_cast<long long>(sizes.outputs));
        }
    }
    return failures;
}
