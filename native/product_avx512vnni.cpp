// The kernels with AVX-512 and VNNI.
#include "vectors_avx512.hpp"

namespace dragoman {

const Kernels kAvx512Vnni = kernels_of<Avx512Vnni>(kAvx512Attention);

}  // namespace dragoman
