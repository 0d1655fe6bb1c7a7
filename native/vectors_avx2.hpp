// Vectors of 256 bits: what AVX2 has, and what AVX-VNNI adds to it. Included by the files of these two only.
#pragma once

#include <immintrin.h>

#include "tile.hpp"

namespace dragoman {
namespace {

struct Vectors256 {
    using Int = __m256i;
    using Flt = __m256;
    static constexpr int lanes = 8, units = 2, registers = 16;
    static constexpr bool has_two_rows = false;
    static constexpr int attention_rows = 3, attention_units = 4, code_rows = 6, code_units = 2;

    static Int load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Int*>(from)); }
    static Flt load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(uint8_t* to, Int values) { _mm256_storeu_si256(reinterpret_cast<Int*>(to), values); }
    static void store(float* to, Flt values) { _mm256_storeu_ps(to, values); }
    // Volatile: compilers leave out calls of a lambda that does nothing else.
    static void prefetch(const uint8_t* at) { __asm__ volatile("prefetcht0 %0" : : "m"(*at)); }

    static Int nothing() { return _mm256_setzero_si256(); }
    static Flt zero() { return _mm256_setzero_ps(); }
    static Int broadcast(int32_t value) { return _mm256_set1_epi32(value); }
    static Int add(Int first, Int second) { return _mm256_add_epi32(first, second); }
    static Int negative(Int values) { return _mm256_sub_epi32(_mm256_setzero_si256(), values); }
    template <int Bits>
    static Int left32(Int values) {
        return _mm256_slli_epi32(values, Bits);
    }
    template <int Bits>
    static Int right32(Int values) {
        return _mm256_srli_epi32(values, Bits);
    }
    static Int bits32(Int values, int mask) { return _mm256_and_si256(values, _mm256_set1_epi32(mask)); }
    static Int words(const uint8_t* from) {
        return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static Flt broadcast(float value) { return _mm256_set1_ps(value); }
    // Four values of a row for each output.
    template <int Quad>
    static Int four(const int8_t* row) {
        int32_t four;
        std::memcpy(&four, row + 4 * Quad, 4);
        return _mm256_set1_epi32(four);
    }

    // Bytes; a shift moves bits across them, which `bits` takes away.
    static Int bits(Int values, int mask) { return _mm256_and_si256(values, _mm256_set1_epi8(static_cast<char>(mask))); }
    static Int either(Int first, Int second) { return _mm256_or_si256(first, second); }
    static Int flip(Int values) { return _mm256_xor_si256(values, _mm256_set1_epi8(static_cast<char>(0x80))); }
    template <int Bits>
    static Int left(Int values) {
        return _mm256_slli_epi16(values, Bits);
    }
    template <int Bits>
    static Int right(Int values) {
        return _mm256_srli_epi16(values, Bits);
    }
    static Int look_up(const int (&table)[16], int offset, Int indices) {
        alignas(16) int8_t bytes[16];
        for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(table[i] + offset);
        Int values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
        return _mm256_shuffle_epi8(values, indices);
    }

    static Flt mul(Flt first, Flt second) { return _mm256_mul_ps(first, second); }
    static Flt fma(Flt first, Flt second, Flt sum) { return _mm256_fmadd_ps(first, second, sum); }
    static Flt add(Flt first, Flt second) { return _mm256_add_ps(first, second); }
    static Flt div(Flt first, Flt second) { return _mm256_div_ps(first, second); }
    static Flt least(Flt first, Flt second) { return _mm256_min_ps(first, second); }
    static Flt most(Flt first, Flt second) { return _mm256_max_ps(first, second); }
    static Flt absolute(Flt values) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values); }
    static Flt where_negative(Flt values, Flt then, Flt otherwise) { return _mm256_blendv_ps(otherwise, then, values); }
    static Int nearest(Flt values) { return _mm256_cvtps_epi32(values); }
    static Flt times_power(Flt values, Int power) {
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(values), _mm256_slli_epi32(power, 23)));
    }
    static Flt to_floats(Int values) { return _mm256_cvtepi32_ps(values); }
    static Flt from_halves(const uint8_t* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static void store_halves(uint16_t* to, Flt values) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
    static Flt from_bf16(const uint8_t* from) { return _mm256_castsi256_ps(_mm256_slli_epi32(words(from), 16)); }
    // Of two bf16 in each four bytes the first ones, and the second ones.
    static Flt even_bf16(const uint8_t* from) { return _mm256_castsi256_ps(_mm256_slli_epi32(load(from), 16)); }
    static Flt odd_bf16(const uint8_t* from) {
        return _mm256_castsi256_ps(_mm256_and_si256(load(from), _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
    }
    static Flt from_bytes(const uint8_t* from) { return to_floats(_mm256_cvtepu8_epi32(eight(from))); }
    static Flt from_signed_bytes(const uint8_t* from) { return to_floats(_mm256_cvtepi8_epi32(eight(from))); }
    static Flt from_half_bytes(const uint8_t* from, bool high) {
        Int values = _mm256_cvtepu8_epi32(eight(from));
        return to_floats(high ? _mm256_srli_epi32(values, 4) : _mm256_and_si256(values, _mm256_set1_epi32(15)));
    }
    // 2^(exponent - 128) of exponents in bytes: half of what MXFP4 has, since its codes are twice its values.
    static Flt half_power(const uint8_t* from) {
        Int exponents = _mm256_cvtepu8_epi32(eight(from));
        Int normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)), 23);
        Int small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponents);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents)));
    }

    // Halves are added up, and so on.
    static float sum(Flt values) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static int32_t sum(Int values) { return sum_of(values); }
    static float highest(Flt values) {
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    // Sums of products of codes of 8 bits, less 128, four of which a lane has, with factors of 16 bits.
    using CodeSums = Int;
    static CodeSums start(int32_t sum_of_factors) { return negative(left32<7>(broadcast(sum_of_factors))); }
    template <int Pair>
    static Int codes_at(const uint8_t* from) {
        if constexpr (Pair == 0) return _mm256_and_si256(load(from), _mm256_set1_epi32(0x00FF00FF));
        if constexpr (Pair == 1) return _mm256_srli_epi16(load(from), 8);
    }
    template <int>
    static void add_codes(CodeSums& sums, Int codes, Int factors) {
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(codes, factors));
    }
    static void store_codes(uint16_t* to, Int values) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                         _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)));
    }

    // The scale of 32 floats, whose codes and the sums of 16 of these each are written.
    static float quantise(const float* x, int8_t* codes, int32_t* sums) {
        const Flt sign = _mm256_set1_ps(-0.0f);
        Flt values[4];
        for (int i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + 8 * i);
        Flt largest = _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, values[0]), _mm256_andnot_ps(sign, values[1])),
                                    _mm256_max_ps(_mm256_andnot_ps(sign, values[2]), _mm256_andnot_ps(sign, values[3])));
        __m128 most = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
        most = _mm_max_ps(most, _mm_movehl_ps(most, most));
        most = _mm_max_ss(most, _mm_shuffle_ps(most, most, 1));
        float highest = _mm_cvtss_f32(most);
        Flt unknown =
            _mm256_or_ps(_mm256_cmp_ps(values[0], values[1], _CMP_UNORD_Q), _mm256_cmp_ps(values[2], values[3], _CMP_UNORD_Q));
        if (_mm256_movemask_ps(unknown)) highest = __builtin_nanf("");
        float inverse = highest > kSmallest ? 127.0f / highest : 0.0f;
        Int whole[4];
        for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], _mm256_set1_ps(inverse)));
        sums[0] = sum_of(_mm256_add_epi32(whole[0], whole[1]));
        sums[1] = sum_of(_mm256_add_epi32(whole[2], whole[3]));
        Int packed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
        packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<Int*>(codes), packed);
        return highest / 127.0f;
    }

private:
    static __m128i eight(const uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
    static int32_t sum_of(Int values) {
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
    }
};

}  // namespace
}  // namespace dragoman
