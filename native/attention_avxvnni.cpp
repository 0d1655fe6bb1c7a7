// Attention with AVX-VNNI: as with AVX2, but one instruction multiplies pairs of codes and adds them up.
#include "attention_tile.hpp"
#include "vectors_avx2.hpp"

namespace dragoman {
namespace {

struct AvxVnniPairs : Vectors256 {
    template <int>
    static void add_codes(CodeSums& sums, Int codes, Int factors) {
        sums = _mm256_dpwssd_avx_epi32(sums, codes, factors);
    }
};

}  // namespace

const AttentionKernels kAvxVnniAttention = attention_of<AvxVnniPairs>();

}  // namespace dragoman
