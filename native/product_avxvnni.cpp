// The kernels with AVX-VNNI: four products of bytes are added up by one instruction, eight outputs at a time.
#include "vectors_avx2.hpp"

namespace dragoman {
namespace {

struct AvxVnni : Vectors256 {
    static constexpr const char* name = "avxvnni";
    static constexpr bool has_dot = true, flips = true;
    static constexpr int few_rows = 4, most_few = 8, many_rows = 4, direct_bits = 4;

    template <bool Signed>
    static Int add_dot(Int sums, Int codes, Int x) {
        return _mm256_dpbusd_avx_epi32(sums, codes, x);
    }
};

}  // namespace

const Kernels kAvxVnni = kernels_of<AvxVnni>(kAvxVnniAttention);

}  // namespace dragoman
