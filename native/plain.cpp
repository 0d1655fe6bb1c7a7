// The kernels without vectors: what all others must equal, bit for bit, and what runs where there is no other.
#include <cmath>
#include <cstring>
#include <vector>

#include "activation.hpp"
#include "attention_tile.hpp"
#include "kernels.hpp"
#include "pack.hpp"
#include "panel.hpp"
#include "quantise.hpp"
#include "recurrence_tile.hpp"
#include "rows.hpp"

namespace dragoman {
namespace {

// One float, as the others have several.
struct One {
    using Int = int32_t;
    using Flt = float;
    static constexpr int lanes = 1, registers = 16, attention_rows = 2, attention_units = 4;
    static constexpr int code_rows = 2, code_units = 4;

    static Flt load(const float* from) { return *from; }
    static void store(float* to, Flt value) { *to = value; }
    static void prefetch(const uint8_t*) {}
    static Flt zero() { return 0; }
    static Flt from_bytes(const uint8_t* from) { return *from; }
    static Flt from_bf16(const uint8_t* from) {
        uint32_t bits = 0;
        std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, from, 2);
        return of_bits(bits);
    }
    static Flt even_bf16(const uint8_t* from) { return from_bf16(from); }
    static Flt odd_bf16(const uint8_t* from) { return from_bf16(from + 2); }
    static Flt from_halves(const uint8_t* from) {
        uint16_t half;
        std::memcpy(&half, from, 2);
        const uint32_t sign = uint32_t{half} >> 15 << 31, rest = half & 0x7FFF;
        if (rest >= 0x7C00) return of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
        return sign ? -float_of(static_cast<uint16_t>(rest)) : float_of(static_cast<uint16_t>(rest));
    }
    static void store_halves(uint16_t* to, Flt value) {
        const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        *to = static_cast<uint16_t>(sign | (std::isnan(value) ? 0x7E00 : half_of(std::fabs(value))));
    }
    static Flt broadcast(float value) { return value; }
    static Flt mul(Flt first, Flt second) { return first * second; }
    static Flt add(Flt first, Flt second) { return first + second; }
    static Flt div(Flt first, Flt second) { return first / second; }
    static Flt fma(Flt first, Flt second, Flt sum) { return std::fma(first, second, sum); }
    static Flt least(Flt first, Flt second) { return first < second ? first : second; }
    static Flt most(Flt first, Flt second) { return first > second ? first : second; }
    static Flt absolute(Flt value) { return std::fabs(value); }
    static Flt where_negative(Flt value, Flt then, Flt otherwise) { return std::signbit(value) ? then : otherwise; }
    static Int nearest(Flt value) { return std::fabs(value) < 2e9f ? static_cast<Int>(std::nearbyint(value)) : 0; }
    static Flt to_floats(Int value) { return static_cast<Flt>(value); }
    static Flt of_bits(uint32_t bits) {
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
    static Flt times_power(Flt value, Int power) {
        int32_t bits;
        std::memcpy(&bits, &value, 4);
        bits += static_cast<int32_t>(static_cast<uint32_t>(power) << 23);
        std::memcpy(&value, &bits, 4);
        return value;
    }

    static Flt sum(Flt value) { return value; }
    static Int sum(Int value) { return value; }
    static Flt highest(Flt value) { return value; }
    static Int broadcast(Int value) { return value; }
    static Int add(Int first, Int second) { return first + second; }

    // Sums of products of four codes of 8 bits, less 128, with factors of 16 bits.
    using CodeSums = Int;
    static CodeSums start(int32_t) { return 0; }
    template <int Pair>
    static Int codes_at(const uint8_t* from) {
        return from[Pair] | from[Pair + 2] << 16;
    }
    template <int>
    static void add_codes(CodeSums& sums, Int codes, Int factors) {
        sums += ((codes & 255) - 128) * static_cast<int16_t>(factors & 0xFFFF) + ((codes >> 16) - 128) * (factors >> 16);
    }
    static void store_codes(uint16_t* to, Int value) { *to = static_cast<uint16_t>(value); }

    // The scale of 32 floats, whose codes and the sums of 16 of these each are written.
    static float quantise(const float* values, int8_t* codes, int32_t* sums) {
        float highest = 0;
        for (int i = 0; i < kChunk; ++i) highest = most(std::fabs(values[i]), highest);
        for (int i = 0; i < kChunk; ++i) highest = std::isnan(values[i]) ? NAN : highest;
        const float inverse = highest > kSmallest ? 127.0f / highest : 0.0f;
        sums[0] = sums[1] = 0;
        for (int i = 0; i < kChunk; ++i) {
            const float scaled = values[i] * inverse;
            codes[i] = static_cast<int8_t>(std::isfinite(scaled) ? static_cast<int>(std::nearbyint(scaled)) : -128);
            sums[i / 16] += codes[i];
        }
        return highest / 127.0f;
    }
};

// Adds the products of one output's floats and a chunk of all rows, column by column.
void add_floats(const Matrix& matrix, int64_t output, int64_t chunk, const Rows& rows, int64_t num_rows, float* sums,
                int64_t stride) {
    float values[kChunk];
    float_values(matrix, output, chunk, values);
    const int64_t left = matrix.columns - chunk * kChunk;
    for (int64_t row = 0; row < num_rows; ++row) {
        const float* x = rows.x + row * rows.stride + chunk * kChunk;
        float& sum = sums[row * stride];
        for (int column = 0; column < kChunk && column < left; ++column) sum = std::fma(values[column], x[column], sum);
    }
}

// Adds the products of an output's codes and a chunk of a row.
void add_chunk(const Shape& shape, const ChunkValues& values, const Rows& x, int64_t chunk, float& sum) {
    for (int sub = 0; sub < kChunk / shape.sub; ++sub) {
        int32_t products = 0;
        for (int column = sub * shape.sub; column < (sub + 1) * shape.sub; ++column)
            products += values.codes[column] * x.codes[chunk * kChunk + column];
        sum = std::fma(static_cast<float>(products), values.scale[sub] * x.scales[chunk], sum);
        if (shape.has_minimum) sum = std::fma(values.minimum[sub], x.shifts[chunk * kShifts + sum_index(shape.sub, sub)], sum);
    }
}

void product(const Matrix& matrix, const Rows& rows, int64_t num_rows, int64_t first, int64_t last, float* y, int64_t y_stride) {
    const Shape& shape = shape_of(matrix.format);
    const bool is_wide = matrix.is_wide();
    const int64_t end = last * kPanel < matrix.outputs ? last * kPanel : matrix.outputs, per_group = matrix.chunks_of_block();
    std::vector<float> group(num_rows);
    for (int64_t output = first * kPanel; output < end; ++output) {
        for (int64_t row = 0; row < num_rows; ++row) y[row * y_stride + output] = group[row] = 0;
        for (int64_t chunk = 0; chunk < matrix.chunks(); ++chunk) {
            if (matrix.is_float()) {
                add_floats(matrix, output, chunk, rows, num_rows, y + output, y_stride);
                continue;
            }
            const ChunkValues values = chunk_values(matrix, output, chunk);
            const bool ends_group = (chunk + 1) % per_group == 0 || chunk + 1 == rows.chunks;
            const bool ends_block = (chunk + 1) % kBlockChunks == 0 || chunk + 1 == rows.chunks;
            for (int64_t row = 0; row < num_rows; ++row) {
                const Rows x = row_of(rows, row);
                float& sum = y[row * y_stride + output];
                if (!is_wide) {
                    add_chunk(shape, values, x, chunk, sum);
                } else {
                    int32_t products = 0;
                    for (int column = 0; column < kChunk; ++column)
                        products += values.codes[column] * x.codes[chunk * kChunk + column];
                    group[row] = std::fma(static_cast<float>(products), x.scales[chunk], group[row]);
                    if (ends_group) {
                        sum = std::fma(group[row], values.scale[0], sum);
                        float shift = 0;
                        for (int64_t c = chunk / per_group * per_group; c <= chunk; ++c) shift += x.shifts[c * kShifts + 2];
                        if (shape.has_minimum) sum = std::fma(values.minimum[0], shift, sum);
                        group[row] = 0;
                    }
                }
                for (int64_t index = 0; ends_block && index < finer_of(rows.chunks); ++index) {
                    Finer& finer = x.finer[index];
                    if (finer.chunk / kBlockChunks == chunk / kBlockChunks && finer.chunk >= 0)
                        add_chunk(shape, chunk_values(matrix, output, finer.chunk), finer.row(), 0, sum);
                }
            }
        }
    }
}

}  // namespace

const AttentionKernels kPlainAttention = attention_of<One>();
const RecurrenceKernels kPlainRecurrence = recurrence_of<NotStreaming<One>>();

const Kernels kPlain = {"plain", quantise_with<One>, codes_with<One>, file_panel_with<One>, activate_with<One>,
                        product, &kPlainAttention};

}  // namespace dragoman
