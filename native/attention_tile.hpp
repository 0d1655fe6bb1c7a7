// Attention as templates over an instruction set. Included by the file of each.
//
// Scores are sums over a head's numbers in their order, and what is mixed are sums over slots in theirs: one chain of
// `fma` for each result, so that it does not matter how many rows and vectors are computed at once. Slots that a row does not see have
// the weight 0, which adds nothing. Many rows read a block that is widened to f32 once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "activation.hpp"
#include "attention_kernels.hpp"
#include "kernels.hpp"
#include "quantise.hpp"
#include "static_for.hpp"

namespace dragoman {

// The first lane.
template <class Isa>
DRAGOMAN_INLINE float first_of(typename Isa::Flt values) {
    float all[Isa::lanes];
    Isa::store(all, values);
    return all[0];
}

// As many numbers of a cache as a vector has, from number `index` on.
template <class Isa, CacheType C>
DRAGOMAN_INLINE typename Isa::Flt numbers_at(const uint8_t* from, int64_t index) {
    if constexpr (C == CacheType::f32) return Isa::load(reinterpret_cast<const float*>(from) + index);
    if constexpr (C == CacheType::bf16) return Isa::from_bf16(from + 2 * index);
    if constexpr (C == CacheType::f16) return Isa::from_halves(from + 2 * index);
    if constexpr (C == CacheType::u8) return Isa::from_bytes(from + index);
}

// Whether an instruction set multiplies pairs of bf16.
template <class Isa, class = void>
struct HasPairs : std::false_type {};
template <class Isa>
struct HasPairs<Isa, std::void_t<decltype(Isa::has_pairs)>> : std::true_type {};

constexpr int64_t bytes_of(CacheType type) { return type == CacheType::f32 ? 4 : type == CacheType::u8 ? 1 : 2; }

template <class Isa, CacheType C>
class PartReader {
    using Flt = typename Isa::Flt;
    static constexpr int kLanes = Isa::lanes;
    static constexpr int kRows = Isa::attention_rows, kWide = Isa::attention_units;  // that are computed at once
    static constexpr int64_t kMany = 3 * kRows;                                      // rows, for which a block is widened
    static constexpr int64_t kBytes = bytes_of(C);
    static constexpr int kSums = 16 / kLanes;
    static constexpr bool kPairs = C == CacheType::bf16 && HasPairs<Isa>::value;

public:
    explicit PartReader(const PartOfRows& part)
        : part_(part),
          how_(*part.how),
          padded_(how_.padded()),
          first_(part.begin / kSlots),
          last_((part.end + kSlots - 1) / kSlots),
          widens_(C != CacheType::f32 && part.num_rows > kMany) {}

    void run() const {
        if constexpr (kPairs) pair_queries();
        for (int64_t block = first_; block < last_; ++block) scores_of(block);
        if constexpr (C == CacheType::u8) gather_scales();
        for (int64_t row = 0; row < part_.num_rows; ++row) soften(row);
        for (int64_t block = first_; block < last_; ++block) mix(block);
        if constexpr (C == CacheType::u8) {
            for (int64_t row = 0; row < part_.num_rows; ++row) {
                const Flt minimum = Isa::broadcast(part_.minima[row]);
                float* mixed = part_.mixed + row * padded_;
                for (int64_t i = 0; i < padded_; i += kLanes) Isa::store(mixed + i, Isa::add(Isa::load(mixed + i), minimum));
            }
        }
    }

private:
    // Calls `body` with constants and first rows of groups of nearly equal numbers of rows.
    template <class Body>
    void by_rows(const Body& body) const {
        const int64_t all = part_.num_rows;
        for (int64_t row = 0, groups = (all + kRows - 1) / kRows, count; groups; row += count, --groups) {
            count = (all - row + groups - 1) / groups;
            static_for<1, kRows + 1>([&](auto rows) {
                if (rows == count) body(rows, row);
            });
        }
    }

    const uint8_t* following(const uint8_t* const* blocks, int64_t block, const uint8_t* behind) const {
        return block + 1 < last_ ? blocks[block + 1] : behind;
    }

    // A block's numbers as f32, and lines of the next one asked for.
    void widen(const uint8_t* from, int64_t count, const uint8_t* next) const {
        constexpr int64_t kStep = kLine / kBytes;
        for (int64_t i = 0; i < count; i += kStep) {
            Isa::prefetch(next + i * kBytes);
            for (int64_t j = i; j < i + kStep && j < count; j += kLanes)
                Isa::store(part_.widened + j, numbers_at<Isa, C>(from, j));
        }
    }

    // --- scores -----------------------------------------------------------------------------------------------------------

    void scores_of(int64_t block) const {
        const uint8_t* keys = part_.keys[block];
        const uint8_t* next = following(part_.keys, block, part_.values[first_]);
        if constexpr (kPairs) {
            if (part_.num_rows > kRows) pair_keys(keys, next);
            by_rows([&](auto rows, int64_t row) {
                if (part_.num_rows > kRows)
                    add_pair_scores<false, rows>(keys, block, row, next);
                else
                    add_pair_scores<true, rows>(keys, block, row, next);
            });
        } else if (widens_) {
            widen(keys, how_.head * kSlots, next);
            const auto* wide = reinterpret_cast<const uint8_t*>(part_.widened);
            by_rows([&](auto rows, int64_t row) { add_scores<CacheType::f32, rows>(wide, keys, block, row, nullptr); });
        } else {
            by_rows([&](auto rows, int64_t row) { add_scores<C, rows>(keys, keys, block, row, row ? nullptr : next); });
        }
    }

    // `keys` are read, those of the cache or widened ones; `block_keys` are the cache's.
    template <CacheType From, int R>
    [[gnu::flatten, gnu::noinline]] void add_scores(const uint8_t* keys, const uint8_t* block_keys, int64_t block, int64_t row,
                                                    const uint8_t* next) const {
        const int64_t head = how_.head;
        const float* q = part_.q + row * head;
        float* scores = part_.scores + row * kPartTokens + block * kSlots;
        [[maybe_unused]] float first_key[R];  // the scores of the block's first key
        if constexpr (C == CacheType::u8)
            static_for<0, R>([&](auto r) { first_key[r] = score_of_first(block_keys, q + r * head); });
        for (int64_t slot = 0; slot < kSlots; slot += kWide * kLanes) {
            Flt total[R][kWide];
            static_for<0, R>([&](auto r) { static_for<0, kWide>([&](auto n) { total[r][n] = Isa::zero(); }); });
            const uint8_t* at = keys + slot * bytes_of(From);
            for (int64_t i = 0; i < head; ++i, at += kSlots * bytes_of(From)) {
                if (slot == 0 && next != nullptr) {
                    static_for<0, (kSlots * kBytes + kLine - 1) / kLine>(
                        [&](auto line) { Isa::prefetch(next + i * kSlots * kBytes + line * kLine); });
                }
                Flt factor[R];
                static_for<0, R>([&](auto r) { factor[r] = Isa::broadcast(q[r * head + i]); });
                static_for<0, kWide>([&](auto n) {
                    const Flt key = numbers_at<Isa, From>(at, n * kLanes);
                    static_for<0, R>([&](auto r) { total[r][n] = Isa::fma(key, factor[r], total[r][n]); });
                });
            }
            if constexpr (C == CacheType::u8) {
                const auto* scales = reinterpret_cast<const float*>(block_keys + how_.key_codes()) + slot;
                static_for<0, R>([&](auto r) {
                    const Flt sum = Isa::broadcast(part_.q_sums[row + r]), first = Isa::broadcast(first_key[r]);
                    static_for<0, kWide>([&](auto n) {
                        const Flt minima = Isa::fma(Isa::load(scales + kSlots + n * kLanes), sum, first);
                        total[r][n] = Isa::fma(Isa::load(scales + n * kLanes), total[r][n], minima);
                    });
                });
            }
            static_for<0, R>([&](auto r) {
                static_for<0, kWide>([&](auto n) { Isa::store(scores + r * kPartTokens + slot + n * kLanes, total[r][n]); });
            });
        }
    }

    [[gnu::noinline]] float score_of_first(const uint8_t* keys, const float* q) const {
        const uint8_t* first = keys + how_.key_codes() + how_.scale_bytes();
        Flt sum[kSums];
        static_for<0, kSums>([&](auto n) { sum[n] = Isa::zero(); });
        const auto add = [&](int64_t i, const float* from) {
            static_for<0, kSums>([&](auto n) {
                sum[n] = Isa::fma(Isa::from_bf16(first + 2 * (i + n * kLanes)), Isa::load(from + n * kLanes), sum[n]);
            });
        };
        int64_t i = 0;
        for (; i + kSums * kLanes <= how_.head; i += kSums * kLanes) add(i, q + i);
        if (i < how_.head) {
            float rest[kSums * kLanes] = {};
            std::memcpy(rest, q + i, sizeof(float) * static_cast<size_t>(how_.head - i));
            add(i, rest);
        }
        return total(sum);
    }

    // --- weights ----------------------------------------------------------------------------------------------------------

    // Scales and minima of values in 8 bits, zeros for slots that nobody sees.
    void gather_scales() const {
        std::memset(scales_, 0, sizeof(scales_));
        for (int64_t block = first_; block < last_; ++block) {
            const auto* from = reinterpret_cast<const float*>(part_.values[block] + how_.value_codes());
            const int64_t begin = most(block * kSlots, part_.begin), end = least((block + 1) * kSlots, part_.end);
            for (int64_t slot = begin; slot < end; ++slot) {
                scales_[0][slot] = from[slot - block * kSlots];
                scales_[1][slot] = from[kSlots + slot - block * kSlots];
            }
        }
    }

    static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
    static int64_t most(int64_t one, int64_t other) { return one > other ? one : other; }

    // Scores become weights.
    [[gnu::flatten]] void soften(int64_t row) const {
        const int64_t from = first_ * kSlots, to = last_ * kSlots;
        const int64_t begin = part_.begins[row], end = part_.ends[row];
        float* scores = part_.scores + row * kPartTokens;
        if (begin >= end) {
            std::fill(scores + from, scores + to, 0.0f);
            part_.most[row] = -INFINITY;
            part_.sums[row] = 0;
            if constexpr (C == CacheType::u8) part_.minima[row] = 0;
            return;
        }
        if (how_.cap != 0) {
            const Flt cap = Isa::broadcast(how_.cap), twice = Isa::broadcast(2 / how_.cap), minus = Isa::broadcast(-how_.cap);
            for (int64_t i = from; i < to; i += kLanes) {
                const Flt share = sigmoid<Isa>(Isa::mul(Isa::load(scores + i), twice));  // tanh(x) = 2 sigmoid(2 x) - 1
                Isa::store(scores + i, Isa::fma(Isa::add(share, share), cap, minus));
            }
        }
        if (part_.slopes != nullptr) {
            const Flt slope = Isa::broadcast(part_.slopes[row]);
            for (int64_t i = from; i < to; i += kLanes) {
                const Flt distance = Isa::add(Isa::load(kNumbers.all + i), Isa::broadcast(part_.distances[row]));
                Isa::store(scores + i, Isa::fma(slope, distance, Isa::load(scores + i)));
            }
        }
        std::fill(scores + from, scores + begin, -INFINITY);
        std::fill(scores + end, scores + to, -INFINITY);
        Flt highest = Isa::load(scores + from);
        for (int64_t i = from + kLanes; i < to; i += kLanes) highest = Isa::most(highest, Isa::load(scores + i));
        float all[kLanes];
        Isa::store(all, highest);
        float top = all[0];
        for (int lane = 1; lane < kLanes; ++lane) top = top > all[lane] ? top : all[lane];
        const Flt minus = Isa::broadcast(-top);
        for (int64_t i = from; i < to; i += kLanes) {
            const Flt below = Isa::add(Isa::load(scores + i), minus);
            // What is no number stays none.
            Isa::store(scores + i, Isa::fma(below, Isa::zero(), exponential<Isa>(below)));
        }
        std::fill(scores + from, scores + begin, 0.0f);
        std::fill(scores + end, scores + to, 0.0f);
        // Sums of every 16th weight, however many lanes there are, so that all instruction sets have the same bits.
        Flt sum[kSums], minimum[kSums];
        static_for<0, kSums>([&](auto n) { sum[n] = minimum[n] = Isa::zero(); });
        for (int64_t i = from; i < to; i += kSums * kLanes) {
            static_for<0, kSums>([&](auto n) {
                float* at = scores + i + n * kLanes;
                Flt weight = Isa::load(at);
                if constexpr (kPairs) {  // in place: halves lie before what is still to be read
                    auto* rounded = reinterpret_cast<uint16_t*>(scores) + i + n * kLanes;
                    Isa::store_bf16(rounded, weight);
                    weight = Isa::from_bf16(reinterpret_cast<const uint8_t*>(rounded));
                }
                sum[n] = Isa::add(sum[n], weight);
                if constexpr (C == CacheType::u8) {
                    minimum[n] = Isa::fma(weight, Isa::load(scales_[1] + (at - scores)), minimum[n]);
                    Isa::store(at, Isa::mul(weight, Isa::load(scales_[0] + (at - scores))));
                }
            });
        }
        part_.most[row] = top;
        part_.sums[row] = total(sum);
        if constexpr (C == CacheType::u8) part_.minima[row] = total(minimum);
    }

    static float total(const Flt (&sums)[kSums]) {
        float all[kSums * kLanes];
        static_for<0, kSums>([&](auto n) { Isa::store(all + n * kLanes, sums[n]); });
        for (int half = kSums * kLanes / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) all[i] += all[half + i];
        return all[0];
    }

    // --- values -----------------------------------------------------------------------------------------------------------

    void mix(int64_t block) const {
        const uint8_t* values = part_.values[block];
        const uint8_t* next = following(part_.values, block, part_.next);
        if constexpr (kPairs) {
            if (part_.num_rows > kRows) pair_values(values, block, next);
            by_rows([&](auto rows, int64_t row) {
                if (part_.num_rows > kRows)
                    add_pair_values<false, rows>(values, block, row, next);
                else
                    add_pair_values<true, rows>(values, block, row, next);
            });
        } else if (widens_) {
            widen(values, padded_ * kSlots, next);
            const auto* wide = reinterpret_cast<const uint8_t*>(part_.widened);
            by_rows([&](auto rows, int64_t row) { add_values<CacheType::f32, rows>(wide, block, row, nullptr); });
        } else {
            by_rows([&](auto rows, int64_t row) { add_values<C, rows>(values, block, row, row ? nullptr : next); });
        }
    }

    template <CacheType From, int R>
    [[gnu::flatten, gnu::noinline]] void add_values(const uint8_t* values, int64_t block, int64_t row,
                                                    const uint8_t* next) const {
        for (int64_t column = 0; column < padded_;) {
            const int64_t left = (padded_ - column) / kLanes;
            static_for<1, kWide + 1>([&](auto units) {
                if (units == (left < kWide ? left : kWide)) add_columns<From, R, units>(values, block, row, column, next);
            });
            column += kWide * kLanes;
        }
    }

    template <CacheType From, int R, int N>
    DRAGOMAN_INLINE void add_columns(const uint8_t* values, int64_t block, int64_t row, int64_t column,
                                     const uint8_t* next) const {
        const int64_t first = most(part_.begin - block * kSlots, 0), last = least(part_.end - block * kSlots, kSlots);
        const float* weights = part_.scores + row * kPartTokens + block * kSlots;
        float* mixed = part_.mixed + row * padded_ + column;
        Flt total[R][N];
        static_for<0, R>([&](auto r) {
            static_for<0, N>(
                [&](auto n) { total[r][n] = block == first_ ? Isa::zero() : Isa::load(mixed + r * padded_ + n * kLanes); });
        });
        for (int64_t slot = first; slot < last; ++slot) {
            const int64_t at = slot * padded_ + column;
            if (next != nullptr) {
                static_for<0, (N * kLanes * kBytes + kLine - 1) / kLine>(
                    [&](auto line) { Isa::prefetch(next + at * kBytes + line * kLine); });
            }
            Flt weight[R];
            static_for<0, R>([&](auto r) { weight[r] = Isa::broadcast(weights[r * kPartTokens + slot]); });
            static_for<0, N>([&](auto n) {
                const Flt value = numbers_at<Isa, From>(values, at + n * kLanes);
                static_for<0, R>([&](auto r) { total[r][n] = Isa::fma(value, weight[r], total[r][n]); });
            });
        }
        static_for<0, R>(
            [&](auto r) { static_for<0, N>([&](auto n) { Isa::store(mixed + r * padded_ + n * kLanes, total[r][n]); }); });
    }

    // --- pairs of bf16 ----------------------------------------------------------------------------------------------------
    //
    // Many rows read a block that is paired once, in `widened`: numbers 2 i and 2 i + 1 of a slot's keys, slots 2 i and 2 i + 1 of a number of values.

    int64_t pairs() const { return (how_.head + 1) / 2; }

    void pair_queries() const {
        const int64_t width = 2 * pairs();
        queries().resize(static_cast<size_t>(part_.num_rows * width + kLanes));
        for (int64_t row = 0; row < part_.num_rows; ++row) {
            const float* from = part_.q + row * how_.head;
            for (int64_t i = 0; i < width; i += kLanes) {
                float some[kLanes] = {};
                uint16_t rounded[kLanes];
                std::memcpy(some, from + i, sizeof(float) * static_cast<size_t>(least(kLanes, how_.head - i)));
                Isa::store_bf16(rounded, Isa::load(some));
                std::memcpy(queries().data() + row * width + i, rounded,
                            sizeof(uint16_t) * static_cast<size_t>(least(kLanes, width - i)));
            }
        }
    }

    static std::vector<uint16_t>& queries() {
        static thread_local std::vector<uint16_t> held_by_thread;
        return held_by_thread;
    }

    static int32_t pair_at(const uint16_t* from) {
        int32_t pair;
        std::memcpy(&pair, from, sizeof(pair));
        return pair;
    }

    // Pair i of the numbers of slots from `slot` on.
    auto key_pairs(const uint8_t* keys, int64_t i, int64_t slot) const {
        const uint8_t* first = keys + 2 * (2 * i * kSlots + slot);
        return Isa::pairs_of(first, 2 * i + 1 < how_.head ? first + 2 * kSlots : nullptr);
    }

    static void ask_for(const uint8_t* next, int64_t bytes) {
        for (int64_t line = 0; line < bytes; line += kLine) Isa::prefetch(next + line);
    }

    void pair_keys(const uint8_t* keys, const uint8_t* next) const {
        auto* to = reinterpret_cast<uint8_t*>(part_.widened);
        for (int64_t i = 0; i < pairs(); ++i) {
            ask_for(next + 4 * i * kSlots, 4 * kSlots);
            for (int64_t slot = 0; slot < kSlots; slot += kLanes)
                Isa::store(to + 4 * (i * kSlots + slot), key_pairs(keys, i, slot));
        }
    }

    // Direct: few rows, for which a block is paired while it is read.
    template <bool Direct, int R>
    [[gnu::flatten, gnu::noinline]] void add_pair_scores(const uint8_t* keys, int64_t block, int64_t row,
                                                         const uint8_t* next) const {
        const int64_t width = 2 * pairs();
        const uint16_t* q = queries().data() + row * width;
        const auto* paired = reinterpret_cast<const uint8_t*>(part_.widened);
        Flt total[R][kWide];
        static_assert(kWide * kLanes == kSlots, "a block is as wide as what is added up at once");
        static_for<0, R>([&](auto r) { static_for<0, kWide>([&](auto n) { total[r][n] = Isa::zero(); }); });
        for (int64_t i = 0; i < width / 2; ++i) {
            if constexpr (Direct) ask_for(next + 4 * i * kSlots, 4 * kSlots);
            static_for<0, kWide>([&](auto n) {
                const auto two = Direct ? key_pairs(keys, i, n * kLanes) : Isa::load(paired + 4 * (i * kSlots + n * kLanes));
                static_for<0, R>([&](auto r) {
                    total[r][n] = Isa::add_pairs(total[r][n], two, Isa::broadcast(pair_at(q + r * width + 2 * i)));
                });
            });
        }
        float* scores = part_.scores + row * kPartTokens + block * kSlots;
        static_for<0, R>([&](auto r) {
            static_for<0, kWide>([&](auto n) { Isa::store(scores + r * kPartTokens + n * kLanes, total[r][n]); });
        });
    }

    int64_t first_slot(int64_t block) const { return most(part_.begin - block * kSlots, 0); }
    int64_t end_slot(int64_t block) const { return least(part_.end - block * kSlots, kSlots); }

    // Slots `slot` and the next one of the numbers from `column` on; zeros of those that nobody sees.
    auto value_pairs(const uint8_t* values, int64_t slot, int64_t column, int64_t begin, int64_t end) const {
        const uint8_t* first = values + 2 * (slot * padded_ + column);
        return Isa::pairs_of(slot >= begin ? first : nullptr, slot + 1 < end ? first + 2 * padded_ : nullptr);
    }

    void pair_values(const uint8_t* values, int64_t block, const uint8_t* next) const {
        const int64_t begin = first_slot(block), end = end_slot(block);
        auto* to = reinterpret_cast<uint8_t*>(part_.widened);
        for (int64_t slot = begin / 2 * 2; slot < end; slot += 2) {
            ask_for(next + 2 * slot * padded_, 4 * padded_);
            for (int64_t i = 0; i < padded_; i += kLanes)
                Isa::store(to + 4 * (slot / 2 * padded_ + i), value_pairs(values, slot, i, begin, end));
        }
    }

    template <bool Direct, int R>
    [[gnu::flatten, gnu::noinline]] void add_pair_values(const uint8_t* values, int64_t block, int64_t row,
                                                         const uint8_t* next) const {
        for (int64_t column = 0; column < padded_; column += kWide * kLanes) {
            const int64_t left = (padded_ - column) / kLanes;
            static_for<1, kWide + 1>([&](auto units) {
                if (units == (left < kWide ? left : kWide)) add_pair_columns<Direct, R, units>(values, block, row, column, next);
            });
        }
    }

    template <bool Direct, int R, int N>
    DRAGOMAN_INLINE void add_pair_columns(const uint8_t* values, int64_t block, int64_t row, int64_t column,
                                          const uint8_t* next) const {
        const int64_t begin = first_slot(block), end = end_slot(block);
        float* mixed = part_.mixed + row * padded_ + column;
        const auto* paired = reinterpret_cast<const uint8_t*>(part_.widened + column);
        const uint16_t* weights[R];
        Flt total[R][N];
        static_for<0, R>([&](auto r) {
            weights[r] = reinterpret_cast<const uint16_t*>(part_.scores + (row + r) * kPartTokens) + block * kSlots;
            static_for<0, N>(
                [&](auto n) { total[r][n] = block == first_ ? Isa::zero() : Isa::load(mixed + r * padded_ + n * kLanes); });
        });
        for (int64_t slot = begin / 2 * 2; slot < end; slot += 2) {
            if constexpr (Direct) {
                Isa::prefetch(next + 2 * (slot * padded_ + column));
                Isa::prefetch(next + 2 * ((slot + 1) * padded_ + column));
            }
            static_for<0, N>([&](auto n) {
                const auto two = Direct ? value_pairs(values, slot, column + n * kLanes, begin, end)
                                        : Isa::load(paired + 4 * (slot / 2 * padded_ + n * kLanes));
                static_for<0, R>(
                    [&](auto r) { total[r][n] = Isa::add_pairs(total[r][n], two, Isa::broadcast(pair_at(weights[r] + slot))); });
            });
        }
        static_for<0, R>(
            [&](auto r) { static_for<0, N>([&](auto n) { Isa::store(mixed + r * padded_ + n * kLanes, total[r][n]); }); });
    }

    struct Numbers {
        float all[kPartTokens] = {};
        constexpr Numbers() {
            for (int i = 0; i < kPartTokens; ++i) all[i] = static_cast<float>(i);
        }
    };
    static constexpr Numbers kNumbers{};

    const PartOfRows& part_;
    const Attention& how_;
    const int64_t padded_, first_, last_;
    const bool widens_;
    mutable float scales_[C == CacheType::u8 ? 2 : 1][C == CacheType::u8 ? kPartTokens : 1];
};

template <class Isa>
void read_with(const PartOfRows& part) {
    switch (part.how->type) {
        case CacheType::f32: return PartReader<Isa, CacheType::f32>(part).run();
        case CacheType::bf16: return PartReader<Isa, CacheType::bf16>(part).run();
        case CacheType::f16: return PartReader<Isa, CacheType::f16>(part).run();
        default: return PartReader<Isa, CacheType::u8>(part).run();
    }
}

template <class Isa>
void join_with(RowState& state, float most, float sum, const float* mixed, int64_t padded) {
    if (sum == 0) return;
    if (state.sum == 0) {
        state.most = most;
        state.sum = sum;
        std::memcpy(state.mixed, mixed, sizeof(float) * padded);
        return;
    }
    const float top = state.most > most ? state.most : most;
    const auto before = exponential<Isa>(Isa::broadcast(state.most - top)), here = exponential<Isa>(Isa::broadcast(most - top));
    state.most = top;
    state.sum = state.sum * first_of<Isa>(before) + sum * first_of<Isa>(here);
    for (int64_t i = 0; i < padded; i += Isa::lanes) {
        const auto now = Isa::mul(Isa::load(mixed + i), here);
        Isa::store(state.mixed + i, Isa::fma(Isa::load(state.mixed + i), before, now));
    }
}

template <class Isa>
void finish_with(const RowState& state, int64_t value, float* y) {
    const float sum = state.sum;
    for (int64_t i = 0; i < value; ++i) y[i] = sum == 0 ? 0.0f : state.mixed[i] / sum;
}

// --- writing ------------------------------------------------------------------------------------------------------------

DRAGOMAN_INLINE uint16_t bf16_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const bool is_none = (bits & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<uint16_t>(is_none ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Codes of 8 bits of numbers, whose scale and minimum are written, too.
DRAGOMAN_INLINE void bytes_of_numbers(const float* from, int64_t count, uint8_t* codes, float* scale, float* minimum) {
    float lowest = from[0], highest = from[0];
    for (int64_t i = 0; i < count; ++i) {
        lowest = from[i] < lowest || std::isnan(from[i]) ? from[i] : lowest;
        highest = from[i] > highest ? from[i] : highest;
    }
    const float range = highest - lowest, inverse = range > kSmallest && range < INFINITY ? 255.0f / range : 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        const float code = (from[i] - lowest) * inverse + 0.5f;
        codes[i] = code > 0 ? static_cast<uint8_t>(code < 255 ? code : 255.0f) : 0;
    }
    *scale = inverse != 0 || std::isnan(range) ? range / 255.0f : range < INFINITY ? 0.0f : range;
    *minimum = lowest;
}

template <class Isa>
DRAGOMAN_INLINE void write_numbers(CacheType type, const float* from, int64_t count, int64_t step, int64_t at, uint8_t* to,
                                   float* scale, float* minimum) {
    if (type == CacheType::f32) {
        auto* numbers = reinterpret_cast<float*>(to) + at;
        for (int64_t i = 0; i < count; ++i) numbers[i * step] = from[i];
        return;
    }
    if (type == CacheType::u8) {
        uint8_t codes[kMostNumbers];
        bytes_of_numbers(from, count, codes, scale, minimum);
        for (int64_t i = 0; i < count; ++i) to[at + i * step] = codes[i];
        return;
    }
    auto* numbers = reinterpret_cast<uint16_t*>(to) + at;
    if (type == CacheType::bf16) {
        for (int64_t i = 0; i < count; ++i) numbers[i * step] = bf16_of(from[i]);
        return;
    }
    for (int64_t i = 0; i < count; i += Isa::lanes) {
        float some[Isa::lanes] = {};
        uint16_t halves[Isa::lanes];
        const int64_t here = count - i < Isa::lanes ? count - i : Isa::lanes;
        std::memcpy(some, from + i, sizeof(float) * here);
        Isa::store_halves(halves, Isa::load(some));
        for (int64_t j = 0; j < here; ++j) numbers[(i + j) * step] = halves[j];
    }
}

constexpr int64_t kSpread = 16;  // numbers that are spread over each other at once

// The rows of Hadamard's matrix of 16, whose numbers are 1 and -1.
struct Signs {
    float all[kSpread][kSpread] = {};
    constexpr Signs() {
        for (int row = 0; row < kSpread; ++row) {
            for (int column = 0; column < kSpread; ++column) {
                int common = row & column, sign = 1;
                for (; common; common &= common - 1) sign = -sign;
                all[row][column] = static_cast<float>(sign);
            }
        }
    }
};
constexpr Signs kSigns{};

// Spreads each `size` numbers, a power of two, over each other by Hadamard's matrix of that size: by that of 16, then from vector to vector.
template <class Isa>
[[gnu::flatten]] void spread_numbers(float* numbers, int64_t count, int64_t size) {
    constexpr int kLanes = Isa::lanes, kVectors = kSpread / kLanes;
    for (int64_t at = 0; size >= kSpread && at < count; at += kSpread) {
        typename Isa::Flt sum[kVectors];
        static_for<0, kVectors>([&](auto n) { sum[n] = Isa::zero(); });
        for (int64_t i = 0; i < kSpread; ++i) {
            const auto number = Isa::broadcast(numbers[at + i]);
            static_for<0, kVectors>([&](auto n) { sum[n] = Isa::fma(number, Isa::load(kSigns.all[i] + n * kLanes), sum[n]); });
        }
        static_for<0, kVectors>([&](auto n) { Isa::store(numbers + at + n * kLanes, sum[n]); });
    }
    for (int64_t width = size < kSpread ? 1 : kSpread; width < size; width *= 2) {
        for (int64_t run = 0; run < count; run += 2 * width) {
            float *one = numbers + run, *other = one + width;
            if (width >= kSpread) {
                for (int64_t i = 0; i < width; i += kLanes) {
                    const auto first = Isa::load(one + i), second = Isa::load(other + i);
                    Isa::store(one + i, Isa::add(first, second));
                    Isa::store(other + i, Isa::fma(second, Isa::broadcast(-1.0f), first));
                }
            } else {
                for (int64_t i = 0; i < width; ++i) {
                    const float first = one[i], second = other[i];
                    one[i] = first + second;
                    other[i] = first - second;
                }
            }
        }
    }
}

template <class Isa>
void spread_queries_with(const Attention& how, const float* q, float* spread) {
    std::memcpy(spread, q, sizeof(float) * static_cast<size_t>(how.heads * how.head));
    spread_numbers<Isa>(spread, how.heads * how.head, how.spread());
}

// How a key, spread, differs from the first one of its block, which it is itself in slot 0.
template <class Isa>
DRAGOMAN_INLINE void differ(const Attention& how, const float* k, int64_t slot, uint8_t* keys, float* differences) {
    std::memcpy(differences, k, sizeof(float) * static_cast<size_t>(how.head));
    spread_numbers<Isa>(differences, how.head, how.spread());
    const float inverse = 1.0f / static_cast<float>(how.spread());
    auto* first = reinterpret_cast<uint16_t*>(keys + how.key_codes() + how.scale_bytes());
    for (int64_t i = 0; i < how.head; ++i) differences[i] *= inverse;
    if (slot == 0) {
        std::memset(first, 0, static_cast<size_t>(how.first_key_bytes()));
        for (int64_t i = 0; i < how.head; ++i) first[i] = bf16_of(differences[i]);
    }
    for (int64_t i = 0; i < how.head; ++i) {
        const uint32_t bits = uint32_t{first[i]} << 16;
        float number;
        std::memcpy(&number, &bits, 4);
        differences[i] -= number;
    }
}

template <class Isa>
void write_with(const Attention& how, const float* k, const float* v, int64_t slot, uint8_t* keys, uint8_t* values) {
    float differences[kMostNumbers];
    if (how.type == CacheType::u8) {
        differ<Isa>(how, k, slot, keys, differences);
        k = differences;
    }
    auto* key_scales = reinterpret_cast<float*>(keys + how.key_codes()) + slot;
    auto* value_scales = reinterpret_cast<float*>(values + how.value_codes()) + slot;
    write_numbers<Isa>(how.type, k, how.head, kSlots, slot, keys, key_scales, key_scales + kSlots);
    write_numbers<Isa>(how.type, v, how.value, 1, slot * how.padded(), values, value_scales, value_scales + kSlots);
}

template <class Isa>
constexpr AttentionKernels attention_of() {
    return {read_with<Isa>, join_with<Isa>, finish_with<Isa>, spread_queries_with<Isa>, write_with<Isa>};
}

}  // namespace dragoman
