// Whole layers of a decoder, one behind the other in one call, for whoever makes a graph operation of them.
//
// What stands before attention, attention, and what stands behind it are computed by the same functions that compute them apart:
// bits are the same. Rows between them lie in memory of the thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "layer.hpp"

namespace dragoman {

// A layer's products write nowhere, and its step has no queries, keys, values and results: these are memory of `run_layers`.
struct Layer {
    Norm norm;
    Product qkv[3];  // queries, keys, values
    Heads heads[3];
    Angles angles;
    Attention attention;
    AttentionStep step;
    OutputAndMlp rest;
};

// x: the step's rows, [tokens, hidden]. Of the last layer the rest is computed for the rows `kept` alone, and y [rows, hidden] are those;
// null = for all.
void run_layers(const std::vector<Layer>& layers, const float* x, const std::vector<int64_t>* kept, float* y,
                const ParallelFor& parallel_for);

}  // namespace dragoman
