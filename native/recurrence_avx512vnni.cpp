// Recurrences with AVX-512.
#include "recurrence_tile.hpp"
#include "vectors_avx512.hpp"

namespace dragoman {
namespace {

struct Streaming : Avx512Vnni {
    static void stream(float* to, Flt values) { _mm512_stream_ps(to, values); }
    static void end_of_streams() { _mm_sfence(); }
};

}  // namespace

const RecurrenceKernels kAvx512Recurrence = recurrence_of<Streaming>();

}  // namespace dragoman
