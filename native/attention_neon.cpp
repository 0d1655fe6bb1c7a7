// Attention with Arm's vectors.
#include "attention_tile.hpp"
#include "vectors_neon.hpp"

namespace dragoman {

const AttentionKernels kNeonAttention = attention_of<VectorsNeon>();

}  // namespace dragoman
