// Vectors of 512 bits of AVX-512, and the dot products of VNNI: four products of bytes are added up by one instruction, 16 outputs at
// a time. Included by product_avx512vnni.cpp and attention_avx512vnni.cpp only.
#pragma once

// GCC 12 sees both in the intrinsics themselves (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "tile.hpp"

namespace dragoman {
namespace {

struct Avx512Vnni {
    using Int = __m512i;
    using Flt = __m512;
    static constexpr const char* name = "avx512vnni";
    static constexpr int lanes = 16, units = 2, registers = 32;
    static constexpr bool has_dot = true, flips = true, has_two_rows = false;
    static constexpr int attention_rows = 8, attention_units = 2, code_rows = 8, code_units = 2;
    static constexpr int few_rows = 4, most_few = 32, many_rows = 6, direct_bits = 8;

    static Int load(const uint8_t* from) { return _mm512_loadu_si512(from); }
    static Flt load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(uint8_t* to, Int values) { _mm512_storeu_si512(to, values); }
    static void store(float* to, Flt values) { _mm512_storeu_ps(to, values); }
    // Volatile: compilers leave out calls of a lambda that does nothing else.
    static void prefetch(const uint8_t* at) { __asm__ volatile("prefetcht0 %0" : : "m"(*at)); }

    static Int nothing() { return _mm512_setzero_si512(); }
    static Flt zero() { return _mm512_setzero_ps(); }
    static Int broadcast(int32_t value) { return _mm512_set1_epi32(value); }
    static Int add(Int first, Int second) { return _mm512_add_epi32(first, second); }
    static Int both(Int first, Int second) { return _mm512_and_si512(first, second); }
    static Int negative(Int values) { return _mm512_sub_epi32(_mm512_setzero_si512(), values); }
    template <int Bits>
    static Int left32(Int values) {
        return _mm512_slli_epi32(values, Bits);
    }
    template <int Bits>
    static Int right32(Int values) {
        return _mm512_srli_epi32(values, Bits);
    }
    static Int bits32(Int values, int mask) { return _mm512_and_si512(values, _mm512_set1_epi32(mask)); }
    static Int words(const uint8_t* from) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Flt broadcast(float value) { return _mm512_set1_ps(value); }
    // Four values of a row for each output.
    template <int Quad>
    static Int four(const int8_t* row) {
        int32_t four;
        std::memcpy(&four, row + 4 * Quad, 4);
        return _mm512_set1_epi32(four);
    }

    // Bytes; a shift moves bits across them, which `bits` takes away.
    static Int bits(Int values, int mask) { return _mm512_and_si512(values, _mm512_set1_epi8(static_cast<char>(mask))); }
    static Int either(Int first, Int second) { return _mm512_or_si512(first, second); }
    static Int flip(Int values) { return _mm512_xor_si512(values, _mm512_set1_epi8(static_cast<char>(0x80))); }
    template <int Bits>
    static Int left(Int values) {
        return _mm512_slli_epi16(values, Bits);
    }
    template <int Bits>
    static Int right(Int values) {
        return _mm512_srli_epi16(values, Bits);
    }
    static Int look_up(const int (&table)[16], int offset, Int indices) {
        alignas(16) int8_t bytes[16];
        for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(table[i] + offset);
        Int values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
        return _mm512_shuffle_epi8(values, indices);
    }

    static Flt mul(Flt first, Flt second) { return _mm512_mul_ps(first, second); }
    static Flt fma(Flt first, Flt second, Flt sum) { return _mm512_fmadd_ps(first, second, sum); }
    static Flt add(Flt first, Flt second) { return _mm512_add_ps(first, second); }
    static Flt div(Flt first, Flt second) { return _mm512_div_ps(first, second); }
    static Flt least(Flt first, Flt second) { return _mm512_min_ps(first, second); }
    static Flt most(Flt first, Flt second) { return _mm512_max_ps(first, second); }
    static Flt absolute(Flt values) { return _mm512_abs_ps(values); }
    static Flt where_negative(Flt values, Flt then, Flt otherwise) {
        return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(values)), otherwise, then);
    }
    static Int nearest(Flt values) { return _mm512_cvtps_epi32(values); }
    static Flt times_power(Flt values, Int power) {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(values), _mm512_slli_epi32(power, 23)));
    }
    static Flt to_floats(Int values) { return _mm512_cvtepi32_ps(values); }
    static Flt from_halves(const uint8_t* from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static void store_halves(uint16_t* to, Flt values) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
    static Flt from_bf16(const uint8_t* from) { return _mm512_castsi512_ps(_mm512_slli_epi32(words(from), 16)); }
    // Of two bf16 in each four bytes the first ones, and the second ones.
    static Flt even_bf16(const uint8_t* from) { return _mm512_castsi512_ps(_mm512_slli_epi32(load(from), 16)); }
    static Flt odd_bf16(const uint8_t* from) {
        return _mm512_castsi512_ps(_mm512_and_si512(load(from), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
    }
    static Flt from_bytes(const uint8_t* from) { return to_floats(_mm512_cvtepu8_epi32(sixteen(from))); }
    static Flt from_signed_bytes(const uint8_t* from) { return to_floats(_mm512_cvtepi8_epi32(sixteen(from))); }
    static Flt from_half_bytes(const uint8_t* from, bool high) {
        Int values = _mm512_cvtepu8_epi32(sixteen(from));
        return to_floats(high ? _mm512_srli_epi32(values, 4) : _mm512_and_si512(values, _mm512_set1_epi32(15)));
    }
    // 2^(exponent - 128) of exponents in bytes: half of what MXFP4 has, since its codes are twice its values.
    static Flt half_power(const uint8_t* from) {
        Int exponents = _mm512_cvtepu8_epi32(sixteen(from));
        Int normal = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)), 23);
        Int small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), exponents);
        return _mm512_castsi512_ps(
            _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2)), normal, small));
    }
    template <bool Signed>
    static Int add_dot(Int sums, Int codes, Int x) {
        return _mm512_dpbusd_epi32(sums, codes, x);
    }

    // Halves are added up, and so on.
    static float sum(Flt values) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(values), _mm512_extractf32x8_ps(values, 1));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    // The same of each of up to eight rows, in the same order.
    static constexpr int rows_summed = 8;
    template <int R>
    static void sums_of(const Flt (&rows)[R][1], float (&sums)[R]) {
        static_assert(R <= rows_summed, "so many rows share a vector at last");
        Flt eight[rows_summed];
        for (int i = 0; i < rows_summed; ++i) eight[i] = i < R ? rows[i][0] : _mm512_setzero_ps();
        alignas(64) float all[lanes];
        _mm512_store_ps(all, of_eight(eight, [](Flt first, Flt second) { return _mm512_add_ps(first, second); }));
        for (int i = 0; i < R; ++i) sums[i] = all[i];
    }
    static int32_t sum(Int values) {  // wraps around where there is what was no number
        const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(values), _mm512_extracti64x4_epi64(values, 1));
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
    }
    static float highest(Flt values) { return _mm512_reduce_max_ps(values); }

    // Sums of products of codes of 8 bits, less 128, four of which a lane has, with factors of 16 bits.
    using CodeSums = Int;
    static CodeSums start(int32_t sum_of_factors) { return negative(left32<7>(broadcast(sum_of_factors))); }
    template <int Pair>
    static Int codes_at(const uint8_t* from) {
        if constexpr (Pair == 0) return _mm512_and_si512(load(from), _mm512_set1_epi32(0x00FF00FF));
        if constexpr (Pair == 1) return _mm512_srli_epi16(load(from), 8);
    }
    template <int>
    static void add_codes(CodeSums& sums, Int codes, Int factors) {
        sums = _mm512_dpwssd_epi32(sums, codes, factors);
    }
    static void store_codes(uint16_t* to, Int values) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(values));
    }

    // The scale of 32 floats, whose codes and the sums of 16 of these each are written.
    static float quantise(const float* x, int8_t* codes, int32_t* sums) {
        Flt values[2] = {load(x), load(x + 16)};
        float highest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(values[0]), _mm512_abs_ps(values[1])));
        if (_mm512_cmp_ps_mask(values[0], values[1], _CMP_UNORD_Q)) highest = __builtin_nanf("");
        float inverse = highest > kSmallest ? 127.0f / highest : 0.0f;
        for (int i = 0; i < 2; ++i) {
            Int whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], _mm512_set1_ps(inverse)));
            sums[i] = _mm512_reduce_add_epi32(whole);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * i), _mm512_cvtsepi32_epi8(whole));
        }
        return highest / 127.0f;
    }

    // The same of eight chunks; `sums` of their first halves, then of their second ones.
    static constexpr int chunks_quantised = 8;
    static void quantise_chunks(const float* x, int8_t* codes, float* scales, int32_t (&sums)[2][chunks_quantised]) {
        Flt most[chunks_quantised];
        unsigned no_numbers = 0;
        for (int i = 0; i < chunks_quantised; ++i) {
            const Flt first = load(x + 32 * i), second = load(x + 32 * i + 16);
            most[i] = _mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second));
            no_numbers |= static_cast<unsigned>(_mm512_cmp_ps_mask(first, second, _CMP_UNORD_Q) != 0) << i;
        }
        Flt highest = of_eight(most, [](Flt first, Flt second) { return _mm512_max_ps(first, second); });
        highest = _mm512_mask_blend_ps(static_cast<__mmask16>(no_numbers), highest, broadcast(__builtin_nanf("")));
        const __mmask16 is_usable = _mm512_cmp_ps_mask(highest, broadcast(kSmallest), _CMP_GT_OQ);
        alignas(64) float inverses[lanes];
        _mm512_store_ps(inverses, _mm512_maskz_div_ps(is_usable, broadcast(127.0f), highest));
        _mm256_storeu_ps(scales, _mm512_castps512_ps256(_mm512_div_ps(highest, broadcast(127.0f))));
        for (int half = 0; half < 2; ++half) {
            Flt whole[chunks_quantised];
            for (int i = 0; i < chunks_quantised; ++i) {
                const Int rounded = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + 32 * i + 16 * half), broadcast(inverses[i])));
                whole[i] = _mm512_castsi512_ps(rounded);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 32 * i + 16 * half), _mm512_cvtsepi32_epi8(rounded));
            }
            const Flt sum = of_eight(whole, [](Flt first, Flt second) {
                return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(first), _mm512_castps_si512(second)));
            });
            _mm256_storeu_ps(reinterpret_cast<float*>(sums[half]), _mm512_castps512_ps256(sum));
        }
    }

private:
    // All lanes of each of eight rows combined, in lanes 0 to 7: halves, then halves of these. Two rows share a vector, then four, then eight.
    template <class Combine>
    static Flt of_eight(const Flt (&rows)[8], const Combine& combine) {
        Flt eights[4], fours[2];
        for (int i = 0; i < 4; ++i)
            eights[i] = combine(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44),
                                _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xEE));
        for (int i = 0; i < 2; ++i)
            fours[i] = combine(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                               _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xDD));
        const Flt twos = combine(_mm512_shuffle_ps(fours[0], fours[1], 0x44), _mm512_shuffle_ps(fours[0], fours[1], 0xEE));
        const Int places = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
        return _mm512_permutexvar_ps(places, combine(twos, _mm512_movehdup_ps(twos)));
    }

    static __m128i sixteen(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
};

}  // namespace
}  // namespace dragoman
