// Attention whose numbers are multiplied in pairs, as templates over an instruction set. Included by attention_tile.hpp.
//
// In 8 bits all sums of products are exact integers. Queries are rounded to codes of 16 bits, with a scale for each row; weights times the
// scales of values, too, with a scale for each row and part. A cache's codes count from 128 on, which what lies beside their scales
// takes into account. So neither order nor instruction set matters there. Pairs of bf16 are added up in f32, in the order of numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention_kernels.hpp"
#include "attention_weights.hpp"
#include "kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

// The largest code of `count` queries or weights, so that their products' sums are numbers of 32 bits; its upper byte is one, too.
constexpr int64_t most_code(int64_t count) {
    constexpr int64_t kMost = 127 * 256;
    return kMost * 128 * count < INT32_MAX ? kMost : INT32_MAX / (128 * count);
}

// Codes of 8 bits: a lane has four of them, as two pairs.
template <class Isa>
struct CodePairs {
    using Sums = typename Isa::CodeSums;
    static constexpr int kNumbers = 4, kRows = Isa::code_rows, kWide = Isa::code_units;

    static Sums start(int32_t sum_of_factors) { return Isa::start(sum_of_factors); }
    template <int Pair>
    static typename Isa::Int numbers_at(const uint8_t* from) {
        return Isa::template codes_at<Pair>(from);
    }
    template <int Pair>
    static void add(Sums& sums, typename Isa::Int numbers, typename Isa::Int factors) {
        Isa::template add_codes<Pair>(sums, numbers, factors);
    }
};

// bf16: a lane has a pair of them.
template <class Isa>
struct FloatPairs {
    using Sums = typename Isa::Flt;
    static constexpr int kNumbers = 2, kRows = Isa::attention_rows, kWide = Isa::attention_units;

    static Sums start(int32_t) { return Isa::zero(); }
    template <int>
    static typename Isa::Int numbers_at(const uint8_t* from) {
        return Isa::load(from);
    }
    template <int>
    static void add(Sums& sums, typename Isa::Int numbers, typename Isa::Int factors) {
        sums = Isa::add_pairs(sums, numbers, factors);
    }
};

// Calls `body` with the first row and the number of rows of groups of nearly equal size, at most `most` each.
template <class Body>
DRAGOMAN_INLINE void each_group(int64_t all, int64_t most, const Body& body) {
    for (int64_t row = 0, groups = (all + most - 1) / most, count; groups; row += count, --groups) {
        count = (all - row + groups - 1) / groups;
        body(row, count);
    }
}

template <class Isa, template <class> class Kind>
class PairReader {
    using Flt = typename Isa::Flt;
    using Int = typename Isa::Int;
    using Pairs = Kind<Isa>;
    using Sums = typename Pairs::Sums;
    static constexpr int kLanes = Isa::lanes, kVectors = kSumVectors<Isa>;
    static constexpr int kRows = Pairs::kRows, kWide = Pairs::kWide;  // that are computed at once
    static constexpr int kNumbers = Pairs::kNumbers;                  // of a lane
    static constexpr bool kCodes = kNumbers == 4;
    static constexpr int kScaleLines = 2 * sizeof(float) * kSlots / kLine;  // of a block
    static constexpr int64_t kStride = 2 * kPartTokens;                     // of weights, which take the place of scores
    static_assert(kSlots % (kWide * kLanes) == 0, "a block is as wide as some of what is added up at once");

public:
    explicit PairReader(const PartOfRows& part)
        : part_(part),
          how_(*part.how),
          padded_(how_.padded()),
          first_(part.begin / kSlots),
          last_((part.end + kSlots - 1) / kSlots),
          groups_((how_.head + kNumbers - 1) / kNumbers) {
        find_next();
    }

    void run() const {
        each_group(part_.num_rows, kRows, [&](int64_t row, int64_t count) {
            static_for<1, kRows + 1>([&](auto rows) {
                if (rows == count) read<rows>(row);
            });
        });
    }

private:
    // A few rows, whose scores stay in the first cache.
    template <int R>
    void read(int64_t row) const {
        for (int64_t block = first_; block < last_; ++block) {
            if (row == 0)
                scores_of<true, R>(part_.keys[block], block, row);
            else
                scores_of<false, R>(part_.keys[block], block, row);
        }
        if (kCodes && row == 0) gather_scales();
        Weighed weighed[R];
        if (row == 0)
            soften<true>(row, R, weighed);
        else
            soften<false>(row, R, weighed);
        for (int64_t column = 0; column < padded_; column += kWide * kLanes) {
            const int64_t left = (padded_ - column) / kLanes;
            static_for<1, kWide + 1>([&](auto units) {
                if (units != (left < kWide ? left : kWide)) return;
                if (row == 0)
                    mix<true, R, units>(weighed, row, column);
                else
                    mix<false, R, units>(weighed, row, column);
            });
        }
    }

    // Asks for lines of values of this part and then of keys of the next one: while the first rows are computed, so that memory never rests.
    template <int Count>
    DRAGOMAN_INLINE void ask() const {
        for (int line = 0; line < Count; ++line) Isa::prefetch(asked_ + line * kLine);
        asked_ += Count * kLine;
        if (__builtin_expect(asked_ >= asked_end_, 0)) find_next();
    }

    [[gnu::noinline]] void find_next() const {
        const int64_t count = last_ - first_, index = next_++;
        if (index < count) {
            asked_ = part_.values[first_ + index];
            asked_end_ = asked_ + how_.value_bytes();
        } else {  // at last the same block again and again, which costs nothing
            asked_ = part_.next_keys[std::min(index - count, part_.num_next - 1)];
            asked_end_ = asked_ + how_.key_bytes();
        }
    }

    static int32_t pair_at(const uint16_t* from) {
        int32_t pair;
        std::memcpy(&pair, from, sizeof(pair));
        return pair;
    }

    // Adds the products of `count` groups of numbers, `step` bytes apart, with factors, which lie `Stride` apart by rows and `Next` by
    // groups: where these are constants, no instruction computes places. `masks`: of the first group and the last one, whose pairs have
    // numbers that nobody sees; null = there are none.
    template <bool Asks, int64_t Stride, int64_t Next, int R, int N>
    DRAGOMAN_INLINE void multiply(Sums (&total)[R][N], const uint8_t* at, int64_t step, int64_t count, const uint16_t* factors,
                                  const int32_t* masks) const {
        for (int64_t group = 0; group < count; ++group, at += step, factors += Next) {
            if constexpr (Asks) ask<(4 * N * kLanes + kLine - 1) / kLine>();
            static_for<0, kNumbers / 2>([&](auto pair) {
                Int numbers[N];
                static_for<0, N>([&](auto n) { numbers[n] = Pairs::template numbers_at<pair>(at + 4 * n * kLanes); });
                if constexpr (!kCodes) {
                    if (masks != nullptr && (group == 0 || group + 1 == count)) {
                        const Int mask = Isa::broadcast((group == 0 ? masks[0] : -1) & (group + 1 == count ? masks[1] : -1));
                        static_for<0, N>([&](auto n) { numbers[n] = Isa::both(numbers[n], mask); });
                    }
                }
                static_for<0, R>([&](auto r) {
                    const Int factor = Isa::broadcast(pair_at(factors + r * Stride + 2 * pair));
                    static_for<0, N>([&](auto n) { Pairs::template add<pair>(total[r][n], numbers[n], factor); });
                });
            });
        }
    }

    // --- scores -----------------------------------------------------------------------------------------------------------

    template <bool Asks, int R>
    [[gnu::flatten, gnu::noinline]] void scores_of(const uint8_t* keys, int64_t block, int64_t row) const {
        const int64_t width = groups_ * kNumbers;
        float* scores = part_.scores + block * kSlots;
        [[maybe_unused]] float first_key[R];  // the scores of the block's first key
        if constexpr (kCodes) {
            if (Asks) ask<kScaleLines>();
            score_first(keys, row, first_key);
        }
        for (int64_t slot = 0; slot < kSlots; slot += kWide * kLanes) {
            Sums total[R][kWide];
            static_for<0, R>([&](auto r) {
                const Sums start = Pairs::start(kCodes ? part_.q_sums[row + r] : 0);
                static_for<0, kWide>([&](auto n) { total[r][n] = start; });
            });
            multiply<Asks, kNumbers, R * kNumbers>(total, keys + 4 * slot, 4 * kSlots, groups_, part_.q_codes + row * width,
                                                   nullptr);
            if constexpr (kCodes) {
                const auto* scales = reinterpret_cast<const float*>(keys + how_.key_codes()) + slot;
                Flt scale[kWide], middle[kWide];
                static_for<0, kWide>([&](auto n) {
                    scale[n] = Isa::load(scales + n * kLanes);
                    middle[n] = Isa::load(scales + kSlots + n * kLanes);
                });
                static_for<0, R>([&](auto r) {
                    const float q_scale = part_.q_scales[row + r];
                    const Flt sum = Isa::broadcast(q_scale * static_cast<float>(part_.q_sums[row + r]));
                    const Flt first = Isa::broadcast(first_key[r]), by = Isa::broadcast(q_scale);
                    static_for<0, kWide>([&](auto n) {
                        const Flt score =
                            Isa::fma(Isa::mul(scale[n], by), Isa::to_floats(total[r][n]), Isa::fma(middle[n], sum, first));
                        Isa::store(scores + r * kPartTokens + slot + n * kLanes, score);
                    });
                });
            } else {
                static_for<0, R>([&](auto r) {
                    static_for<0, kWide>([&](auto n) { Isa::store(scores + r * kPartTokens + slot + n * kLanes, total[r][n]); });
                });
            }
        }
    }

    template <int R>
    DRAGOMAN_INLINE void score_first(const uint8_t* keys, int64_t row, float (&scores)[R]) const {
        const uint8_t* first = keys + how_.key_codes() + how_.scale_bytes();
        const float* q = part_.q + row * part_.q_step;
        Flt sum[R][kVectors];
        static_for<0, R>([&](auto r) { static_for<0, kVectors>([&](auto n) { sum[r][n] = Isa::zero(); }); });
        for (int64_t i = 0; i < part_.q_step; i += kVectors * kLanes) {
            static_for<0, kVectors>([&](auto n) {
                const Flt key = Isa::from_bf16(first + 2 * (i + n * kLanes));
                static_for<0, R>(
                    [&](auto r) { sum[r][n] = Isa::fma(key, Isa::load(q + r * part_.q_step + i + n * kLanes), sum[r][n]); });
            });
        }
        if constexpr (SumsRows<Isa>::value)
            Isa::sums_of(sum, scores);
        else
            static_for<0, R>([&](auto r) { scores[r] = total_of<Isa>(sum[r]); });
    }

    // --- weights ----------------------------------------------------------------------------------------------------------

    // A row's weights as codes: their scale and sum, and what all values add beside their codes.
    struct Weighed {
        float scale, middle;
        int32_t sum;
    };

    // Scales and middles of values, zeros for slots that nobody sees.
    void gather_scales() const {
        for (int64_t block = first_; block < last_; ++block) {
            const auto* from = reinterpret_cast<const float*>(part_.values[block] + how_.value_codes());
            const int64_t begin = first_slot(block), end = end_slot(block);
            for (int kind = 0; kind < 2; ++kind) {
                float* to = scales_[kind] + block * kSlots;
                for (int64_t i = 0; i < kSlots; i += kLanes) Isa::store(to + i, Isa::load(from + kind * kSlots + i));
                std::fill(to, to + begin, 0.0f);
                std::fill(to + end, to + kSlots, 0.0f);
            }
        }
    }

    int64_t first_slot(int64_t block) const { return std::max<int64_t>(part_.begin - block * kSlots, 0); }
    int64_t end_slot(int64_t block) const { return std::min<int64_t>(part_.end - block * kSlots, kSlots); }

    // Scores of some rows become weights, which take their place: halves lie before what is still to be read. One step for all rows comes
    // after the other: a step of a row waits for the whole one before it, and meanwhile the processor works on other rows.
    template <bool Asks>
    [[gnu::flatten, gnu::noinline]] void soften(int64_t row, int count, Weighed* weighed) const {
        float highest[kRows] = {};
        for (int r = 0; r < count; ++r) {
            const Seen seen = seen_by(row + r);
            float* scores = part_.scores + r * kPartTokens;
            const bool is_blind = seen.begin >= seen.end;
            part_.most[row + r] =
                is_blind ? -INFINITY : finish_scores<Isa>(part_, row + r, scores, seen.from, seen.to, seen.begin, seen.end);
        }
        for (int r = 0; r < count; ++r) highest[r] = weigh<Asks>(row + r, part_.scores + r * kPartTokens, weighed[r]);
        for (int r = 0; r < count; ++r) {
            const Seen seen = seen_by(row + r);
            float* scores = part_.scores + r * kPartTokens;
            auto* weights = reinterpret_cast<uint16_t*>(scores);
            if constexpr (kCodes)
                round_codes<Isa>(scores, seen.from, seen.to, highest[r], most_code(kPartTokens), weights, &weighed[r].scale,
                                 &weighed[r].sum);
            std::fill(weights + first_ * kSlots, weights + seen.from, 0);
            std::fill(weights + seen.to, weights + last_ * kSlots, 0);
        }
    }

    // The slots that a row sees, and those of the vectors in which they lie.
    struct Seen {
        int64_t begin, end, from, to;
    };

    Seen seen_by(int64_t row) const {
        constexpr int64_t kStep = kVectors * kLanes;
        const int64_t begin = part_.begins[row], end = part_.ends[row];
        if (begin >= end) return {begin, end, first_ * kSlots, first_ * kSlots};
        return {begin, end, begin / kStep * kStep, (end + kStep - 1) / kStep * kStep};
    }

    // A row's weights, times the scales of values where these are codes: the highest of these.
    template <bool Asks>
    DRAGOMAN_INLINE float weigh(int64_t row, float* scores, Weighed& weighed) const {
        const Seen seen = seen_by(row);
        Flt sum[kVectors], middle[kVectors], highest = Isa::zero();
        static_for<0, kVectors>([&](auto n) { sum[n] = middle[n] = Isa::zero(); });
        each_weight<Isa>(scores, seen.from, seen.to, seen.begin, seen.end, part_.most[row], [&](auto n, int64_t i, Flt weight) {
            if constexpr (Asks && n == 0) ask<1>();
            if constexpr (kCodes) {
                middle[n] = Isa::fma(weight, Isa::load(scales_[1] + i), middle[n]);
                const Flt scaled = Isa::mul(weight, Isa::load(scales_[0] + i));
                highest = Isa::most(highest, scaled);
                Isa::store(scores + i, scaled);
            } else {
                uint16_t* weights = reinterpret_cast<uint16_t*>(scores);
                Isa::store_bf16(weights + i, weight);
                weight = Isa::from_bf16(reinterpret_cast<const uint8_t*>(weights + i));
            }
            sum[n] = Isa::add(sum[n], weight);
        });
        part_.sums[row] = total_of<Isa>(sum);
        weighed = {0, kCodes ? total_of<Isa>(middle) : 0.0f, 0};
        return kCodes ? Isa::highest(highest) : 0.0f;
    }

    // --- values -----------------------------------------------------------------------------------------------------------

    template <bool Asks, int R, int N>
    [[gnu::flatten, gnu::noinline]] void mix(const Weighed (&weighed)[R], int64_t row, int64_t column) const {
        Sums total[R][N];
        static_for<0, R>([&](auto r) {
            const Sums start = Pairs::start(weighed[r].sum);
            static_for<0, N>([&](auto n) { total[r][n] = start; });
        });
        const auto* weights = reinterpret_cast<const uint16_t*>(part_.scores);
        for (int64_t block = first_; block < last_; ++block) {
            const int64_t begin = first_slot(block), end = end_slot(block), group = begin / kNumbers;
            const int64_t at = 4 * (group * padded_ + column);
            const int32_t masks[2] = {begin % 2 ? static_cast<int32_t>(0xFFFF0000) : -1, end % 2 ? 0xFFFF : -1};
            multiply<Asks, kStride, kNumbers>(total, part_.values[block] + at, 4 * padded_,
                                              (end + kNumbers - 1) / kNumbers - group,
                                              weights + block * kSlots + group * kNumbers, masks);
        }
        float* mixed = part_.mixed + row * padded_ + column;
        static_for<0, R>([&](auto r) {
            static_for<0, N>([&](auto n) {
                if constexpr (kCodes) {
                    const Flt middle = Isa::broadcast(weighed[r].middle), scale = Isa::broadcast(weighed[r].scale);
                    Isa::store(mixed + r * padded_ + n * kLanes, Isa::fma(Isa::to_floats(total[r][n]), scale, middle));
                } else {
                    Isa::store(mixed + r * padded_ + n * kLanes, total[r][n]);
                }
            });
        });
    }

    const PartOfRows& part_;
    const Attention& how_;
    const int64_t padded_, first_, last_, groups_;
    mutable int64_t next_ = 0;
    mutable const uint8_t *asked_, *asked_end_;
    alignas(64) mutable float scales_[kCodes ? 2 : 1][kCodes ? kPartTokens : 1];
};

// A row's queries as pairs are multiplied with; the scale and the sum of what are codes.
template <class Isa>
DRAGOMAN_INLINE void round_row(const PartOfRows& part, int64_t row, uint16_t* codes, float* scale, int32_t* sum) {
    const float* q = part.q + row * part.q_step;
    if (part.how->type == CacheType::u8) {
        auto highest = Isa::zero();
        for (int64_t i = 0; i < part.q_step; i += Isa::lanes) highest = Isa::most(highest, Isa::absolute(Isa::load(q + i)));
        round_codes<Isa>(q, 0, part.q_step, Isa::highest(highest), most_code(part.how->head), codes, scale, sum);
    } else if constexpr (HasPairs<Isa>::value) {
        for (int64_t i = 0; i < part.q_step; i += Isa::lanes) Isa::store_bf16(codes + i, Isa::load(q + i));
    }
}

// Rows that are computed at once have what a lane of numbers is multiplied with side by side.
template <class Isa>
void round_queries_with(const PartOfRows& part, uint16_t* codes, float* scales, int32_t* sums) {
    const int64_t most = part.how->type == CacheType::u8 ? Isa::code_rows : Isa::attention_rows;
    const int64_t numbers = part.how->together(), width = (part.how->head + numbers - 1) / numbers * numbers;
    uint16_t* row_codes = codes + part.num_rows * part.q_step;
    each_group(part.num_rows, most, [&](int64_t row, int64_t count) {
        for (int64_t r = 0; r < count; ++r) {
            round_row<Isa>(part, row + r, row_codes, scales + row + r, sums + row + r);
            uint16_t* to = codes + row * width + r * numbers;
            for (int64_t i = 0; i < width; i += numbers, to += count * numbers)
                std::memcpy(to, row_codes + i, sizeof(uint16_t) * numbers);
        }
    });
}

}  // namespace dragoman
