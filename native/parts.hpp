// The parts in which threads compute a product, and memory that a thread keeps. Included by the files that share work among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace dragoman {

// Memory that a thread keeps for its next call.
template <class T>
T* held(std::vector<T>& values, int64_t size) {
    if (static_cast<int64_t>(values.size()) < size) values.resize(size);
    return values.data();
}

// Memory for rows in 8 bits.
struct RowMemory {
    // These rows, with memory for them in 8 bits if somebody needs that.
    Rows rows(const Input& x, int64_t columns, bool needs_codes) {
        const int64_t chunks = (columns + kChunk - 1) / kChunk, sums_of_all = x.count * chunks * kSums;
        if (!needs_codes) return {x.data, x.stride, chunks, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
        return {x.data,
                x.stride,
                chunks,
                held(codes, x.count * chunks * kChunk),
                held(scales, x.count * chunks),
                held(sums, sums_of_all),
                held(shifts, x.count * chunks * kShifts),
                held(totals, x.count),
                held(finer, x.count * finer_of(chunks))};
    }

    std::vector<int8_t> codes;
    std::vector<float> scales, shifts, totals;
    std::vector<int32_t> sums;
    std::vector<Finer> finer;
};

constexpr int64_t kRowsWorthThreads = 8;
constexpr int64_t kMostRows = 192;             // that a thread multiplies with one part of the panels: each reads these once more
constexpr int64_t kPartRowBytes = 600 * 1024;  // of rows that stay in a core's second cache, of a megabyte or more
constexpr int64_t kRowChunkBytes = 64;         // of a row's chunk: codes, and what lies beside them
constexpr int64_t kRowsTogether = 12;          // of which parts are multiples: kernels take 2, 4 or 6 at a time
constexpr int64_t kPartBytes = 65536;          // of panels at least, so that a part is worth a call

// Calls `body` with each row, on threads if they are worth it.
template <class Body>
void for_rows(int64_t count, const ParallelFor& parallel_for, const Body& body) {
    if (count < kRowsWorthThreads) {
        for (int64_t row = 0; row < count; ++row) body(row);
    } else {
        parallel_for(count, body);
    }
}

// The parts in which a product is computed: each some panels for some rows.
struct Parts {
    int64_t panels, panels_of_part, rows_of_part, parts_of_rows;

    Parts(const Matrix& matrix, int64_t num_rows) {
        panels = matrix.panels();
        const int64_t fewest = kPartBytes / matrix.panel_bytes() + 1, together = matrix.is_float() ? 4 : 2;
        panels_of_part = (fewest + together - 1) / together * together;
        const int64_t most = std::clamp(kPartRowBytes / (kRowChunkBytes * matrix.chunks()), kRowsTogether, kMostRows);
        const int64_t fewest_parts = std::max<int64_t>((num_rows + most - 1) / most, 1);
        rows_of_part = (num_rows + fewest_parts * kRowsTogether - 1) / (fewest_parts * kRowsTogether) * kRowsTogether;
        rows_of_part = std::max(rows_of_part, kRowsTogether);
        parts_of_rows = (num_rows + rows_of_part - 1) / rows_of_part;
    }

    int64_t parts_of_panels() const { return (panels + panels_of_part - 1) / panels_of_part; }
    int64_t count() const { return parts_of_panels() * parts_of_rows; }
};

// Rows and outputs of a part.
struct Span {
    int64_t row, num_rows, output, num_outputs;
};

inline Span compute(const Product& product, const Rows& rows, const Parts& parts, int64_t part, int64_t num_rows) {
    const Matrix& matrix = product.matrix;
    const int64_t first = part % parts.parts_of_panels() * parts.panels_of_part,
                  row = part / parts.parts_of_panels() * parts.rows_of_part;
    const int64_t last = std::min(first + parts.panels_of_part, parts.panels);
    const Span span = {row, std::min(num_rows - row, parts.rows_of_part), first * kPanel,
                       std::min(last * kPanel, matrix.outputs) - first * kPanel};
    kernels().product(matrix, row_of(rows, row), span.num_rows, first, last, product.y + row * product.stride, product.stride);
    if (product.bias == nullptr) return span;
    for (int64_t r = row; r < row + span.num_rows; ++r) {
        float* y = product.y + r * product.stride;
        for (int64_t output = span.output; output < span.output + span.num_outputs; ++output) y[output] += product.bias[output];
    }
    return span;
}

// Several products of rows that are ready.
void products_of(const Product* all, int count, const Rows& rows, int64_t num_rows, const ParallelFor& parallel_for);

// The inner rows of a gated MLP, [rows, outputs of gate], in `gate`; `up` has room for as many values.
void gate_and_up(const GatedMlp& mlp, const Rows& rows, int64_t num_rows, float* gate, float* up,
                 const ParallelFor& parallel_for);

}  // namespace dragoman
