// Recurrences with AVX2, which those of AVX-VNNI are, too.
#include "recurrence_tile.hpp"
#include "vectors_avx2.hpp"

namespace dragoman {

const RecurrenceKernels kAvx2Recurrence = recurrence_of<Vectors256>();

}  // namespace dragoman
