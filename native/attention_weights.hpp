// Scores become weights, as a template over an instruction set. Included by attention_tile.hpp and attention_pairs.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "activation.hpp"
#include "attention_kernels.hpp"
#include "formats.hpp"
#include "kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

// Whether an instruction set multiplies pairs of bf16.
template <class Isa, class = void>
struct HasPairs : std::false_type {};
template <class Isa>
struct HasPairs<Isa, std::void_t<decltype(Isa::has_pairs)>> : std::true_type {};

// Whether it sums up several rows at once.
template <class Isa, class = void>
struct SumsRows : std::false_type {};
template <class Isa>
struct SumsRows<Isa, std::void_t<decltype(Isa::rows_summed)>> : std::true_type {};

// Asks for lines that are needed soon.
template <class Isa>
DRAGOMAN_INLINE void ask_for(const uint8_t* next, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += kLine) Isa::prefetch(next + line);
}

// Sums of every 16th number, however many lanes there are, so that all instruction sets have the same bits.
template <class Isa>
constexpr int kSumVectors = 16 / Isa::lanes;

// Their sum, which halves are added up to.
template <class Isa>
DRAGOMAN_INLINE float total_of(const typename Isa::Flt (&sums)[kSumVectors<Isa>]) {
    constexpr int kCount = kSumVectors<Isa>;
    typename Isa::Flt all[kCount];
    static_for<0, kCount>([&](auto n) { all[n] = sums[n]; });
    static_for<0, 4>([&](auto level) {
        constexpr int half = kCount >> (level + 1);
        static_for<0, half>([&](auto n) { all[n] = Isa::add(all[n], all[half + n]); });
    });
    return Isa::sum(all[0]);
}

struct Numbers {
    float all[kPartTokens] = {};
    constexpr Numbers() {
        for (int i = 0; i < kPartTokens; ++i) all[i] = static_cast<float>(i);
    }
};
inline constexpr Numbers kNumbers{};

// Scores of the slots from `from` to `to`, in which a row sees those from `begin` to `end`, are bounded and get their bias; what it
// does not see gets minus infinity. The highest one.
template <class Isa>
DRAGOMAN_INLINE float finish_scores(const PartOfRows& part, int64_t row, float* scores, int64_t from, int64_t to, int64_t begin,
                                    int64_t end) {
    using Flt = typename Isa::Flt;
    constexpr int kLanes = Isa::lanes;
    const float bound = part.how->cap;
    if (bound != 0) {
        const Flt cap = Isa::broadcast(bound), twice = Isa::broadcast(2 / bound), minus = Isa::broadcast(-bound);
        for (int64_t i = from; i < to; i += kLanes) {
            const Flt share = sigmoid<Isa>(Isa::mul(Isa::load(scores + i), twice));  // tanh(x) = 2 sigmoid(2 x) - 1
            Isa::store(scores + i, Isa::fma(Isa::add(share, share), cap, minus));
        }
    }
    if (part.slopes != nullptr) {
        const Flt slope = Isa::broadcast(part.slopes[row]);
        for (int64_t i = from; i < to; i += kLanes) {
            const Flt distance = Isa::add(Isa::load(kNumbers.all + i), Isa::broadcast(part.distances[row]));
            Isa::store(scores + i, Isa::fma(slope, distance, Isa::load(scores + i)));
        }
    }
    std::fill(scores + from, scores + begin, -INFINITY);
    std::fill(scores + end, scores + to, -INFINITY);
    Flt highest = Isa::load(scores + from);
    for (int64_t i = from + kLanes; i < to; i += kLanes) highest = Isa::most(highest, Isa::load(scores + i));
    return Isa::highest(highest);
}

// e^(score - highest one), and never quite nothing. It is 2^x, by a polynomial of the least relative error,
// 9e-8. What is no number stays none.
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt weight_of(typename Isa::Flt score, typename Isa::Flt minus) {
    const auto x = Isa::most(Isa::broadcast(-126.0f), Isa::mul(Isa::add(score, minus), Isa::broadcast(1.44269504f)));
    const auto power = Isa::nearest(x);
    const auto rest = Isa::fma(Isa::to_floats(power), Isa::broadcast(-1.0f), x);
    auto sum = Isa::broadcast(1.3264727e-3f);
    for (float factor : {9.6715130e-3f, 5.5507336e-2f, 2.4022242e-1f, 6.9314700e-1f, 1.0f})
        sum = Isa::fma(sum, rest, Isa::broadcast(factor));
    return Isa::times_power(sum, power);
}

// Calls `body` with all weights of a row, a vector after the other: what it does not see has none.
template <class Isa, class Body>
DRAGOMAN_INLINE void each_weight(float* scores, int64_t from, int64_t to, int64_t begin, int64_t end, float top,
                                 const Body& body) {
    constexpr int kLanes = Isa::lanes, kCount = kSumVectors<Isa>;
    const auto minus = Isa::broadcast(-top);
    for (int64_t i = from; i < to; i += kCount * kLanes) {
        typename Isa::Flt weights[kCount];
        static_for<0, kCount>([&](auto n) { weights[n] = weight_of<Isa>(Isa::load(scores + i + n * kLanes), minus); });
        if (i < begin || i + kCount * kLanes > end) {
            float some[kCount * kLanes];
            static_for<0, kCount>([&](auto n) { Isa::store(some + n * kLanes, weights[n]); });
            for (int64_t j = 0; j < kCount * kLanes; ++j) some[j] = i + j < begin || i + j >= end ? 0 : some[j];
            static_for<0, kCount>([&](auto n) { weights[n] = Isa::load(some + n * kLanes); });
        }
        static_for<0, kCount>([&](auto n) { body(n, i + n * kLanes, weights[n]); });
    }
}

// Numbers as codes up to `most`, which `highest` becomes; their sum.
template <class Isa>
DRAGOMAN_INLINE void round_codes(const float* numbers, int64_t from, int64_t to, float highest, int64_t most, uint16_t* codes,
                                 float* scale, int32_t* sum) {
    const float largest = static_cast<float>(most), inverse = largest / highest;
    const bool is_usable = inverse < INFINITY;  // neither nothing nor no number
    const auto factor = Isa::broadcast(is_usable ? inverse : 0.0f);
    auto sums = Isa::broadcast(int32_t{0});
    for (int64_t i = from; i < to; i += Isa::lanes) {
        const auto whole = Isa::nearest(Isa::mul(Isa::load(numbers + i), factor));
        sums = Isa::add(sums, whole);
        Isa::store_codes(codes + i, whole);
    }
    *scale = is_usable ? highest / largest : highest - highest;
    *sum = Isa::sum(sums);
}

}  // namespace dragoman
