// Compares what a layer computes before and behind attention, shared among threads, with each row alone and with the products,
// norms and sums that it consists of, bit for bit.
#include <cstdio>
#include <cstring>
#include <vector>

#include "layer.hpp"
#include "random.hpp"

namespace {

using dragoman::Format;
using dragoman::in_turn;
using dragoman::Norm;
using dragoman::on_three;
using dragoman::random_floats;
using dragoman::Stack;

using Floats = std::vector<float>;

bool same(const Floats& one, const Floats& other) {
    return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
}

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

struct Sizes {
    int64_t rows, columns, hidden, inner;
    bool has_norms;
};

// Heads of `head` values, all of which but two are turned.
bool projections_hold(const Sizes& sizes) {
    const int64_t head = 6, heads = 5, outputs = head * heads, turned = 4;
    const Stack queries(Format::i4z, 32, outputs, sizes.columns, 1),
        values(Format::i8, sizes.columns, sizes.hidden, sizes.columns, 1);
    const Floats x = random_floats(sizes.rows * sizes.columns), weight = random_floats(sizes.columns),
                 by_head = random_floats(head);
    const Floats cos = random_floats(sizes.rows * turned), sin = random_floats(sizes.rows * turned),
                 bias = random_floats(outputs);
    const Norm none{}, norm = sizes.has_norms ? Norm{sizes.columns, weight.data(), 1e-6f} : none;
    const dragoman::Heads how[] = {{sizes.has_norms ? Norm{head, by_head.data(), 1e-5f} : none, head, turned},
                                   {none, sizes.hidden, 0}};
    const auto computed = [&](int64_t first, int64_t count, const dragoman::ParallelFor& parallel_for) {
        Floats y(size_of(count * outputs)), z(size_of(count * sizes.hidden));
        const dragoman::Product all[] = {{queries.matrix(0), bias.data(), y.data(), outputs},
                                         {values.matrix(0), nullptr, z.data(), sizes.hidden}};
        normed_products(norm, all, how, 2, {cos.data() + first * turned, sin.data() + first * turned},
                        {x.data() + first * sizes.columns, count, sizes.columns}, parallel_for);
        y.insert(y.end(), z.begin(), z.end());
        return y;
    };
    const Floats together = computed(0, sizes.rows, on_three);
    bool holds = true;
    for (int64_t row = 0; row < sizes.rows; ++row) {
        Floats expected(size_of(outputs)), normed_row(x.begin() + row * sizes.columns, x.begin() + (row + 1) * sizes.columns);
        if (norm.size) normed(norm, normed_row.data(), sizes.columns, normed_row.data());
        const dragoman::Product product = {queries.matrix(0), bias.data(), expected.data(), outputs};
        dragoman::products(&product, 1, {normed_row.data(), 1, sizes.columns}, in_turn);
        if (how[0].norm.size) normed(how[0].norm, expected.data(), outputs, expected.data());
        for (int64_t begin = 0; begin < outputs; begin += head) {
            for (int64_t i = 0; i < turned / 2; ++i) {
                const int64_t first = begin + i, second = first + turned / 2, angle = row * turned + i;
                const float one = expected[size_of(first)], other = expected[size_of(second)];
                const size_t low = size_of(angle), high = size_of(angle + turned / 2);
                expected[size_of(first)] = one * cos[low] - other * sin[low];
                expected[size_of(second)] = other * cos[high] + one * sin[high];
            }
        }
        const Floats alone = computed(row, 1, in_turn);
        holds = holds && std::memcmp(alone.data(), expected.data(), expected.size() * sizeof(float)) == 0;
        holds = holds && std::memcmp(&together[size_of(row * outputs)], expected.data(), expected.size() * sizeof(float)) == 0;
        holds = holds && std::memcmp(&together[size_of(sizes.rows * outputs + row * sizes.hidden)], &alone[size_of(outputs)],
                                     size_of(sizes.hidden) * sizeof(float)) == 0;
    }
    return holds;
}

bool rest_holds(const Sizes& sizes, bool has_floats) {
    const int64_t hidden = sizes.hidden, inner = sizes.inner;
    const Stack output(Format::i4z, 32, hidden, sizes.columns, 1), gate(Format::i8, hidden, inner, hidden, 1);
    const Stack up(has_floats ? Format::f16 : Format::i4, has_floats ? hidden : 32, inner, hidden, 1),
        down(Format::i8z, inner, hidden, inner, 1);
    const Floats x = random_floats(sizes.rows * sizes.columns), residual = random_floats(sizes.rows * hidden);
    const Floats bias = random_floats(hidden), weight = random_floats(hidden);
    const Norm none{}, after = sizes.has_norms ? Norm{hidden, weight.data(), 1e-5f} : none;
    dragoman::OutputAndMlp layer{};
    layer.output = output.matrix(0);
    layer.output_bias = bias.data();
    layer.output_norm = layer.mlp_norm = after;
    layer.norm = {hidden, weight.data(), 1e-6f};
    layer.mlp = {gate.matrix(0), up.matrix(0), down.matrix(0), nullptr, nullptr, sizes.has_norms ? bias.data() : nullptr, {}};
    layer.scale = sizes.has_norms ? 0.25f : 1.0f;
    Floats together(residual.size(), -1.0f), expected;
    output_and_mlp(layer, {x.data(), sizes.rows, sizes.columns}, residual.data(), together.data(), on_three);
    bool holds = true;
    for (int64_t row = 0; row < sizes.rows; ++row) {
        const float* at = residual.data() + row * hidden;
        const dragoman::Input alone = {x.data() + row * sizes.columns, 1, sizes.columns};
        Floats y(size_of(hidden)), between(size_of(hidden)), inside(size_of(hidden)), found(size_of(hidden));
        const auto added = [&](const float* to) {
            if (after.size) normed(after, y.data(), hidden, y.data());
            for (size_t i = 0; i < y.size(); ++i) y[i] = to[i] + layer.scale * y[i];
        };
        const dragoman::Product product = {layer.output, layer.output_bias, y.data(), hidden};
        dragoman::products(&product, 1, alone, in_turn);
        added(at);
        between = y;
        normed(layer.norm, between.data(), hidden, inside.data());
        dragoman::gated_mlp(layer.mlp, {inside.data(), 1, hidden}, y.data(), hidden, in_turn);
        added(between.data());
        output_and_mlp(layer, alone, at, found.data(), in_turn);
        holds = holds && same(found, y);
        expected.insert(expected.end(), y.begin(), y.end());
    }
    return holds && same(together, expected);
}

}  // namespace

// How many comparisons failed; each is told.
int count_failures_of_layers() {
    int failures = 0;
    for (bool has_norms : {false, true}) {
        for (const Sizes& sizes :
             {Sizes{0, 64, 32, 32, has_norms}, Sizes{1, 1, 1, 1, has_norms}, Sizes{5, 209, 33, 17, has_norms},
              Sizes{40, 96, 64, 50, has_norms}, Sizes{130, 32, 48, 48, has_norms}}) {
            for (const bool holds : {projections_hold(sizes), rest_holds(sizes, false), rest_holds(sizes, true)}) {
                if (holds) continue;
                ++failures;
                std::printf("layers: %lld rows, %lld columns, %lld hidden, %lld inner, norms: %d\n",
                            static_cast<long long>(sizes.rows), static_cast<long long>(sizes.columns),
                            static_cast<long long>(sizes.hidden), static_cast<long long>(sizes.inner), has_norms);
            }
        }
    }
    return failures;
}
