// Recurrences with Arm's vectors.
#include "recurrence_tile.hpp"
#include "vectors_neon.hpp"

namespace dragoman {

const RecurrenceKernels kNeonRecurrence = recurrence_of<NotStreaming<VectorsNeon>>();

}  // namespace dragoman
