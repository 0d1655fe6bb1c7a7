// Compares experts, shared among threads, with the gated MLP of each one in turn, bit for bit, for hostile shapes and choices.
#include "experts.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "pack.hpp"

namespace {

using dragoman::Format;
using dragoman::Matrix;

std::mt19937 generator(11);

int random_below(int limit) { return static_cast<int>(generator() % static_cast<unsigned>(limit)); }

std::vector<float> random_floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random_below(20001) - 10000) / 4000.0f;
    return values;
}

// Packed matrices of all experts in memory that ends where they end, so that the sanitizer sees what is read behind it.
struct Stack {
    Stack(Format format, int64_t group, int64_t outputs, int64_t columns, int64_t count)
        : first{format, group, outputs, columns, nullptr} {
        begin = static_cast<uint8_t*>(std::aligned_alloc(dragoman::kLine, static_cast<size_t>(first.bytes() * count)));
        first.data = begin;
        for (int64_t index = 0; index < count; ++index) {
            if (first.is_float()) {
                std::vector<uint16_t> values(static_cast<size_t>(outputs * columns));
                for (uint16_t& value : values)
                    value = static_cast<uint16_t>(random_below(2) << 15 | (14 << 10) | random_below(1024));
                pack_floats(first, 0, outputs, values.data(), begin + index * first.bytes());
                continue;
            }
            std::vector<uint8_t> codes(static_cast<size_t>(outputs * columns));
            std::vector<uint8_t> zeros(static_cast<size_t>(outputs * first.blocks()));
            std::vector<uint16_t> scales(zeros.size());
            for (uint8_t& code : codes) code = static_cast<uint8_t>(random_below(16));
            for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random_below(16));
            for (uint16_t& scale : scales) scale = static_cast<uint16_t>(5 << 10 | random_below(1024));
            pack_groups(first, 0, outputs, codes.data(), scales.data(), zeros.data(), begin + index * first.bytes());
        }
    }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    ~Stack() { std::free(begin); }

    Matrix matrix(int64_t index) const {
        Matrix one = first;
        one.data += index * one.bytes();
        return one;
    }

    Matrix first;
    uint8_t* begin;
};

void in_turn(int64_t count, const std::function<void(int64_t)>& body) {
    for (int64_t index = 0; index < count; ++index) body(index);
}

void on_three(int64_t count, const std::function<void(int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t first = 0; first < 3; ++first) {
        threads.emplace_back([=, &body] {
            for (int64_t index = first; index < count; index += 3) body(index);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

struct Sizes {
    int64_t experts, active, rows, columns, inner, outputs;
};

// Of gate, up and down.
struct Formats {
    Format gate, up, down;
};

bool holds(const Sizes& sizes, const Formats& formats, bool has_biases, dragoman::Gating gating) {
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
        dragoman::gated_mlp(expert(chosen[static_cast<size_t>(pair)]), {x.data() + row * sizes.columns, 1, sizes.columns},
                            one.data(), sizes.outputs, in_turn);
        for (size_t output = 0; output < one.size(); ++output)
            expected[static_cast<size_t>(row) * one.size() + output] += shares[static_cast<size_t>(pair)] * one[output];
    }
    dragoman::experts({expert(0), sizes.experts}, {chosen.data(), shares.data(), sizes.active},
                      {x.data(), sizes.rows, sizes.columns}, found.data(), sizes.outputs, on_three);
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
            if (holds(sizes, formats, has_biases, gating)) continue;
            ++failures;
            std::printf("experts: %lld, %lld of them for each of %lld rows, %lld columns, %lld inner, %lld outputs\n",
                        static_cast<long long>(sizes.experts), static_cast<long long>(sizes.active),
                        static_cast<long long>(sizes.rows), static_cast<long long>(sizes.columns),
                        static_cast<long long>(sizes.inner), static_cast<long long>(sizes.outputs));
        }
    }
    return failures;
}
