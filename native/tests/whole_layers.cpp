// Compares layers that run in one call, shared among threads, with the same operations one after the other, bit for bit.
#include <cstdio>
#include <cstring>
#include <vector>

#include "layers.hpp"
#include "random.hpp"

namespace {

using dragoman::Format;
using dragoman::in_turn;
using dragoman::kSlots;
using dragoman::Layer;
using dragoman::on_three;
using dragoman::random_floats;
using dragoman::Stack;

using Floats = std::vector<float>;

constexpr int64_t kHidden = 48, kInner = 80, kHeads = 4, kKvHeads = 2, kHead = 16, kTurned = 8, kPast = 3;

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

// A layer's matrices and vectors, and its caches.
struct Weights {
    Weights()
        : q(Format::i4z, 32, kHeads * kHead, kHidden, 1),
          k(Format::i4z, 32, kKvHeads * kHead, kHidden, 1),
          v(Format::i8, kHidden, kKvHeads * kHead, kHidden, 1),
          output(Format::i4z, 32, kHidden, kHeads * kHead, 1),
          gate(Format::i4z, 32, kInner, kHidden, 1),
          up(Format::i4z, 32, kInner, kHidden, 1),
          down(Format::i4z, 32, kHidden, kInner, 1),
          norm(random_floats(kHidden)),
          by_head(random_floats(kHead)),
          bias(random_floats(kHeads * kHead)) {}

    Stack q, k, v, output, gate, up, down;
    Floats norm, by_head, bias;
};

// Runs of tokens, each behind `kPast` ones in blocks of its own.
struct Step {
    explicit Step(const std::vector<int32_t>& counts) {
        for (const int32_t count : counts) {
            for (int32_t token = 0; token < count; ++token) positions.push_back(static_cast<int32_t>(kPast) + token);
            past.push_back(static_cast<int32_t>(kPast));
            begins.push_back(static_cast<int32_t>(positions.size()));
            for (int64_t block = 0; block * kSlots < kPast + count; ++block)
                blocks.push_back(static_cast<int32_t>(blocks.size()));
            block_begins.push_back(static_cast<int32_t>(blocks.size()));
        }
        cos = random_floats(tokens() * kTurned);
        sin = random_floats(tokens() * kTurned);
    }
    int64_t tokens() const { return static_cast<int64_t>(positions.size()); }

    std::vector<int32_t> positions, past, begins = {0}, blocks, block_begins = {0};
    Floats cos, sin;
};

// Keys and values of a layer, the same numbers in each, so that what was written before is there.
struct Caches {
    Caches(const dragoman::Attention& how, const Step& step)
        : keys(step.blocks.size() * size_of(how.kv_heads * how.key_bytes()), 0),
          values(step.blocks.size() * size_of(how.kv_heads * how.value_bytes()), 0) {
        fill(keys);
        fill(values);
    }
    static void fill(std::vector<uint8_t>& bytes) {
        for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
            const float value = static_cast<float>(i % 97) / 97.0f - 0.5f;
            std::memcpy(&bytes[i], &value, sizeof(float));
        }
    }

    std::vector<uint8_t> keys, values;
};

dragoman::Attention attention_of(int64_t window) {
    dragoman::Attention how{};
    how.heads = kHeads;
    how.kv_heads = kKvHeads;
    how.head = how.value = kHead;
    how.scale = 0.25f;
    how.window = window;
    how.type = dragoman::CacheType::f32;
    return how;
}

Layer layer_of(const Weights& of, const Step& in, Caches& caches, int64_t window) {
    Layer layer{};
    layer.norm = {kHidden, of.norm.data(), 1e-6f};
    const Stack* stacks[] = {&of.q, &of.k, &of.v};
    for (int i = 0; i < 3; ++i) {
        layer.qkv[i] = {stacks[i]->matrix(0), i == 1 ? of.bias.data() : nullptr, nullptr, stacks[i]->first.outputs};
        layer.heads[i] = {{}, kHead, i == 2 ? 0 : kTurned};
    }
    layer.heads[0].norm = {kHead, of.by_head.data(), 1e-5f};
    layer.angles = {in.cos.data(), in.sin.data()};
    layer.attention = attention_of(window);
    layer.step.num_tokens = in.tokens();
    layer.step.num_rows = static_cast<int64_t>(in.past.size());
    layer.step.key_cache = caches.keys.data();
    layer.step.value_cache = caches.values.data();
    layer.step.num_blocks = layer.step.num_table_blocks = static_cast<int64_t>(in.blocks.size());
    layer.step.positions = in.positions.data();
    layer.step.past = in.past.data();
    layer.step.begins = in.begins.data();
    layer.step.blocks = in.blocks.data();
    layer.step.block_begins = in.block_begins.data();
    layer.rest.output = of.output.matrix(0);
    layer.rest.norm = {kHidden, of.norm.data(), 1e-6f};
    layer.rest.mlp = {of.gate.matrix(0), of.up.matrix(0), of.down.matrix(0), nullptr, nullptr, nullptr, {}};
    layer.rest.scale = 0.5f;
    return layer;
}

Floats rows_of(const Floats& from, int64_t width, const std::vector<int64_t>& rows) {
    Floats to;
    for (int64_t row : rows) to.insert(to.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
    return to;
}

// The layer's operations, each into memory of its own. `kept`: of the rows behind attention, null = all.
Floats by_parts(const Layer& layer, const Floats& x, const std::vector<int64_t>* kept) {
    const int64_t count = layer.step.num_tokens, width = kHeads * kHead;
    Floats q(size_of(count * width)), k(size_of(count * kKvHeads * kHead)), v(k.size()), attended(q.size());
    dragoman::Product qkv[] = {layer.qkv[0], layer.qkv[1], layer.qkv[2]};
    qkv[0].y = q.data();
    qkv[1].y = k.data();
    qkv[2].y = v.data();
    normed_products(layer.norm, qkv, layer.heads, 3, layer.angles, {x.data(), count, kHidden}, in_turn);
    dragoman::AttentionStep step = layer.step;
    step.q = q.data();
    step.k = k.data();
    step.v = v.data();
    step.y = attended.data();
    if (const char* fault = fault_of(layer.attention, step)) std::printf("a step that is right: %s\n", fault);
    attend(layer.attention, step, in_turn);
    const Floats residual = kept ? rows_of(x, kHidden, *kept) : x;
    if (kept) attended = rows_of(attended, width, *kept);
    const int64_t left = static_cast<int64_t>(residual.size()) / kHidden;
    Floats y(residual.size());
    output_and_mlp(layer.rest, {attended.data(), left, width}, residual.data(), y.data(), in_turn);
    return y;
}

bool same(const void* one, const void* other, size_t bytes) { return bytes == 0 || std::memcmp(one, other, bytes) == 0; }

bool whole_layers_hold(const std::vector<int32_t>& counts, size_t num_layers, const std::vector<int64_t>* kept) {
    const Step step(counts);
    std::vector<Weights> weights(num_layers);
    std::vector<Caches> caches, others;
    for (size_t i = 0; i < num_layers; ++i) {
        caches.emplace_back(attention_of(0), step);
        others.emplace_back(attention_of(0), step);
    }
    std::vector<Layer> layers;
    const Floats x = random_floats(step.tokens() * kHidden);
    Floats expected = x;
    for (size_t i = 0; i < num_layers; ++i) {
        const int64_t window = i % 2 ? 5 : 0;
        layers.push_back(layer_of(weights[i], step, caches[i], window));
        const bool is_last = i + 1 == num_layers;
        expected = by_parts(layer_of(weights[i], step, others[i], window), expected, is_last ? kept : nullptr);
    }
    Floats found(expected.size(), -1.0f);
    run_layers(layers, x.data(), kept, found.data(), on_three);
    bool holds = same(found.data(), expected.data(), found.size() * sizeof(float));
    for (size_t i = 0; i < num_layers; ++i) {
        holds = holds && same(caches[i].keys.data(), others[i].keys.data(), caches[i].keys.size());
        holds = holds && same(caches[i].values.data(), others[i].values.data(), caches[i].values.size());
    }
    return holds;
}

}  // namespace

// How many comparisons failed; each is told.
int count_failures_of_whole_layers() {
    int failures = 0;
    const std::vector<int64_t> none, few = {2, 0};
    for (const std::vector<int64_t>* kept : {static_cast<const std::vector<int64_t>*>(nullptr), &none, &few}) {
        for (const std::vector<int32_t>& counts : {std::vector<int32_t>{3}, {1, 1, 1}, {40, 1, 7}}) {
            for (size_t num_layers : {1, 2, 5}) {
                if (whole_layers_hold(counts, num_layers, kept)) continue;
                ++failures;
                std::printf("%zu whole layers: %zu rows, the first of %d tokens, %lld kept\n", num_layers, counts.size(),
                            counts[0], kept ? static_cast<long long>(kept->size()) : -1LL);
            }
        }
    }
    return failures;
}
