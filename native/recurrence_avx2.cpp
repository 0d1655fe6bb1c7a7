// Recurrences with AVX2, which those of AVX-VNNI are, too.
#include "recurrence_tile.hpp"
#include "vectors_avx2.hpp"

namespace dragoman {
namespace {

struct Streaming : Vectors256 {
    static void stream(float* to, Flt values) { _mm256_stream_ps(to, values); }
    static void end_of_streams() { _mm_sfence(); }
};

}  // namespace

const RecurrenceKernels kAvx2Recurrence = recurrence_of<Streaming>();

}  // namespace dragoman
