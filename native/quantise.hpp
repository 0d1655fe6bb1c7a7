// Rows of weights as codes in groups, in plain loops: each file of an instruction set compiles them for itself, to the same bits.
//
// Sources: rounding to nearest over a group's range (8 bits); of two scales the one whose least-squares fit leaves the smaller
// error (4 bits), as models/storage/groups.py tells.
#pragma once

#include <cstring>

#include "kernels.hpp"

namespace dragoman {

constexpr int kLanes = 16;                  // partial results of a loop over columns, which compilers make vectors of
constexpr float kSmallestScale = 6.2e-05f;  // above the smallest normal f16: a group of zeros must not divide by zero
constexpr float kPart = 0.92f;              // of a group's range that 4 bits span: one or two values are cut off for finer steps

DRAGOMAN_INLINE float larger(float a, float b) { return a > b ? a : b; }
DRAGOMAN_INLINE float smaller(float a, float b) { return a < b ? a : b; }

// The nearest integer, of numbers below 2^22; the even one of two.
DRAGOMAN_INLINE float rounded(float value) { return (value + 12582912.0f) - 12582912.0f; }

DRAGOMAN_INLINE uint16_t half_of(float value) {  // of positive numbers, to the nearest; infinite ones stay so
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (bits >= 0x47800000) return 0x7C00;
    if (bits < 0x38800000) {  // below the smallest normal f16
        const float tiny = value + 0.5f;
        std::memcpy(&bits, &tiny, 4);
        return static_cast<uint16_t>(bits - 0x3F000000);
    }
    return static_cast<uint16_t>((bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

DRAGOMAN_INLINE float float_of(uint16_t half) {  // of positive numbers that are no infinity
    uint32_t bits = (uint32_t{half} << 13) + 0x38000000;
    float value;
    if (half < 0x400) bits += 0x00800000;
    std::memcpy(&value, &bits, 4);
    return half < 0x400 ? value - 6.103515625e-05f : value;
}

struct Range {
    float low, high;  // zero lies between them
};

// Of `count` numbers. False if one of them is not finite.
DRAGOMAN_INLINE bool find_range(const float* x, int64_t count, Range* range) {
    float low[kLanes] = {}, high[kLanes] = {};
    uint32_t largest[kLanes] = {};
    const auto take = [&](int lane, float value) __attribute__((always_inline)) {
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        bits &= 0x7FFFFFFF;
        largest[lane] = bits > largest[lane] ? bits : largest[lane];
        low[lane] = smaller(value, low[lane]);
        high[lane] = larger(value, high[lane]);
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) take(lane, x[i + lane]);
    for (int lane = 0; i < count; ++i, ++lane) take(lane, x[i]);
    *range = {0, 0};
    uint32_t most = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        range->low = smaller(low[lane], range->low);
        range->high = larger(high[lane], range->high);
        most = largest[lane] > most ? largest[lane] : most;
    }
    return most < 0x7F800000;
}

struct Scale {
    float scale, zero;
};

// How much of the sum of squares the least-squares fit of that scale's integers explains; the fit takes the scale's place.
DRAGOMAN_INLINE float gain_of(const float* x, int64_t count, Scale* trial) {
    const float inverse = 1.0f / trial->scale, least = -trial->zero, most = 15 - trial->zero;
    float along[kLanes] = {}, squares[kLanes] = {};
    const auto take = [&](int lane, float value) __attribute__((always_inline)) {
        const float code = rounded(smaller(larger(value * inverse, least), most));
        along[lane] += code * value;
        squares[lane] += code * code;
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) take(lane, x[i + lane]);
    for (int lane = 0; i < count; ++i, ++lane) take(lane, x[i]);
    float sum = 0, square = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        sum += along[lane];
        square += squares[lane];
    }
    trial->scale = sum / larger(square, 1.17549435e-38f);
    return sum * trial->scale;
}

DRAGOMAN_INLINE Scale best_of_four_bits(const float* x, int64_t count, Range range) {
    Scale wide = {larger((range.high - range.low) * (kPart / 15), kSmallestScale), 0};
    wide.zero = rounded(smaller(larger((15 - (range.high + range.low) / wide.scale) * 0.5f, 0), 15));
    Scale centred = {larger(larger(range.high, -range.low) / 8, kSmallestScale), range.high > -range.low ? 7.0f : 8.0f};
    Scale best = {kSmallestScale, 0};
    float gain = 0;
    for (Scale* trial : {&wide, &centred}) {
        const float found = gain_of(x, count, trial);
        if (!(found > gain) || trial->scale < kSmallestScale) continue;
        best = *trial;
        gain = found;
    }
    return best;
}

// See Kernels. `highest`: 15 or 255.
template <class Isa>
bool codes_with(const float* x, int64_t columns, int64_t group, int highest, uint8_t* codes, uint16_t* scales, uint8_t* zeros) {
    for (int64_t begin = 0, index = 0; begin < columns; begin += group, ++index) {
        const int64_t count = columns - begin < group ? columns - begin : group;
        const float* from = x + begin;
        Range range;
        if (!find_range(from, count, &range)) return false;
        Scale best = {larger((range.high - range.low) / 255.0f, kSmallestScale), 0};
        if (highest == 15) best = best_of_four_bits(from, count, range);
        const uint16_t half = half_of(best.scale);  // codes are rounded by what they are multiplied with
        if (half >= 0x7C00) return false;
        const float inverse = 1.0f / float_of(half), most = static_cast<float>(highest);
        if (highest == 255) best.zero = smaller(larger(rounded(-range.low * inverse), 0), 255);
        for (int64_t i = 0; i < count; ++i) {
            const float code = rounded(smaller(larger(from[i] * inverse, -best.zero), most - best.zero)) + best.zero;
            codes[begin + i] = static_cast<uint8_t>(static_cast<int32_t>(code));
        }
        scales[index] = half;
        zeros[index] = static_cast<uint8_t>(best.zero);
    }
    return true;
}

}  // namespace dragoman
