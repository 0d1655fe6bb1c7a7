// Attention with AVX2.
#include "attention_tile.hpp"
#include "vectors_avx2.hpp"

namespace dragoman {

const AttentionKernels kAvx2Attention = attention_of<Vectors256>();

}  // namespace dragoman
