// Recurrences with AVX-512.
#include "recurrence_tile.hpp"
#include "vectors_avx512.hpp"

namespace dragoman {

const RecurrenceKernels kAvx512Recurrence = recurrence_of<Avx512Vnni>();

}  // namespace dragoman
