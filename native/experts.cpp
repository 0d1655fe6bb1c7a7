// Sorts rows by expert, multiplies them with the experts that are hit, and adds up what comes out. See experts.hpp.
#include "experts.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "parts.hpp"

namespace dragoman {
namespace {

constexpr int64_t kBytesAtOnce = 64 << 20;  // of what comes out of products: of more rows some are computed after the others

// A chosen expert of a row is a pair; `places` of pairs among all that are sorted by expert, `rows_of`: whose row lies there.
struct Scratch {
    RowMemory rows, sorted, inner;
    std::vector<float> values, gate, up, results;  // `up` without a gate: ones, of one row
    std::vector<int64_t> places, rows_of;
};

Scratch& scratch() {
    static thread_local Scratch held_by_thread;
    return held_by_thread;
}

// An expert that is hit, and its rows: `count` places from `first` on.
struct Group {
    int64_t expert, first, count;
    Rows rows;
};

Matrix matrix_of(const Matrix& first, int64_t expert) {
    Matrix matrix = first;
    matrix.data += expert * first.bytes();
    return matrix;
}

const float* bias_of(const float* first, int64_t expert, int64_t outputs) { return first ? first + expert * outputs : nullptr; }

// Calls `body` with each group and each part of its rows' product with a matrix like this one.
template <class Body>
void for_parts(const std::vector<Group>& groups, const Matrix& matrix, const ParallelFor& parallel_for, const Body& body) {
    std::vector<int64_t> ends;
    for (const Group& group : groups) ends.push_back((ends.empty() ? 0 : ends.back()) + Parts(matrix, group.count).count());
    parallel_for(ends.back(), [&](int64_t index) {
        const size_t i = std::upper_bound(ends.begin(), ends.end(), index) - ends.begin();
        body(groups[i], Parts(matrix, groups[i].count), i ? index - ends[i - 1] : index);
    });
}

// The groups of those who are hit, without rows; and the places of pairs.
std::vector<Group> sorted(const Choice& choice, int64_t num_rows, int64_t num_experts, int64_t* places, int64_t* rows_of) {
    const int64_t num_pairs = num_rows * choice.active;
    std::vector<int64_t> next(num_experts + 1, 0);
    for (int64_t pair = 0; pair < num_pairs; ++pair) ++next[choice.experts[pair] + 1];
    std::vector<Group> groups;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
        if (next[expert + 1]) groups.push_back({expert, next[expert], next[expert + 1], {}});
        next[expert + 1] += next[expert];
    }
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
        places[pair] = next[choice.experts[pair]]++;
        rows_of[places[pair]] = pair / choice.active;
    }
    return groups;
}

void copy_codes(const Rows& from, const Rows& to) {
    std::memcpy(to.codes, from.codes, from.chunks * kChunk);
    std::memcpy(to.scales, from.scales, sizeof(float) * from.chunks);
    std::memcpy(to.sums, from.sums, sizeof(int32_t) * from.chunks * kSums);
    std::memcpy(to.shifts, from.shifts, sizeof(float) * from.chunks * kShifts);
    *to.totals = *from.totals;
    std::copy_n(from.finer, finer_of(from.chunks), to.finer);
}

// Gives each group its rows: where they lie beside each other as they are, else copied to their places.
void give_rows(std::vector<Group>& groups, const Rows& rows, int64_t columns, bool reads_floats, int64_t num_pairs,
               const int64_t* rows_of, const ParallelFor& parallel_for) {
    std::vector<Group*> scattered;
    for (Group& group : groups) {
        const int64_t* its = rows_of + group.first;
        int64_t beside = 1;
        while (beside < group.count && its[beside] == its[0] + beside) ++beside;
        group.rows = row_of(rows, its[0]);
        if (beside < group.count) scattered.push_back(&group);
    }
    if (scattered.empty()) return;
    float* values = reads_floats ? held(scratch().values, num_pairs * columns) : nullptr;
    const Rows copies = scratch().sorted.rows({values, num_pairs, values ? columns : 0}, columns, rows.codes != nullptr);
    for_rows(static_cast<int64_t>(scattered.size()), parallel_for, [&](int64_t index) {
        Group& group = *scattered[index];
        for (int64_t place = group.first; place < group.first + group.count; ++place) {
            const Rows row = row_of(rows, rows_of[place]);
            if (values) std::memcpy(values + place * columns, row.x, sizeof(float) * columns);
            if (rows.codes) copy_codes(row, row_of(copies, place));
        }
        group.rows = row_of(copies, group.first);
    });
}

void experts_at_once(const Experts& all, const Choice& choice, const Input& x, float* y, int64_t stride,
                     const ParallelFor& parallel_for) {
    const GatedMlp& mlp = all.first;
    const int64_t inner = mlp.gate.outputs, outputs = mlp.down.outputs, num_pairs = x.count * choice.active;
    const bool is_gated = all.is_gated();
    const bool reads_floats = mlp.gate.is_float() || (is_gated && mlp.up.is_float()),
               reads_codes = !mlp.gate.is_float() || (is_gated && !mlp.up.is_float());
    Scratch& to = scratch();
    float *gate = held(to.gate, num_pairs * inner), *up = held(to.up, is_gated ? num_pairs * inner : inner);
    if (!is_gated) std::fill(up, up + inner, 1.0f);
    const Rows rows = to.rows.rows(x, mlp.gate.columns, reads_codes),
               inner_rows = to.inner.rows({gate, num_pairs, inner}, inner, !mlp.down.is_float());
    float* results = held(to.results, num_pairs * outputs);
    int64_t *places = held(to.places, num_pairs), *rows_of = held(to.rows_of, num_pairs);
    const auto quantise = [&](const Rows& all_rows, int64_t count, int64_t columns) {
        if (all_rows.codes == nullptr) return;
        for_rows(count, parallel_for, [&](int64_t index) {
            const Rows row = row_of(all_rows, index);
            kernels().quantise(row.x, columns, row);
        });
    };

    quantise(rows, x.count, mlp.gate.columns);
    std::vector<Group> groups = sorted(choice, x.count, all.count, places, rows_of);
    give_rows(groups, rows, mlp.gate.columns, reads_floats, num_pairs, rows_of, parallel_for);
    for_parts(groups, mlp.gate, parallel_for, [&](const Group& group, const Parts& parts, int64_t part) {
        const int64_t at = group.first * inner;
        const Product first = {matrix_of(mlp.gate, group.expert), bias_of(mlp.gate_bias, group.expert, inner), gate + at, inner};
        if (is_gated) {
            const Product second = {matrix_of(mlp.up, group.expert), bias_of(mlp.up_bias, group.expert, inner), up + at, inner};
            Parts up_parts(mlp.up, group.count);
            up_parts.panels_of_part = parts.panels_of_part;  // so that a part has the same outputs of both
            compute(second, group.rows, up_parts, part, group.count);
        }
        const Span span = compute(first, group.rows, parts, part, group.count);
        for (int64_t row = span.row; row < span.row + span.num_rows; ++row) {
            const int64_t from = at + row * inner + span.output;
            kernels().activate(mlp.activation, gate + from, up + (is_gated ? from : span.output), span.num_outputs);
        }
    });
    quantise(inner_rows, num_pairs, inner);
    for_parts(groups, mlp.down, parallel_for, [&](const Group& group, const Parts& parts, int64_t part) {
        const Product last = {matrix_of(mlp.down, group.expert), bias_of(mlp.down_bias, group.expert, outputs),
                              results + group.first * outputs, outputs};
        compute(last, row_of(inner_rows, group.first), parts, part, group.count);
    });
    for_rows(x.count, parallel_for, [&](int64_t row) {
        float* sums = y + row * stride;
        for (int64_t pair = row * choice.active; pair < (row + 1) * choice.active; ++pair) {
            const float share = choice.shares[pair];
            const float* from = results + places[pair] * outputs;
            if (pair == row * choice.active) std::fill(sums, sums + outputs, 0.0f);
            for (int64_t output = 0; output < outputs; ++output) sums[output] += share * from[output];
        }
    });
}

}  // namespace

void experts(const Experts& all, const Choice& choice, const Input& x, float* y, int64_t stride,
             const ParallelFor& parallel_for) {
    if (x.count == 0) return;
    const int64_t row_bytes =
        static_cast<int64_t>(sizeof(float)) * choice.active * (2 * all.first.gate.outputs + all.first.down.outputs);
    const int64_t most = std::max(kBytesAtOnce / row_bytes, int64_t{1}), times = (x.count + most - 1) / most;
    for (int64_t time = 0; time < times; ++time) {
        const int64_t first = x.count * time / times, last = x.count * (time + 1) / times;
        const Choice its = {choice.experts + first * choice.active, choice.shares + first * choice.active, choice.active};
        const Input some = {x.data + first * x.stride, last - first, x.stride};
        experts_at_once(all, its, some, y + first * stride, stride, parallel_for);
    }
}

}  // namespace dragoman
