// The kernels for matrices of floats of two bytes, as a template over an instruction set. Included by tile.hpp only.
//
// Rows stay f32, and so do sums: values are widened, and added up by `sum = fma(value, x, sum)` in the order of the columns, one sum
// for each output. Several outputs are summed up at once, which hides the time of an addition. Values are widened in registers for
// each tile of rows: that costs a few instructions in a hundred, and widening them once into memory costs more (measured).
#pragma once

#include <cstring>

#include "kernels.hpp"
#include "static_for.hpp"

namespace dragoman {

constexpr int kAhead = 4096;        // bytes that are asked for ahead of what is multiplied
constexpr int kUnits = 4;           // vectors of outputs that are summed up at once
constexpr int kFloatColumns = 192;  // of a block, which stays in the first cache
constexpr int kFloatRows = 96;      // that use it

constexpr int64_t least(int64_t first, int64_t second) { return first < second ? first : second; }

template <class Isa, Format F>
class FloatTiles {
    using Flt = typename Isa::Flt;
    static constexpr int kOfPanel = kPanel / Isa::lanes;      // units
    static constexpr int kBytes = F == Format::bf16 ? 4 : 2;  // from one output to the next
    static constexpr int kWidth = kUnits * Isa::lanes;
    static constexpr int kRows = 6;  // that are multiplied at once

    // The places of the units' first columns.
    struct Units {
        const uint8_t* at[kUnits];
    };

public:
    FloatTiles(const Matrix& matrix, const Rows& rows, int64_t num_rows, float* y, int64_t y_stride)
        : matrix_(matrix), rows_(rows), num_rows_(num_rows), y_(y), stride_(y_stride) {}

    // Units that are none are the first one again, whose results are not written.
    void run(int64_t first, int64_t last) const {
        for (int64_t unit = first * kOfPanel, end = last * kOfPanel; unit < end; unit += kUnits) {
            Units units;
            for (int n = 0; n < kUnits; ++n) {
                const int64_t here = unit + n < end ? unit + n : unit;
                units.at[n] = matrix_.panel(here / kOfPanel) + here % kOfPanel * Isa::lanes * kBytes;
            }
            const int64_t output = unit * Isa::lanes, count = least(kWidth, least(last * kPanel, matrix_.outputs) - output);
            for (int64_t row = 0; row < num_rows_; row += kFloatRows)
                block_of_rows(units, row, least(kFloatRows, num_rows_ - row), output, count);
        }
    }

private:
    // The even or the odd one of two columns.
    template <int Odd>
    DRAGOMAN_INLINE static Flt widened(const uint8_t* pair) {
        if constexpr (F == Format::f16) return Isa::from_halves(pair + 2 * kPanel * Odd);
        return Odd ? Isa::odd_bf16(pair) : Isa::even_bf16(pair);
    }

    // Few rows are multiplied with all columns in one go; the columns that many rows need stay in the first cache.
    void block_of_rows(Units units, int64_t row, int64_t num_rows, int64_t output, int64_t num_outputs) const {
        alignas(64) float sums[kFloatRows * kWidth];
        std::memset(sums, 0, sizeof(float) * num_rows * kWidth);
        const int64_t all = matrix_.columns, together = num_rows <= kRows ? all : kFloatColumns;
        for (int64_t column = 0; column < all; column += together) {
            const int64_t columns = least(together, all - column);
            // Tiles are of nearly equal numbers of rows.
            for (int64_t r = 0, tiles = (num_rows + kRows - 1) / kRows, count; tiles; r += count, --tiles) {
                count = (num_rows - r + tiles - 1) / tiles;
                static_for<1, kRows + 1>([&](auto rows) {
                    if (rows == count) add_units<rows>(units, row + r, column, columns, sums + r * kWidth);
                });
            }
            for (const uint8_t*& at : units.at) at += together / 2 * kLine;
        }
        for (int64_t r = 0; r < num_rows; ++r)
            std::memcpy(y_ + (row + r) * stride_ + output, sums + r * kWidth, sizeof(float) * num_outputs);
    }

    // Adds the products of R rows and some columns to the sums, as many units at once as registers hold.
    template <int R>
    void add_units(const Units& units, int64_t row, int64_t begin, int64_t columns, float* sums) const {
        constexpr int together = (R + 1) * kUnits + 2 <= Isa::registers ? kUnits : kUnits / 2;
        static_for<0, kUnits / together>([&](auto part) {
            add<R, together, part * together>(units, row, begin, columns, sums + part * together * Isa::lanes);
        });
    }

    template <int R, int N, int First>
    [[gnu::flatten]] void add(const Units& units, int64_t row, int64_t begin, int64_t columns, float* sums) const {
        const float* x[R];
        Flt total[R][N];
        static_for<0, R>([&](auto r) {
            x[r] = rows_.x + (row + r) * rows_.stride + begin;
            static_for<0, N>([&](auto n) { total[r][n] = Isa::load(sums + r * kWidth + n * Isa::lanes); });
        });
        const auto add_column = [&](auto odd, int64_t pair) {
            Flt values[N];
            static_for<0, N>([&](auto n) { values[n] = widened<odd>(units.at[First + n] + pair * kLine); });
            static_for<0, R>([&](auto r) {
                const Flt factor = Isa::broadcast(x[r][2 * pair + odd]);
                static_for<0, N>([&](auto n) { total[r][n] = Isa::fma(values[n], factor, total[r][n]); });
            });
        };
        for (int64_t pair = 0; pair < columns / 2; ++pair) {
            add_column(std::integral_constant<int, 0>{}, pair);
            add_column(std::integral_constant<int, 1>{}, pair);
            for (int n = 0; n < N; n += kOfPanel) Isa::prefetch(units.at[First + n] + pair * kLine + kAhead);
        }
        if (columns % 2) add_column(std::integral_constant<int, 0>{}, columns / 2);
        static_for<0, R>(
            [&](auto r) { static_for<0, N>([&](auto n) { Isa::store(sums + r * kWidth + n * Isa::lanes, total[r][n]); }); });
    }

    const Matrix& matrix_;
    const Rows& rows_;
    int64_t num_rows_;
    float* y_;
    int64_t stride_;
};

}  // namespace dragoman
