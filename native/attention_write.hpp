// Keys and values written into their blocks, as templates over an instruction set. Included by attention_tile.hpp.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention_kernels.hpp"
#include "kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

DRAGOMAN_INLINE uint16_t bf16_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const bool is_none = (bits & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<uint16_t>(is_none ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Codes of 8 bits of numbers, whose scale is written, too, and what the code 128 stands for.
DRAGOMAN_INLINE void bytes_of_numbers(const float* from, int64_t count, uint8_t* codes, float* scale, float* middle) {
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
    *middle = std::fma(*scale, 128.0f, lowest);
}

// Where number `index` of lane `lane` lies, as a cache's type has its numbers side by side. Of four codes the middle two change places, so that
// even bytes and odd ones are pairs.
template <int64_t Together>
DRAGOMAN_INLINE int64_t place_of(int64_t index, int64_t lane, int64_t width) {
    const int64_t in = index % Together, place = Together == 4 && (in == 1 || in == 2) ? 3 - in : in;
    return (index / Together * width + lane) * Together + place;
}

// Writes a token's numbers to the places that `place` gives, and the scale and the middle of those in 8 bits.
template <class Isa, class Place>
DRAGOMAN_INLINE void write_numbers(CacheType type, const float* from, int64_t count, uint8_t* to, float* scale, float* middle,
                                   const Place& place) {
    constexpr std::integral_constant<int64_t, 1> alone{};
    constexpr std::integral_constant<int64_t, 2> two{};
    constexpr std::integral_constant<int64_t, 4> four{};
    auto* halves = reinterpret_cast<uint16_t*>(to);
    if (type == CacheType::f32) {
        auto* numbers = reinterpret_cast<float*>(to);
        for (int64_t i = 0; i < count; ++i) numbers[place(i, alone)] = from[i];
    } else if (type == CacheType::u8) {
        uint8_t codes[kMostNumbers];
        bytes_of_numbers(from, count, codes, scale, middle);
        for (int64_t i = 0; i < count; ++i) to[place(i, four)] = codes[i];
    } else if (type == CacheType::bf16) {
        for (int64_t i = 0; i < count; ++i) halves[place(i, two)] = bf16_of(from[i]);
    } else {
        for (int64_t i = 0; i < count; i += Isa::lanes) {
            float some[Isa::lanes] = {};
            uint16_t rounded[Isa::lanes];
            const int64_t here = count - i < Isa::lanes ? count - i : Isa::lanes;
            std::memcpy(some, from + i, sizeof(float) * here);
            Isa::store_halves(rounded, Isa::load(some));
            for (int64_t j = 0; j < here; ++j) halves[place(i + j, alone)] = rounded[j];
        }
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
    float numbers[kMostNumbers + 1];
    int64_t head = how.head;
    if (how.type == CacheType::u8) {
        differ<Isa>(how, k, slot, keys, numbers);
        k = numbers;
    } else if (how.type == CacheType::bf16 && head % 2) {  // what the last one is paired with is a number, too
        std::memcpy(numbers, k, sizeof(float) * static_cast<size_t>(head));
        numbers[head++] = 0;
        k = numbers;
    }
    auto* key_scales = reinterpret_cast<float*>(keys + how.key_codes()) + slot;
    auto* value_scales = reinterpret_cast<float*>(values + how.value_codes()) + slot;
    write_numbers<Isa>(how.type, k, head, keys, key_scales, key_scales + kSlots,
                       [slot](int64_t i, auto together) { return place_of<together>(i, slot, kSlots); });
    write_numbers<Isa>(how.type, v, how.value, values, value_scales, value_scales + kSlots,
                       [slot, width = how.padded()](int64_t i, auto together) { return place_of<together>(slot, i, width); });
}

}  // namespace dragoman
