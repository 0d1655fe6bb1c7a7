// The kernels for Arm's processors that multiply matrices of bytes (from Armv8.6 on): one instruction adds up eight products each of two
// rows and two outputs, twice what a dot product does. Many rows use it, whose codes are put in its order while they are unpacked. For
// few rows that order would cost what it saves: they use dot products.
#include "vectors_neon.hpp"

namespace dragoman {
namespace {

struct I8mm : VectorsNeon {
    static constexpr const char* name = "i8mm";
    static constexpr bool has_two_rows = true;
    static constexpr int few_rows = 2, most_few = 6, many_rows = 2, direct_bits = 0;

    // Codes of the unit's first and last two outputs: eight columns of each, of which a quad has four.
    static Int first_outputs(Int quad, Int next) { return vzip1q_s32(quad, next); }
    static Int last_outputs(Int quad, Int next) { return vzip2q_s32(quad, next); }
    // Sums of all outputs for one of two rows; `first`, `last`: those of the first and last two outputs for both.
    static Int of_first_row(Int first, Int last) {
        return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(last)));
    }
    static Int of_second_row(Int first, Int last) {
        return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(last)));
    }
    // Eight values of each row.
    static Int two_rows(const int8_t* first, const int8_t* second) {
        return vreinterpretq_s32_s8(vcombine_s8(vld1_s8(first), vld1_s8(second)));
    }
    static Int add_two_rows(Int sums, Int x, Int codes) {
        return vmmlaq_s32(sums, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(codes));
    }
    static Int add_sums(Int first, Int second) { return vaddq_s32(first, second); }
};

}  // namespace

const Kernels kI8mm = kernels_of<I8mm>(kNeonAttention);

}  // namespace dragoman
