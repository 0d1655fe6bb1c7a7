// Compares recurrences, shared among threads, with plain computations in f64, and however a sequence is cut into steps and whoever is
// beside it, bit for bit, with kernels without vectors. Blocks hold no numbers where nothing was written.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "random.hpp"
#include "recurrence_kernels.hpp"

namespace {

using dragoman::in_turn;
using dragoman::kSlots;
using dragoman::on_three;
using dragoman::random_below;
using dragoman::random_floats;
using dragoman::RecurrenceKernels;
using dragoman::StateTables;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr int64_t kBlocks = 10, kLineFloats = 16;

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

// A kind of recurrence: the widths of its rows of tokens, the numbers of what a block keeps, and the width of what it gives.
struct Kind {
    const char* name;
    std::vector<int64_t> rows;
    int64_t kept, width;
    std::function<void(const RecurrenceKernels&, const StateTables&, const std::vector<Floats>&, float*, float*,
                       const dragoman::ParallelFor&)>
        run;
    std::function<Doubles(const std::vector<Floats>&, int64_t)> expected;  // of a sequence of so many tokens
};

struct Text {
    std::vector<Floats> rows;
    std::vector<int32_t> blocks;
    int32_t length;
};

struct Run {
    size_t text;
    int32_t begin, end;
};

Floats step(const RecurrenceKernels& with, const Kind& kind, const std::vector<Text>& texts, const std::vector<Run>& runs,
            float* kept, const dragoman::ParallelFor& parallel_for) {
    std::vector<Floats> rows(kind.rows.size());
    std::vector<int32_t> past, begins = {0}, blocks, block_begins = {0};
    for (const Run& run : runs) {
        const Text& text = texts[run.text];
        for (size_t i = 0; i < rows.size(); ++i)
            rows[i].insert(rows[i].end(), text.rows[i].begin() + run.begin * kind.rows[i],
                           text.rows[i].begin() + run.end * kind.rows[i]);
        past.push_back(run.begin);
        begins.push_back(begins.back() + run.end - run.begin);
        blocks.insert(blocks.end(), text.blocks.begin(), text.blocks.begin() + (run.end + kSlots - 1) / kSlots);
        block_begins.push_back(static_cast<int32_t>(blocks.size()));
    }
    const StateTables tables = {begins.back(), static_cast<int64_t>(runs.size()),
                                kBlocks,       static_cast<int64_t>(blocks.size()),
                                past.data(),   begins.data(),
                                blocks.data(), block_begins.data()};
    Floats y(size_of(tables.num_tokens * kind.width), NAN);
    if (dragoman::fault_of(tables) != nullptr) return y;
    kind.run(with, tables, rows, kept, y.data(), parallel_for);
    return y;
}

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Kind convolution(int64_t width, int64_t length, int64_t slots, bool has_silu, bool has_bias, const float* numbers) {
    const dragoman::Convolution how = {width, length, slots, has_silu, numbers, has_bias ? numbers + width * length : nullptr};
    return {"convolution",
            {width},
            slots * width,
            width,
            [=](auto& with, auto& tables, auto& rows, float* kept, float* y, auto& parallel_for) {
                dragoman::convolve(with, how, tables, rows[0].data(), kept, y, parallel_for);
            },
            [=](const std::vector<Floats>& rows, int64_t count) {
                Doubles y(size_of(count * width));
                for (int64_t i = 0; i < count * width; ++i) {
                    const int64_t token = i / width, channel = i % width;
                    double sum = how.bias == nullptr ? 0 : how.bias[channel];
                    for (int64_t back = 0; back < length && back <= token; ++back)
                        sum += double{how.taps[(length - 1 - back) * width + channel]} * rows[0][size_of(i - back * width)];
                    y[size_of(i)] = has_silu ? sum * sigmoid(sum) : sum;
                }
                return y;
            }};
}

Doubles normed(const float* from, int64_t count, bool is_normed) {
    double sum = is_normed ? 1e-6 : 1;
    for (int64_t i = 0; is_normed && i < count; ++i) sum += double{from[i]} * from[i];
    Doubles values(size_of(count));
    for (int64_t i = 0; i < count; ++i) values[size_of(i)] = from[i] / std::sqrt(sum);
    return values;
}

Kind heads(bool corrects, int64_t key_heads, int64_t num_heads, int64_t key, int64_t value, bool has_skips, float highest,
           const float* numbers) {
    const dragoman::HeadStates how = {corrects,
                                      key_heads,
                                      num_heads,
                                      key,
                                      value,
                                      0.01f,
                                      highest,
                                      numbers,
                                      numbers + num_heads,
                                      has_skips ? numbers + 2 * num_heads : nullptr};
    std::vector<int64_t> widths = {how.width(), num_heads};
    if (corrects) widths.push_back(num_heads);
    return {corrects ? "heads that correct" : "heads",
            widths,
            num_heads * key * value,
            num_heads * value,
            [=](auto& with, auto& tables, auto& rows, float* kept, float* y, auto& parallel_for) {
                const dragoman::HeadRows given = {rows[0].data(), rows[1].data(), corrects ? rows[2].data() : nullptr};
                dragoman::run_heads(with, how, tables, given, kept, y, parallel_for);
            },
            [=](const std::vector<Floats>& rows, int64_t count) {
                Doubles y(size_of(count * num_heads * value)), state(size_of(num_heads * key * value));
                for (int64_t i = 0; i < count * num_heads; ++i) {
                    const int64_t token = i / num_heads, head = i % num_heads, key_head = head / (num_heads / key_heads);
                    const float* mixed = rows[0].data() + token * how.width();
                    const float *at_values = mixed + (corrects ? 2 * how.key_width() : 0) + head * value,
                                *at_keys = mixed + (corrects ? how.key_width() : how.value_width()) + key_head * key,
                                *at_queries = mixed + (corrects ? 0 : how.value_width() + how.key_width()) + key_head * key;
                    const Doubles keys = normed(at_keys, key, corrects), queries = normed(at_queries, key, corrects);
                    double dt = softplus(double{rows[1][size_of(i)]} + how.biases[head]);
                    dt = std::fmin(std::fmax(dt, double{how.lowest}), double{how.highest});
                    const double left = std::exp(dt * how.rates[head]);
                    for (int64_t column = 0; column < value; ++column) {
                        double* s = state.data() + (head * value + column) * key;
                        double known = 0, sum = 0;
                        for (int64_t k = 0; k < key; ++k) s[k] *= left;
                        for (int64_t k = 0; k < key; ++k) known += s[k] * keys[size_of(k)];
                        double added = at_values[column] * dt;
                        if (corrects) added = (at_values[column] - known) * sigmoid(rows[2][size_of(i)]);
                        for (int64_t k = 0; k < key; ++k) s[k] += added * keys[size_of(k)];
                        for (int64_t k = 0; k < key; ++k) sum += s[k] * queries[size_of(k)];
                        if (corrects) sum /= std::sqrt(static_cast<double>(key));
                        if (has_skips) sum += double{how.skips[head]} * at_values[column];
                        y[size_of(i * value + column)] = sum;
                    }
                }
                return y;
            }};
}

Kind channels(int64_t width, int64_t numbers_of_channel, const float* rates, const float* numbers) {
    const dragoman::ChannelStates how = {width, numbers_of_channel, rates, numbers, numbers + width};
    return {"channels",
            {width, width, numbers_of_channel, numbers_of_channel},
            width * numbers_of_channel,
            width,
            [=](auto& with, auto& tables, auto& rows, float* kept, float* y, auto& parallel_for) {
                const dragoman::ChannelRows given = {rows[0].data(), rows[1].data(), rows[2].data(), rows[3].data()};
                dragoman::run_channels(with, how, tables, given, kept, y, parallel_for);
            },
            [=](const std::vector<Floats>& rows, int64_t count) {
                Doubles y(size_of(count * width)), state(size_of(width * how.numbers));
                for (int64_t i = 0; i < count * width; ++i) {
                    const int64_t token = i / width, channel = i % width;
                    const double dt = softplus(double{rows[1][size_of(i)]} + how.biases[channel]), x = rows[0][size_of(i)];
                    double sum = how.skips[channel] * x;
                    for (int64_t n = 0; n < how.numbers; ++n) {
                        double& s = state[size_of(channel * how.numbers + n)];
                        s = s * std::exp(dt * how.rates[n * width + channel]) +
                            dt * x * rows[2][size_of(token * how.numbers + n)];
                        sum += s * rows[3][size_of(token * how.numbers + n)];
                    }
                    y[size_of(i)] = sum;
                }
                return y;
            }};
}

Kind gates(int64_t width, const float* rates) {
    const dragoman::GatedStates how = {width, rates};
    return {"gates",
            {width, width, width},
            width,
            width,
            [=](auto& with, auto& tables, auto& rows, float* kept, float* y, auto& parallel_for) {
                const dragoman::GatedRows given = {rows[0].data(), rows[1].data(), rows[2].data()};
                dragoman::run_gates(with, how, tables, given, kept, y, parallel_for);
            },
            [=](const std::vector<Floats>& rows, int64_t count) {
                Doubles y(size_of(count * width));
                for (int64_t i = 0; i < count * width; ++i) {
                    const double power = how.rates[i % width] * sigmoid(rows[2][size_of(i)]);
                    const double added = sigmoid(rows[1][size_of(i)]) * rows[0][size_of(i)];
                    const bool begins = i < width;
                    y[size_of(i)] =
                        begins ? added : std::exp(power) * y[size_of(i - width)] + std::sqrt(1 - std::exp(2 * power)) * added;
                }
                return y;
            }};
}

// Whether three sequences, cut and mixed in several ways, give the same bits as kernels without vectors, and what f64 gives.
bool holds(const RecurrenceKernels& with, const Kind& kind) {
    const int32_t lengths[] = {70, 33, 5};
    std::vector<Text> texts;
    int32_t block = 9;
    for (int32_t length : lengths) {
        Text text{{}, {}, length};
        for (int64_t width : kind.rows) text.rows.push_back(random_floats(length * width));
        for (int32_t i = 0; i < (length + kSlots - 1) / kSlots; ++i) text.blocks.push_back(block--);
        texts.push_back(text);
    }
    const auto compute = [&](const RecurrenceKernels& kernels, const std::vector<std::vector<Run>>& steps,
                             const dragoman::ParallelFor& parallel_for) {
        Floats memory(size_of(kBlocks * kind.kept + kLineFloats), NAN);
        float* kept = memory.data();
        while (reinterpret_cast<uintptr_t>(kept) % dragoman::kLine != 0)
            ++kept;  // as graphs have it: some stores need whole lines
        std::vector<Floats> y(texts.size());
        for (size_t i = 0; i < y.size(); ++i) y[i].resize(size_of(lengths[i] * kind.width));
        for (const std::vector<Run>& runs : steps) {
            const Floats found = step(kernels, kind, texts, runs, kept, parallel_for);
            const float* from = found.data();
            for (const Run& run : runs) {
                std::memcpy(y[run.text].data() + run.begin * kind.width, from,
                            sizeof(float) * size_of((run.end - run.begin) * kind.width));
                from += (run.end - run.begin) * kind.width;
            }
        }
        return y;
    };
    const std::vector<Floats> plain = compute(dragoman::kPlainRecurrence, {{{0, 0, 70}}, {{1, 0, 33}}, {{2, 0, 5}}}, in_turn);
    const std::vector<std::vector<Run>> together = {{{0, 0, 70}, {1, 0, 33}, {2, 0, 5}}},
                                        cut = {{{1, 0, 1}, {0, 0, 31}},
                                               {{0, 31, 32}, {1, 1, 2}, {2, 0, 4}},
                                               {{1, 2, 32}, {0, 32, 63}, {2, 4, 5}},
                                               {{0, 63, 64}, {0, 64, 65}, {1, 32, 33}},
                                               {{0, 65, 70}}};
    bool is_right = true;
    for (const auto& steps : {together, cut}) {
        const std::vector<Floats> found = compute(with, steps, on_three);
        for (size_t i = 0; i < found.size(); ++i)
            is_right = is_right && std::memcmp(found[i].data(), plain[i].data(), sizeof(float) * found[i].size()) == 0;
    }
    for (size_t i = 0; i < texts.size(); ++i) {
        const Doubles expected = kind.expected(texts[i].rows, lengths[i]);
        double most = 0, apart = 0;
        for (size_t j = 0; j < expected.size(); ++j) {
            most = std::fmax(most, std::fabs(expected[j]));
            apart = std::fmax(apart, std::fabs(expected[j] - plain[i][j]));
        }
        is_right = is_right && apart <= 1e-5 * most;  // false if it is no number
    }
    return is_right;
}

int faults_missed() {
    int missed = 0;
    const auto check = [&](std::vector<int32_t> past, std::vector<int32_t> begins, std::vector<int32_t> blocks,
                           std::vector<int32_t> block_begins, bool is_right) {
        const StateTables tables = {2,
                                    static_cast<int64_t>(past.size()),
                                    2,
                                    static_cast<int64_t>(blocks.size()),
                                    past.data(),
                                    begins.data(),
                                    blocks.data(),
                                    block_begins.data()};
        if ((dragoman::fault_of(tables) == nullptr) == is_right) return;
        ++missed;
        std::printf("recurrences: tables that are %s are not\n", is_right ? "right" : "wrong");
    };
    check({3}, {0, 2}, {1}, {0, 1}, true);
    check({30}, {0, 2}, {1}, {0, 1}, true);
    check({31}, {0, 2}, {1}, {0, 1}, false);
    check({-1}, {0, 2}, {1}, {0, 1}, false);
    check({3}, {0, 1}, {1}, {0, 1}, false);
    check({3}, {0, 2}, {2}, {0, 1}, false);
    check({3}, {0, 2}, {-1}, {0, 1}, false);
    check({3}, {0, 2}, {1}, {0, 2}, false);
    check({3}, {0, 2}, {1}, {-1, 1}, false);
    check({3, 4}, {0, 9, 2}, {1, 1}, {0, 1, 2}, false);
    check({3, 4}, {0, 2, 2}, {1, 1}, {0, 1, 2}, false);
    return missed;
}

}  // namespace

// How many comparisons failed; each is told.
int count_failures_of_recurrences() {
    int failures = faults_missed();
    Floats numbers = random_floats(400), rates = random_floats(400);
    for (float& rate : rates) rate = -std::fabs(rate) - 0.01f;
    std::vector<const RecurrenceKernels*> all = {&dragoman::kPlainRecurrence};
    for (const dragoman::Kernels* with : dragoman::usable_kernels()) {
#if defined(DRAGOMAN_HAS_AVX2)
        if (with->attention == &dragoman::kAvx2Attention) all.push_back(&dragoman::kAvx2Recurrence);
#endif
#if defined(DRAGOMAN_HAS_AVX512VNNI)
        if (with->attention == &dragoman::kAvx512Attention) all.push_back(&dragoman::kAvx512Recurrence);
#endif
#if defined(DRAGOMAN_HAS_NEON)
        if (with->attention == &dragoman::kNeonAttention) all.push_back(&dragoman::kNeonRecurrence);
#endif
    }
    Floats of_heads(16);
    for (size_t i = 0; i < of_heads.size(); ++i) of_heads[i] = i < 4 ? rates[i] : numbers[i];
    const Kind kinds[] = {
        convolution(3, 4, 3, true, true, numbers.data()),
        convolution(70, 3, 2, false, false, numbers.data()),
        convolution(5, 2, 32, false, true, numbers.data()),
        convolution(1, 40, 32, true, false, numbers.data()),
        heads(true, 2, 4, 20, 6, false, 3e38f, of_heads.data()),
        heads(true, 1, 4, 3, 70, false, 3e38f, of_heads.data()),
        heads(false, 4, 4, 5, 33, true, 1.5f, of_heads.data()),
        heads(false, 2, 4, 17, 8, true, 3e38f, of_heads.data()),
        heads(true, 2, 4, 6, 128, false, 3e38f, of_heads.data()),
        heads(false, 1, 4, 6, 64, true, 3e38f, of_heads.data()),
        channels(7, 3, rates.data(), numbers.data()),
        channels(128, 3, rates.data(), numbers.data()),
        channels(66, 4, rates.data(), numbers.data()),
        gates(9, rates.data()),
        gates(67, rates.data()),
    };
    for (size_t set = 0; set < all.size(); ++set) {
        for (const Kind& kind : kinds) {
            if (holds(*all[set], kind)) continue;
            ++failures;
            std::printf("kernels %d: %s of width %lld\n", static_cast<int>(set), kind.name, static_cast<long long>(kind.width));
        }
    }
    return failures;
}
