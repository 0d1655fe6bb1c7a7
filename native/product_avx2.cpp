// The kernels with AVX2: products of bytes are added up in pairs of 16 bits, as long as these cannot overflow.
#include "vectors_avx2.hpp"

namespace dragoman {
namespace {

struct Avx2 : Vectors256 {
    static constexpr const char* name = "avx2";
    static constexpr bool has_dot = false, flips = false;
    static constexpr int few_rows = 4, most_few = 4, many_rows = 4, direct_bits = 8;

    // Sums of two products each, of codes without sign and rows with one.
    static Int pairs(Int codes, Int x) { return _mm256_maddubs_epi16(codes, x); }
    static Int add16(Int first, Int second) { return _mm256_add_epi16(first, second); }
    static Int of_pairs(Int narrow) { return _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)); }
    template <bool Signed>
    static Int add_dot(Int sums, Int codes, Int x) {
        static_assert(Signed, "others are added up in pairs");
        return add(sums, of_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))));
    }
};

}  // namespace

const Kernels kAvx2 = kernels_of<Avx2>(kAvx2Attention);

}  // namespace dragoman
