// Layers of experts: several MLPs, of which each row goes through a few. Called by the graph's operation and by tests.
#pragma once

#include <cstdint>

#include "product.hpp"

namespace dragoman {

// `first`: matrices and biases of the first expert; those of the others lie behind, each as far from the one before it as they are
// large. `count`: of experts. Without a gate `first.up` has no data, and an expert is down(activation(gate x)).
struct Experts {
    GatedMlp first;
    int64_t count;

    bool is_gated() const { return first.up.data != nullptr; }
};

// Which experts each row goes through, below `count`, and how much each of them counts. Both [rows, active].
struct Choice {
    const int32_t* experts;
    const float* shares;
    int64_t active;
};

// y[row] = sum over its choice, in the order of that, of share * expert(x[row]). Experts that nobody chose are not read.
void experts(const Experts& all, const Choice& choice, const Input& x, float* y, int64_t stride, const ParallelFor& parallel_for);

}  // namespace dragoman
