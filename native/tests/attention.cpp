// Compares attention, shared among threads, with a plain computation in f64, and with each token alone, bit for bit. Caches hold no
// numbers where nothing was written, and end where their memory ends.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention_kernels.hpp"
#include "kernels.hpp"
#include "random.hpp"

namespace {

using dragoman::Attention;
using dragoman::AttentionKernels;
using dragoman::AttentionStep;
using dragoman::CacheType;
using dragoman::in_turn;
using dragoman::kSlots;
using dragoman::on_three;
using dragoman::random_below;
using dragoman::random_floats;

using Floats = std::vector<float>;

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

// A sequence's numbers, and its blocks.
struct Text {
    Floats q, k, v;
    std::vector<int32_t> blocks;
    int32_t length;
};

struct Run {
    size_t text;
    int32_t begin, end;
};

struct Caches {
    Caches(const Attention& how, int64_t blocks)
        : count(blocks),
          keys(size_of(blocks * how.kv_heads * how.key_bytes()), 0xFF),
          values(size_of(blocks * how.kv_heads * how.value_bytes()), 0xFF) {}

    int64_t count;
    std::vector<uint8_t> keys, values;
};

// What the tokens of these runs read, one behind the other.
Floats read(const AttentionKernels& with, const Attention& how, const std::vector<Text>& texts, const std::vector<Run>& runs,
            Caches& caches, const dragoman::ParallelFor& parallel_for) {
    Floats q, k, v;
    std::vector<int32_t> positions, past, begins = {0}, blocks, block_begins = {0};
    const auto add = [](Floats& to, const Floats& from, int64_t width, const Run& run) {
        to.insert(to.end(), from.begin() + run.begin * width, from.begin() + run.end * width);
    };
    for (const Run& run : runs) {
        const Text& text = texts[run.text];
        add(q, text.q, how.heads * how.head, run);
        add(k, text.k, how.kv_heads * how.head, run);
        add(v, text.v, how.kv_heads * how.value, run);
        for (int32_t position = run.begin; position < run.end; ++position) positions.push_back(position);
        past.push_back(run.begin);
        begins.push_back(static_cast<int32_t>(positions.size()));
        blocks.insert(blocks.end(), text.blocks.begin(), text.blocks.begin() + (run.end + kSlots - 1) / kSlots);
        block_begins.push_back(static_cast<int32_t>(blocks.size()));
    }
    Floats y(positions.size() * size_of(how.heads * how.value), -1.0f);
    AttentionStep step{};
    step.num_tokens = static_cast<int64_t>(positions.size());
    step.num_rows = static_cast<int64_t>(runs.size());
    step.q = q.data();
    step.k = k.data();
    step.v = v.data();
    step.key_cache = caches.keys.data();
    step.value_cache = caches.values.data();
    step.num_blocks = caches.count;
    step.positions = positions.data();
    step.past = past.data();
    step.begins = begins.data();
    step.blocks = blocks.data();
    step.block_begins = block_begins.data();
    step.num_table_blocks = static_cast<int64_t>(blocks.size());
    step.y = y.data();
    if (const char* fault = fault_of(how, step)) std::printf("a step that is right: %s\n", fault);
    attend_with(with, how, step, parallel_for);
    return y;
}

// Whether what a token read is what it should, nearly.
bool is_near(const Attention& how, const Text& text, int64_t position, const float* found) {
    const double tolerance = how.type == CacheType::u8 ? 0.05 : how.type == CacheType::bf16 ? 0.03 : 0.004;
    const int64_t begin = how.window ? std::max<int64_t>(position - how.window + 1, 0) : 0;
    for (int64_t head = 0; head < how.heads; ++head) {
        const int64_t kv_head = head / how.group();
        std::vector<double> scores;
        for (int64_t other = begin; other <= position; ++other) {
            double score = 0;
            for (int64_t i = 0; i < how.head; ++i)
                score += static_cast<double>(text.q[size_of((position * how.heads + head) * how.head + i)]) *
                         text.k[size_of((other * how.kv_heads + kv_head) * how.head + i)];
            score *= how.scale;
            if (how.cap != 0) score = how.cap * std::tanh(score / how.cap);
            if (how.slopes) score += static_cast<double>(how.slopes[head]) * static_cast<double>(other - position);
            scores.push_back(score);
        }
        const double most = *std::max_element(scores.begin(), scores.end());
        double sum = how.sinks ? std::exp(how.sinks[head] - most) : 0;
        for (double& score : scores) sum += score = std::exp(score - most);
        for (int64_t i = 0; i < how.value; ++i) {
            double value = 0;
            for (int64_t other = begin; other <= position; ++other)
                value += scores[size_of(other - begin)] / sum * text.v[size_of((other * how.kv_heads + kv_head) * how.value + i)];
            if (!(std::fabs(value - found[head * how.value + i]) < tolerance)) return false;
        }
    }
    return true;
}

// Whether queries and weights are rounded to the cache's type.
bool rounds([[maybe_unused]] const AttentionKernels& with, [[maybe_unused]] const Attention& how) {
#if defined(DRAGOMAN_HAS_AVX512BF16)
    return how.type == CacheType::bf16 && &with == &dragoman::kAvx512Bf16Attention;
#else
    return false;
#endif
}

bool holds(const AttentionKernels& with, const Attention& how, const std::vector<int32_t>& lengths, int32_t num_shared,
           const std::vector<int32_t>& newer) {
    std::vector<Text> texts;
    int32_t next = 0;
    for (int32_t length : lengths) {
        Text text = {random_floats(length * how.heads * how.head),
                     random_floats(length * how.kv_heads * how.head),
                     random_floats(length * how.kv_heads * how.value),
                     {},
                     length};
        const int32_t shared = texts.empty() ? 0 : std::min({num_shared, (length - 1) / 32, (texts[0].length - 1) / 32});
        const auto take = [&](Floats& to, const Floats& from, int64_t width) {
            std::copy_n(from.begin(), shared * kSlots * width, to.begin());
        };
        if (shared) {
            take(text.k, texts[0].k, how.kv_heads * how.head);
            take(text.v, texts[0].v, how.kv_heads * how.value);
            text.blocks.assign(texts[0].blocks.begin(), texts[0].blocks.begin() + shared);
        }
        while (static_cast<int64_t>(text.blocks.size()) * kSlots < length) text.blocks.push_back(next++);
        texts.push_back(text);
    }
    // All but the last tokens, then these together, as runs or one by one.
    Caches together(how, next), alone(how, next);
    std::vector<Run> before, step;
    for (size_t i = 0; i < texts.size(); ++i) {
        const int32_t length = texts[i].length, begin = std::max(length - newer[i % newer.size()], 0);
        if (begin) before.push_back({i, 0, begin});
        if (i % 2) {
            for (int32_t position = begin; position < length; ++position) step.push_back({i, position, position + 1});
        } else {
            step.push_back({i, begin, length});
        }
    }
    if (!before.empty()) read(with, how, texts, before, together, on_three);
    const Floats found = read(with, how, texts, step, together, on_three);
    for (const Run& run : before) read(with, how, texts, {run}, alone, in_turn);
    const float* at = found.data();
    bool is_right = true;
    for (const Run& run : step) {
        for (int32_t position = run.begin; position < run.end; ++position, at += how.heads * how.value) {
            const Floats again = read(with, how, texts, {{run.text, position, position + 1}}, alone, in_turn);
            is_right = is_right && std::memcmp(again.data(), at, again.size() * sizeof(float)) == 0;
            if (run.text == 0 && !rounds(with, how)) {
                const Floats same = read(*dragoman::kPlain.attention, how, texts, {{0, position, position + 1}}, alone, in_turn);
                is_right = is_right && std::memcmp(again.data(), same.data(), same.size() * sizeof(float)) == 0;
            }
            is_right = is_right && is_near(how, texts[run.text], position, at);
        }
    }
    return is_right;
}

// Whether tokens that see a number that is none read none, and those before it do not.
bool keeps_none(const AttentionKernels& with, CacheType kind) {
    const Attention how = {2, 1, 6, 18, 0.4f, 0, 0, kind, nullptr, nullptr};
    const int32_t length = 40, place = 35;
    for (int which = 0; which < 3; ++which) {
        Text text = {random_floats(length * how.heads * how.head),
                     random_floats(length * how.kv_heads * how.head),
                     random_floats(length * how.kv_heads * how.value),
                     {0, 1},
                     length};
        Floats& spoiled = which == 0 ? text.q : which == 1 ? text.k : text.v;
        spoiled[spoiled.size() / length * place] = NAN;
        Caches caches(how, 2);
        for (int32_t position = 0; position < length; ++position) {
            const Floats y = read(with, how, {text}, {{0, position, position + 1}}, caches, in_turn);
            if (std::isnan(y[0]) != (which == 0 ? position == place : position >= place)) return false;
        }
    }
    return true;
}

// What is wrong with tables is told.
int faults_missed() {
    const Attention how = {1, 1, 4, 4, 1.0f, 0.0f, 0, CacheType::f32, nullptr, nullptr};
    Caches caches(how, 2);
    int missed = 0;
    const auto check = [&](std::vector<int32_t> positions, std::vector<int32_t> past, std::vector<int32_t> begins,
                           std::vector<int32_t> blocks, std::vector<int32_t> block_begins, bool is_right) {
        AttentionStep step{};
        step.num_tokens = static_cast<int64_t>(positions.size());
        step.num_rows = static_cast<int64_t>(past.size());
        step.num_blocks = caches.count;
        step.positions = positions.data();
        step.past = past.data();
        step.begins = begins.data();
        step.blocks = blocks.data();
        step.block_begins = block_begins.data();
        step.num_table_blocks = static_cast<int64_t>(blocks.size());
        if ((fault_of(how, step) == nullptr) == is_right) return;
        ++missed;
        std::printf("attention: tables that are %s are not\n", is_right ? "right" : "wrong");
    };
    check({3, 4}, {3}, {0, 2}, {1}, {0, 1}, true);
    check({3, 4}, {3}, {0, 1}, {1}, {0, 1}, false);
    check({3, 5}, {3}, {0, 2}, {1}, {0, 1}, false);
    check({3, 4}, {4}, {0, 2}, {1}, {0, 1}, false);
    check({35, 36}, {3}, {0, 2}, {1}, {0, 1}, false);
    check({31, 32}, {31}, {0, 2}, {1}, {0, 1}, false);
    check({3, 4}, {3}, {0, 2}, {2}, {0, 1}, false);
    check({3, 4}, {3}, {0, 2}, {-1}, {0, 1}, false);
    check({3, 4}, {3}, {0, 2}, {1}, {0, 2}, false);
    check({3, 4}, {3}, {0, 2}, {1}, {-1, 1}, false);
    check({3, 4}, {3, 4}, {0, 9, 2}, {1, 1}, {0, 1, 2}, false);
    check({3, 4}, {3, 4}, {0, 2, 2}, {1, 1}, {0, 1, 2}, false);
    return missed;
}

}  // namespace

// Every second one has a single new token, and with three heads of keys they are enough to read their whole contexts, two parts, in a task.
const std::vector<int32_t> kManySingles = {1, 258, 1, 257, 1, 290, 1, 300, 1, 259, 1, 320};

// How many comparisons failed; each is told.
int count_failures_of_attention() {
    int failures = faults_missed();
    const Floats numbers = random_floats(64);
    const float *sinks = numbers.data(), *slopes = sinks + 32;
    std::vector<const AttentionKernels*> all = {dragoman::kPlain.attention};
    for (const dragoman::Kernels* with : dragoman::usable_kernels()) all.push_back(with->attention);
#if defined(DRAGOMAN_HAS_AVX512BF16)
    if (__builtin_cpu_supports("avx512bf16")) all.push_back(&dragoman::kAvx512Bf16Attention);
#endif
    for (size_t set = 0; set < all.size(); ++set) {
        const AttentionKernels& with = *all[set];
        for (int type = 0; type < static_cast<int>(CacheType::count); ++type) {
            const auto kind = static_cast<CacheType>(type);
            const Attention hows[] = {
                {2, 1, 8, 8, 0.3f, 0, 0, kind, nullptr, nullptr},   {3, 3, 1, 1, 1.0f, 0, 0, kind, nullptr, nullptr},
                {6, 2, 5, 33, 0.3f, 0, 40, kind, sinks, nullptr},   {1, 1, 70, 17, 0.1f, 3.0f, 0, kind, nullptr, nullptr},
                {20, 1, 4, 16, 0.5f, 0, 1, kind, nullptr, nullptr}, {4, 2, 6, 18, 0.4f, 0, 0, kind, sinks, slopes},
            };
            if (!keeps_none(with, kind)) {
                ++failures;
                std::printf("kernels %d: attention to what is no number, cache %d\n", static_cast<int>(set), type);
            }
            for (int index = 0; index < 6; ++index) {
                const Attention& how = hows[index];
                const bool is_long = (index + type) % 4 == 1;  // which takes time with sanitizers
                if (holds(with, how, {1}, 0, {1}) && holds(with, how, {33, 3, 66, 40}, 1, {1, 2, 35, 2}) &&
                    (!is_long || holds(with, how, {258, 257, 260}, 8, {1, 2, 3})) &&
                    (how.kv_heads < 3 || holds(with, how, kManySingles, 0, {1})))
                    continue;
                ++failures;
                std::printf("kernels %d: attention of %lld heads by %lld, window %lld, cache %d\n", static_cast<int>(set),
                            static_cast<long long>(how.heads), static_cast<long long>(how.head),
                            static_cast<long long>(how.window), type);
            }
        }
    }
    return failures;
}
