// Vectors of 128 bits of Arm's 64-bit processors, and their dot products. Included by product_neon.cpp and product_i8mm.cpp only.
#pragma once

#include <arm_neon.h>

#include "tile.hpp"

namespace dragoman {
namespace {

struct VectorsNeon {
    using Int = int32x4_t;
    using Flt = float32x4_t;
    static constexpr int lanes = 4, units = 4, registers = 32;
    static constexpr bool has_dot = true, flips = false;
    static constexpr int attention_rows = 4, attention_units = 4, code_rows = 4, code_units = 2;

    static Int load(const uint8_t* from) { return vreinterpretq_s32_u8(vld1q_u8(from)); }
    static Flt load(const float* from) { return vld1q_f32(from); }
    static void store(uint8_t* to, Int values) { vst1q_u8(to, vreinterpretq_u8_s32(values)); }
    static void store(float* to, Flt values) { vst1q_f32(to, values); }
    // Volatile: compilers leave out calls of a lambda that does nothing else.
    static void prefetch(const uint8_t* at) { __asm__ volatile("prfm pldl1keep, [%0]" : : "r"(at)); }

    static Int nothing() { return vdupq_n_s32(0); }
    static Flt zero() { return vdupq_n_f32(0); }
    static Int broadcast(int32_t value) { return vdupq_n_s32(value); }
    static Int add(Int first, Int second) { return vaddq_s32(first, second); }
    template <int Bits>
    static Int left32(Int values) {
        return vshlq_n_s32(values, Bits);
    }
    template <int Bits>
    static Int right32(Int values) {
        return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(values), Bits));
    }
    static Int bits32(Int values, int mask) { return vandq_s32(values, vdupq_n_s32(mask)); }
    static Int words(const uint8_t* from) { return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from)))); }
    static Flt broadcast(float value) { return vdupq_n_f32(value); }

    // Four values of a row for each output: the instruction takes them out of sixteen.
    template <int Place>
    struct Four {
        int8x16_t sixteen;
    };
    template <int Quad>
    static Four<Quad % 4> four(const int8_t* row) {
        return {vld1q_s8(row + 16 * (Quad / 4))};
    }
    template <bool Signed, int Place>
    static Int add_dot(Int sums, Int codes, Four<Place> x) {
        return vdotq_laneq_s32(sums, vreinterpretq_s8_s32(codes), x.sixteen, Place);
    }

    // Bytes.
    static Int bits(Int values, int mask) { return vandq_s32(values, vreinterpretq_s32_u8(vdupq_n_u8(mask))); }
    static Int either(Int first, Int second) { return vorrq_s32(first, second); }
    template <int Bits>
    static Int left(Int values) {
        return vreinterpretq_s32_u8(vshlq_n_u8(vreinterpretq_u8_s32(values), Bits));
    }
    template <int Bits>
    static Int right(Int values) {
        if constexpr (Bits == 0) return values;
        if constexpr (Bits > 0) return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(values), Bits));
    }
    static Int look_up(const int (&table)[16], int offset, Int indices) {
        int8_t bytes[16];
        for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(table[i] + offset);
        return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(bytes), vreinterpretq_u8_s32(indices)));
    }

    static Flt mul(Flt first, Flt second) { return vmulq_f32(first, second); }
    static Flt fma(Flt first, Flt second, Flt sum) { return vfmaq_f32(sum, first, second); }
    static Flt add(Flt first, Flt second) { return vaddq_f32(first, second); }
    static Flt div(Flt first, Flt second) { return vdivq_f32(first, second); }
    // The second where one is no number, as everywhere else; Arm's own instructions give none.
    static Flt least(Flt first, Flt second) { return vbslq_f32(vcltq_f32(first, second), first, second); }
    static Flt most(Flt first, Flt second) { return vbslq_f32(vcgtq_f32(first, second), first, second); }
    static Flt absolute(Flt values) { return vabsq_f32(values); }
    static Flt where_negative(Flt values, Flt then, Flt otherwise) {
        return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(values)), then, otherwise);
    }
    static Int nearest(Flt values) { return vcvtnq_s32_f32(values); }
    static Flt times_power(Flt values, Int power) {
        return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(values), vshlq_n_s32(power, 23)));
    }
    static Flt to_floats(Int values) { return vcvtq_f32_s32(values); }
    static Flt from_halves(const uint8_t* from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
    static void store_halves(uint16_t* to, Flt values) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(values))); }
    static Flt from_bf16(const uint8_t* from) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(from)), 16));
    }
    // Of two bf16 in each four bytes the first ones, and the second ones.
    static Flt even_bf16(const uint8_t* from) { return vreinterpretq_f32_s32(vshlq_n_s32(load(from), 16)); }
    static Flt odd_bf16(const uint8_t* from) {
        return vreinterpretq_f32_s32(vandq_s32(load(from), vdupq_n_s32(static_cast<int32_t>(0xFFFF0000))));
    }
    static Flt from_bytes(const uint8_t* from) { return vcvtq_f32_u32(bytes_at(from)); }
    static Flt from_signed_bytes(const uint8_t* from) {
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(from))))));
    }
    static Flt from_half_bytes(const uint8_t* from, bool high) {
        const uint32x4_t values = bytes_at(from);
        return vcvtq_f32_u32(high ? vshrq_n_u32(values, 4) : vandq_u32(values, vdupq_n_u32(15)));
    }
    // 2^(exponent - 128) of exponents in bytes: half of what MXFP4 has, since its codes are twice its values.
    static Flt half_power(const uint8_t* from) {
        const uint32x4_t exponents = bytes_at(from);
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(exponents, vdupq_n_u32(1)), 23);
        const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(exponents));
        return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(exponents, vdupq_n_u32(2)), small, normal));
    }

    // Halves are added up, and so on.
    static float sum(Flt values) {
        const float32x2_t two = vadd_f32(vget_low_f32(values), vget_high_f32(values));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
    static int32_t sum(Int values) { return vaddvq_s32(values); }
    static float highest(Flt values) { return vmaxvq_f32(values); }

    // Sums of products of codes of 8 bits, less 128, four of which a lane has, with factors of 16 bits: those of the factors' upper
    // bytes, and those of the lower ones.
    struct CodeSums {
        Int upper, lower;
    };
    static CodeSums start(int32_t) { return {nothing(), nothing()}; }
    template <int>
    static Int codes_at(const uint8_t* from) {
        return veorq_s32(load(from), vreinterpretq_s32_u8(vdupq_n_u8(0x80)));
    }
    template <int Byte>
    static void add_codes(CodeSums& sums, Int codes, Int factors) {
        Int& sum = Byte == 0 ? sums.upper : sums.lower;
        sum = vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(factors));
    }
    static Flt to_floats(CodeSums sums) { return to_floats(vaddq_s32(vshlq_n_s32(sums.upper, 8), sums.lower)); }
    // Four upper bytes, then four lower ones, in the order that a cache's codes have.
    static void store_codes(uint16_t* to, Int values) {
        const Int upper = vshrq_n_s32(vaddq_s32(values, vdupq_n_s32(128)), 8);
        const Int lower = vsubq_s32(values, vshlq_n_s32(upper, 8));
        static const uint8_t kPlaces[8] = {0, 8, 4, 12, 16, 24, 20, 28};
        const uint8x16x2_t both = {{vreinterpretq_u8_s32(upper), vreinterpretq_u8_s32(lower)}};
        vst1_u8(reinterpret_cast<uint8_t*>(to), vqtbl2_u8(both, vld1_u8(kPlaces)));
    }

    // The scale of 32 floats, whose codes and the sums of 16 of these each are written.
    static float quantise(const float* x, int8_t* codes, int32_t* sums) {
        Flt values[8], largest = zero();
        for (int i = 0; i < 8; ++i) {
            values[i] = vld1q_f32(x + 4 * i);
            largest = vmaxq_f32(largest, vabsq_f32(values[i]));  // no number where there is one that is none
        }
        const float highest = vmaxvq_f32(largest);
        const float inverse = highest > kSmallest ? 127.0f / highest : 0.0f;
        for (int half = 0; half < 2; ++half) {
            Int whole[4];
            for (int i = 0; i < 4; ++i) whole[i] = nearest(vmulq_n_f32(values[4 * half + i], inverse));
            sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(whole[0], whole[1]), vaddq_s32(whole[2], whole[3])));
            const int16x8_t first = vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]));
            const int16x8_t second = vcombine_s16(vmovn_s32(whole[2]), vmovn_s32(whole[3]));
            vst1q_s8(codes + 16 * half, vcombine_s8(vmovn_s16(first), vmovn_s16(second)));
        }
        return highest / 127.0f;
    }

private:
    static uint8x8_t four_bytes(const uint8_t* from) {
        uint32_t four;
        std::memcpy(&four, from, 4);
        return vreinterpret_u8_u32(vdup_n_u32(four));
    }
    static uint32x4_t bytes_at(const uint8_t* from) { return vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(from)))); }
};

}  // namespace
}  // namespace dragoman
