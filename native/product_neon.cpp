// The kernels for Arm's processors with dot products (from Armv8.2 on): one instruction adds up four products of bytes, four outputs
// at a time.
#include "vectors_neon.hpp"

namespace dragoman {
namespace {

struct Neon : VectorsNeon {
    static constexpr const char* name = "neon";
    static constexpr bool has_two_rows = false;
    static constexpr int few_rows = 2, most_few = 6, many_rows = 3, direct_bits = 0;
};

}  // namespace

const Kernels kNeon = kernels_of<Neon>(kNeonAttention);

}  // namespace dragoman
