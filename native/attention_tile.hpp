// Attention as templates over an instruction set. Included by the file of each.
//
// Numbers of 8 bits are multiplied in pairs, and so are bf16 where an instruction set can: attention_pairs.hpp. All others are multiplied
// here as f32. Scores are sums over a head's numbers in their order, and what is mixed are sums over slots in theirs: one chain of
// `fma` for each result, so that it does not matter how many rows and vectors are computed at once. Slots that a row does not see have
// the weight 0, which adds nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "activation.hpp"
#include "attention_kernels.hpp"
#include "attention_pairs.hpp"
#include "attention_weights.hpp"
#include "attention_write.hpp"
#include "kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

// The first lane.
template <class Isa>
DRAGOMAN_INLINE float first_of(typename Isa::Flt values) {
    float all[Isa::lanes];
    Isa::store(all, values);
    return all[0];
}

constexpr int64_t bytes_of(CacheType type) { return type == CacheType::f32 ? 4 : 2; }

// As many numbers of a cache as a vector has, from lane `lane` of `width` on: number `index` of each, odd or even.
template <class Isa, CacheType C, bool Odd>
DRAGOMAN_INLINE typename Isa::Flt numbers_at(const uint8_t* from, int64_t index, int64_t width, int64_t lane) {
    if constexpr (C == CacheType::f32) return Isa::load(reinterpret_cast<const float*>(from) + index * width + lane);
    if constexpr (C == CacheType::f16) return Isa::from_halves(from + 2 * (index * width + lane));
    const uint8_t* pairs = from + 4 * (index / 2 * width + lane);
    if constexpr (Odd) return Isa::odd_bf16(pairs);
    return Isa::even_bf16(pairs);
}

// Calls `body` with the numbers from `begin` to `end`, and with whether they are odd, where that matters.
template <CacheType C, class Body>
DRAGOMAN_INLINE void each_number(int64_t begin, int64_t end, const Body& body) {
    if constexpr (C == CacheType::bf16) {
        if (begin % 2 && begin < end) body(begin++, std::true_type());
        for (; begin + 1 < end; begin += 2) {
            body(begin, std::false_type());
            body(begin + 1, std::true_type());
        }
        if (begin < end) body(begin, std::false_type());
    } else {
        for (; begin < end; ++begin) body(begin, std::false_type());
    }
}

template <class Isa, CacheType C>
class FloatReader {
    using Flt = typename Isa::Flt;
    static constexpr int kLanes = Isa::lanes;
    static constexpr int kRows = Isa::attention_rows, kWide = Isa::attention_units;  // that are computed at once
    static constexpr int64_t kBytes = bytes_of(C);

public:
    explicit FloatReader(const PartOfRows& part)
        : part_(part),
          how_(*part.how),
          padded_(how_.padded()),
          first_(part.begin / kSlots),
          last_((part.end + kSlots - 1) / kSlots) {}

    void run() const {
        for (int64_t block = first_; block < last_; ++block) scores_of(block);
        for (int64_t row = 0; row < part_.num_rows; ++row) soften(row);
        for (int64_t block = first_; block < last_; ++block) mix(block);
    }

private:
    // What is asked for meanwhile: of the numbers that follow, those from `begin` to `end`.
    struct Ahead {
        const uint8_t* from;
        int64_t begin, end;
    };

    // Calls `body` as each_number does, and with whether its number is asked for.
    template <class Body>
    DRAGOMAN_INLINE static void each_number_asking(int64_t begin, int64_t end, Ahead ahead, const Body& body) {
        const int64_t first = std::clamp(ahead.begin, begin, end), last = std::clamp(ahead.end, first, end);
        each_number<C>(begin, first,
                       [&](int64_t i, auto is_odd) __attribute__((always_inline)) { body(i, is_odd, std::false_type()); });
        each_number<C>(first, last,
                       [&](int64_t i, auto is_odd) __attribute__((always_inline)) { body(i, is_odd, std::true_type()); });
        each_number<C>(last, end,
                       [&](int64_t i, auto is_odd) __attribute__((always_inline)) { body(i, is_odd, std::false_type()); });
    }

    // Calls `body` with constants and first rows of groups of nearly equal numbers of rows, and with a group's share of `numbers` that are
    // asked for from `next` on: so memory never rests.
    template <class Body>
    void by_rows(const uint8_t* next, int64_t numbers, const Body& body) const {
        const int64_t all = part_.num_rows, groups = (all + kRows - 1) / kRows;
        for (int64_t row = 0, group = 0, count; group < groups; row += count, ++group) {
            count = (all - row + groups - group - 1) / (groups - group);
            const Ahead ahead = {next, numbers * group / groups, numbers * (group + 1) / groups};
            static_for<1, kRows + 1>([&](auto rows) {
                if (rows == count) body(rows, row, ahead);
            });
        }
    }

    const uint8_t* following(const uint8_t* const* blocks, int64_t block, const uint8_t* behind) const {
        return block + 1 < last_ ? blocks[block + 1] : behind;
    }

    // --- scores -----------------------------------------------------------------------------------------------------------

    void scores_of(int64_t block) const {
        const uint8_t* next = following(part_.keys, block, part_.values[first_]);
        by_rows(next, how_.head, [&](auto rows, int64_t row, Ahead ahead) { add_scores<rows>(block, row, ahead); });
    }

    template <int R>
    [[gnu::flatten, gnu::noinline]] void add_scores(int64_t block, int64_t row, Ahead ahead) const {
        const uint8_t* keys = part_.keys[block];
        const float* q = part_.q + row * part_.q_step;
        float* scores = part_.scores + row * kPartTokens + block * kSlots;
        for (int64_t slot = 0; slot < kSlots; slot += kWide * kLanes) {
            Flt total[R][kWide];
            static_for<0, R>([&](auto r) { static_for<0, kWide>([&](auto n) { total[r][n] = Isa::zero(); }); });
            each_number_asking(0, how_.head, ahead, [&](int64_t i, auto is_odd, auto asks) __attribute__((always_inline)) {
                if (asks && slot == 0) ask_for<Isa>(ahead.from + i * kSlots * kBytes, kSlots * kBytes);
                Flt factor[R];
                static_for<0, R>([&](auto r) { factor[r] = Isa::broadcast(q[r * part_.q_step + i]); });
                static_for<0, kWide>([&](auto n) {
                    const Flt key = numbers_at<Isa, C, is_odd>(keys, i, kSlots, slot + n * kLanes);
                    static_for<0, R>([&](auto r) { total[r][n] = Isa::fma(key, factor[r], total[r][n]); });
                });
            });
            static_for<0, R>([&](auto r) {
                static_for<0, kWide>([&](auto n) { Isa::store(scores + r * kPartTokens + slot + n * kLanes, total[r][n]); });
            });
        }
    }

    // --- weights ----------------------------------------------------------------------------------------------------------

    [[gnu::flatten]] void soften(int64_t row) const {
        constexpr int kVectors = kSumVectors<Isa>;
        constexpr int64_t kStep = kVectors * kLanes;
        const int64_t begin = part_.begins[row], end = part_.ends[row];
        float* scores = part_.scores + row * kPartTokens;
        if (begin >= end) {
            std::fill(scores + first_ * kSlots, scores + last_ * kSlots, 0.0f);
            part_.most[row] = -INFINITY;
            part_.sums[row] = 0;
            return;
        }
        const int64_t from = begin / kStep * kStep, to = (end + kStep - 1) / kStep * kStep;
        const float top = finish_scores<Isa>(part_, row, scores, from, to, begin, end);
        Flt sum[kVectors];
        static_for<0, kVectors>([&](auto n) { sum[n] = Isa::zero(); });
        each_weight<Isa>(scores, from, to, begin, end, top, [&](auto n, int64_t i, Flt weight) {
            sum[n] = Isa::add(sum[n], weight);
            Isa::store(scores + i, weight);
        });
        std::fill(scores + first_ * kSlots, scores + from, 0.0f);
        std::fill(scores + to, scores + last_ * kSlots, 0.0f);
        part_.most[row] = top;
        part_.sums[row] = total_of<Isa>(sum);
    }

    // --- values -----------------------------------------------------------------------------------------------------------

    int64_t first_slot(int64_t block) const { return std::max<int64_t>(part_.begin - block * kSlots, 0); }
    int64_t end_slot(int64_t block) const { return std::min<int64_t>(part_.end - block * kSlots, kSlots); }

    void mix(int64_t block) const {
        const uint8_t* next = following(part_.values, block, part_.next_keys[0]);
        by_rows(next, kSlots, [&](auto rows, int64_t row, Ahead ahead) { add_values<rows>(block, row, ahead); });
    }

    template <int R>
    [[gnu::flatten, gnu::noinline]] void add_values(int64_t block, int64_t row, Ahead ahead) const {
        for (int64_t column = 0; column < padded_; column += kWide * kLanes) {
            const int64_t left = (padded_ - column) / kLanes;
            static_for<1, kWide + 1>([&](auto units) {
                if (units == (left < kWide ? left : kWide)) add_columns<R, units>(block, row, column, ahead);
            });
        }
    }

    template <int R, int N>
    DRAGOMAN_INLINE void add_columns(int64_t block, int64_t row, int64_t column, Ahead ahead) const {
        const uint8_t* values = part_.values[block];
        const float* weights = part_.scores + row * kPartTokens + block * kSlots;
        float* mixed = part_.mixed + row * padded_ + column;
        Flt total[R][N];
        static_for<0, R>([&](auto r) {
            static_for<0, N>(
                [&](auto n) { total[r][n] = block == first_ ? Isa::zero() : Isa::load(mixed + r * padded_ + n * kLanes); });
        });
        each_number_asking(first_slot(block), end_slot(block), ahead,
                           [&](int64_t slot, auto is_odd, auto asks) __attribute__((always_inline)) {
                               if (asks) ask_for<Isa>(ahead.from + (slot * padded_ + column) * kBytes, N * kLanes * kBytes);
                               Flt weight[R];
                               static_for<0, R>([&](auto r) { weight[r] = Isa::broadcast(weights[r * kPartTokens + slot]); });
                               static_for<0, N>([&](auto n) {
                                   const Flt value = numbers_at<Isa, C, is_odd>(values, slot, padded_, column + n * kLanes);
                                   static_for<0, R>([&](auto r) { total[r][n] = Isa::fma(value, weight[r], total[r][n]); });
                               });
                           });
        static_for<0, R>(
            [&](auto r) { static_for<0, N>([&](auto n) { Isa::store(mixed + r * padded_ + n * kLanes, total[r][n]); }); });
    }

    const PartOfRows& part_;
    const Attention& how_;
    const int64_t padded_, first_, last_;
};

template <class Isa>
void read_with(const PartOfRows& part) {
    switch (part.how->type) {
        case CacheType::f32: return FloatReader<Isa, CacheType::f32>(part).run();
        case CacheType::bf16:
            if constexpr (HasPairs<Isa>::value) return PairReader<Isa, FloatPairs>(part).run();
            if constexpr (!HasPairs<Isa>::value) return FloatReader<Isa, CacheType::bf16>(part).run();
            return;
        case CacheType::f16: return FloatReader<Isa, CacheType::f16>(part).run();
        default: return PairReader<Isa, CodePairs>(part).run();
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

template <class Isa>
constexpr AttentionKernels attention_of() {
    return {read_with<Isa>, join_with<Isa>, finish_with<Isa>, spread_queries_with<Isa>, round_queries_with<Isa>, write_with<Isa>};
}

}  // namespace dragoman
