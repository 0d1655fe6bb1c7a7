// Attention with AVX-512.
#include "attention_tile.hpp"
#include "vectors_avx512.hpp"

namespace dragoman {

const AttentionKernels kAvx512Attention = attention_of<Avx512Vnni>();

}  // namespace dragoman
