// Attention with AVX-512 and products of pairs of bf16: of caches of bf16, whose queries and weights are rounded to bf16, too. All else is
// as with AVX-512.
#include "attention_tile.hpp"
#include "vectors_avx512.hpp"

namespace dragoman {
namespace {

struct Avx512Bf16 : Avx512Vnni {
    static constexpr bool has_pairs = true;

    // Adds the products of pairs to the sums.
    static Flt add_pairs(Flt sums, Int first, Int second) {
        return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(first), reinterpret_cast<__m512bh>(second));
    }
    static void store_bf16(uint16_t* to, Flt values) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
    }
};

}  // namespace

const AttentionKernels kAvx512Bf16Attention = attention_of<Avx512Bf16>();

}  // namespace dragoman
