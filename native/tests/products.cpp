// Compares the kernels of each instruction set with their plain twin, bit for bit, and that with sums of doubles, for all formats
// and hostile shapes. `make check-native` builds it with sanitizers and runs it. The exit code is 1 if something differs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels.hpp"
#include "pack.hpp"
#include "product.hpp"

namespace {

using dragoman::Format;
using dragoman::kChunk;
using dragoman::Kernels;
using dragoman::kPanel;
using dragoman::Matrix;

int failures = 0;

void expect(bool holds, const char* what, const Matrix& matrix, int64_t num_rows) {
    if (holds) return;
    ++failures;
    std::printf("%s: %s, %lld outputs, %lld columns in groups of %lld, %lld rows\n", what, shape_of(matrix.format).name,
                static_cast<long long>(matrix.outputs), static_cast<long long>(matrix.columns),
                static_cast<long long>(matrix.group), static_cast<long long>(num_rows));
}

// Memory that begins at a cache line and ends where it ends, so that the sanitizer sees what is read behind it.
struct Buffer {
    explicit Buffer(int64_t size)
        : begin(static_cast<uint8_t*>(std::aligned_alloc(dragoman::kLine, static_cast<size_t>(size)))) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(begin); }
    uint8_t* begin;
};

std::mt19937 generator(7);

int random_below(int limit) { return static_cast<int>(generator() % static_cast<unsigned>(limit)); }

// An f16 between 0.001 and 0.12, or the negative of one.
uint16_t random_half() { return static_cast<uint16_t>(random_below(2) << 15 | (5 + random_below(7)) << 10 | random_below(1024)); }

bool is_of_groups(Format format) {
    return format <= Format::i8z;  // the others are packed from blocks of files only, or are floats
}

bool is_of_floats(Format format) { return shape_of(format).codes == dragoman::Codes::floats; }

// Where the f16 numbers of a block lie, by the layouts of GGUF files; -1 = there is none. The other bytes may be anything.
struct Block {
    Format format;
    int bytes;
    int halves[2];
};
constexpr Block kBlocks[] = {
    {Format::q2_k, 84, {80, 82}},   {Format::q3_k, 110, {108, -1}}, {Format::q4_k, 144, {0, 2}},   {Format::q5_k, 176, {0, 2}},
    {Format::q6_k, 210, {208, -1}}, {Format::iq4_nl, 18, {0, -1}},  {Format::mxfp4, 17, {-1, -1}}, {Format::i4, 18, {0, -1}},
    {Format::i4m, 20, {0, 2}},      {Format::i5, 22, {0, -1}},      {Format::i5m, 24, {0, 2}},     {Format::i8, 34, {0, -1}},
};

void pack_random_groups(const Matrix& matrix, uint8_t* out) {
    const int64_t groups = matrix.blocks();
    const int bits = shape_of(matrix.format).bits;
    std::vector<uint8_t> codes(static_cast<size_t>(matrix.outputs * matrix.columns));
    std::vector<uint16_t> scales(static_cast<size_t>(matrix.outputs * groups)), halves(scales.size());
    std::vector<uint8_t> bytes(scales.size());
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random_below(1 << bits));
    for (uint16_t& scale : scales) scale = random_half();
    for (uint16_t& half : halves) half = random_half();
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_below(1 << bits));
    const bool has_bytes = matrix.format == Format::i4z || matrix.format == Format::i8z;
    const void* minima = has_bytes ? static_cast<const void*>(bytes.data()) : halves.data();
    pack_groups(matrix, 0, matrix.outputs, codes.data(), scales.data(), minima, out);
}

void pack_random_blocks(const Matrix& matrix, uint8_t* out) {
    const Block& block =
        *std::find_if(std::begin(kBlocks), std::end(kBlocks), [&](const Block& one) { return one.format == matrix.format; });
    std::vector<uint8_t> rows(static_cast<size_t>(matrix.outputs * gguf_row_bytes(matrix)));
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(generator());
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(block.bytes)) {
        for (int place : block.halves) {
            const uint16_t half = random_half();
            if (place >= 0) std::memcpy(&rows[begin + static_cast<size_t>(place)], &half, 2);
        }
        if (block.format == Format::mxfp4) rows[begin] = static_cast<uint8_t>(115 + random_below(12));
    }
    pack_gguf(matrix, 0, matrix.outputs, rows.data(), out);
}

// All kinds of numbers of two bytes: bf16 of the size of weights, f16 also too small for a full fraction.
void pack_random_floats(const Matrix& matrix, uint8_t* out) {
    const bool is_short = matrix.format == Format::bf16;
    std::vector<uint16_t> values(static_cast<size_t>(matrix.outputs * matrix.columns));
    for (uint16_t& value : values)
        value = static_cast<uint16_t>(random_below(2) << 15 | (is_short ? 115 * 128 + random_below(1600) : random_below(15000)));
    pack_floats(matrix, 0, matrix.outputs, values.data(), out);
}

void pack_random(const Matrix& matrix, uint8_t* out) {
    if (is_of_floats(matrix.format)) return pack_random_floats(matrix, out);
    is_of_groups(matrix.format) ? pack_random_groups(matrix, out) : pack_random_blocks(matrix, out);
}

// The rows in 8 bits, as one instruction set makes them, and their products with all panels.
std::vector<float> product_of(const Kernels& with, const Matrix& matrix, const std::vector<float>& x, int64_t num_rows) {
    const int64_t chunks = matrix.chunks();
    const auto size = [](int64_t count) { return static_cast<size_t>(count); };
    std::vector<int8_t> codes(size(num_rows * chunks * kChunk));
    std::vector<float> scales(size(num_rows * chunks)), shifts(size(num_rows * chunks * dragoman::kShifts));
    std::vector<int32_t> sums(size(num_rows * chunks * dragoman::kSums));
    std::vector<float> totals(size(num_rows));
    std::vector<dragoman::Finer> finer(size(num_rows * dragoman::finer_of(chunks)));
    const dragoman::Rows rows{x.data(),    matrix.columns, chunks,        codes.data(), scales.data(),
                              sums.data(), shifts.data(),  totals.data(), finer.data()};
    for (int64_t row = 0; row < num_rows; ++row) {
        with.quantise(&x[size(row * matrix.columns)], matrix.columns, row_of(rows, row));
    }
    std::vector<float> y(size(num_rows * matrix.outputs), -1.0f);
    with.product(matrix, rows, num_rows, 0, matrix.panels(), y.data(), matrix.outputs);
    return y;
}

bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
    return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
}

constexpr float kLarge = 200;  // a value that its neighbours are small beside

// True if the products are those of the values that are stored, but for activations in 8 bits and sums in f32. A chunk with a large value
// has twice the bits where it has most of the error.
bool is_near(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y, int64_t num_rows) {
    std::vector<float> weights(static_cast<size_t>(matrix.columns));
    for (int64_t output = 0; output < matrix.outputs; output += 1 + matrix.outputs / 40) {
        dragoman::unpack_rows(matrix, &output, 1, weights.data());
        for (int64_t row = 0; row < num_rows; ++row) {
            double sum = 0, allowed = 1e-4;
            for (int64_t chunk = 0; chunk < matrix.chunks(); ++chunk) {
                double largest = 0, weight_sum = 0;
                for (int64_t column = chunk * kChunk; column < std::min((chunk + 1) * kChunk, matrix.columns); ++column) {
                    const double value = x[static_cast<size_t>(row * matrix.columns + column)];
                    const double weight = weights[static_cast<size_t>(column)];
                    sum += value * weight;
                    largest = std::max(largest, std::fabs(value));
                    weight_sum += std::fabs(weight);
                }
                // A minimum is as large as the scale times a code may be: rounding counts for both.
                const bool has_twice = largest == kLarge && matrix.chunks() > 8;
                allowed += largest / 127 * weight_sum * (has_twice ? 0.51 / 127 : 0.51) + largest * weight_sum * 1e-4;
            }
            if (!(std::fabs(y[static_cast<size_t>(row * matrix.outputs + output)] - sum) <= allowed)) return false;
        }
    }
    return true;
}

// Three threads, each of which takes what it finds.
void on_three(int64_t count, const std::function<void(int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t first = 0; first < 3; ++first) {
        threads.emplace_back([=, &body] {
            for (int64_t index = first; index < count; index += 3) body(index);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

void check(Format format, int64_t group, int64_t outputs, int64_t columns, std::initializer_list<int64_t> counts) {
    Matrix matrix{format, group, outputs, columns, nullptr};
    Buffer packed(matrix.bytes());
    matrix.data = packed.begin;
    pack_random(matrix, packed.begin);
    for (int64_t num_rows : counts) {
        std::vector<float> x(static_cast<size_t>(num_rows * columns));
        for (size_t index = 0; index < x.size(); ++index) {  // every fifth row is tiny, so that its scale is hardly a number
            const bool is_tiny = index / static_cast<size_t>(columns) % 5 == 4;
            x[index] = static_cast<float>(random_below(20001) - 10000) / 3000.0f * (is_tiny ? 1e-38f : 1.0f);
        }
        for (int64_t row = 2; row < num_rows; row += 5) {  // as many large values as chunks may have more bits
            for (int64_t count = dragoman::finer_of(matrix.chunks()); count; --count)
                x[static_cast<size_t>(row * columns + random_below(static_cast<int>(columns)))] =
                    random_below(2) ? kLarge : -kLarge;
        }
        const std::vector<float> plain = product_of(dragoman::kPlain, matrix, x, num_rows);
        expect(is_near(matrix, x, plain, num_rows), "not near the exact sums", matrix, num_rows);
        for (const Kernels* with : dragoman::usable_kernels()) {
            expect(same_bits(product_of(*with, matrix, x, num_rows), plain), with->name, matrix, num_rows);
        }
        std::vector<float> shared(plain.size(), -1.0f);
        const dragoman::Product product{matrix, nullptr, shared.data(), outputs};
        dragoman::products(&product, 1, {x.data(), num_rows, columns}, on_three);
        expect(same_bits(shared, plain), "shared among threads", matrix, num_rows);
    }
}

// All kernels make the same panels of rows of a file, which end where they end.
void check_file_panel(Format format) {
    const int64_t group = shape_of(format).columns ? shape_of(format).columns : 32;
    const Matrix matrix{format, group, kPanel, 768, nullptr};
    const int64_t row_bytes = gguf_row_bytes(matrix);
    const std::vector<uint8_t> rows = [&] {
        std::vector<uint8_t> bytes(static_cast<size_t>(kPanel * row_bytes));
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
        return bytes;
    }();
    const uint8_t* sixteen[kPanel];
    for (int row = 0; row < kPanel; ++row) sixteen[row] = rows.data() + row * row_bytes;
    const auto size = static_cast<size_t>(matrix.panel_bytes());
    std::vector<uint8_t> plain(size, 1), panel(size, 2);
    dragoman::kPlain.file_panel(matrix, sixteen, plain.data());
    for (const Kernels* with : dragoman::usable_kernels()) {
        with->file_panel(matrix, sixteen, panel.data());
        expect(panel == plain, with->name, matrix, kPanel);
    }
}

// A number that is none makes its own row's results none, with all kernels, and leaves other rows alone.
void check_not_finite(Format format, int64_t group) {
    Matrix matrix{format, group, 40, 512, nullptr};
    Buffer packed(matrix.bytes());
    matrix.data = packed.begin;
    pack_random(matrix, packed.begin);
    const auto outputs = static_cast<size_t>(matrix.outputs), columns = static_cast<size_t>(matrix.columns);
    std::vector<float> x(3 * columns);
    for (float& value : x) value = static_cast<float>(random_below(2001) - 1000) / 300.0f;
    std::vector<const Kernels*> all = dragoman::usable_kernels();
    all.push_back(&dragoman::kPlain);
    for (float wrong : {NAN, INFINITY, -INFINITY}) {
        for (const Kernels* with : all) {
            const std::vector<float> right = product_of(*with, matrix, x, 3);
            std::vector<float> spoiled = x;
            spoiled[columns + 37] = wrong;
            const std::vector<float> y = product_of(*with, matrix, spoiled, 3);
            bool holds = std::memcmp(y.data(), right.data(), outputs * sizeof(float)) == 0 &&
                         std::memcmp(&y[2 * outputs], &right[2 * outputs], outputs * sizeof(float)) == 0;
            for (size_t output = 0; output < outputs; ++output) holds = holds && !std::isfinite(y[outputs + output]);
            expect(holds, with->name, matrix, 3);
        }
    }
}

// Activations have the same bits with all kernels, but for what is no number.
void check_activations() {
    std::vector<float> values = {0.0f,   -0.0f, 1e-40f, -1e-40f,  87.0f,     -87.0f, 89.0f,
                                 -89.0f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
    while (values.size() < 4103) values.push_back(static_cast<float>(random_below(200001) - 100000) / 5000.0f);
    std::vector<float> up(values.size());
    for (float& value : up) value = static_cast<float>(random_below(2001) - 1000) / 300.0f;
    for (int32_t index = 0; index < static_cast<int32_t>(dragoman::Activation::count); ++index) {
        const auto activated = [&](const Kernels& with) {
            std::vector<float> gate = values;
            with.activate({static_cast<dragoman::Activation>(index), 1.702f, 2.0f}, gate.data(), up.data(),
                          static_cast<int64_t>(gate.size()));
            for (float& value : gate) value = std::isnan(value) ? NAN : value;
            return gate;
        };
        const std::vector<float> plain = activated(dragoman::kPlain);
        for (const Kernels* with : dragoman::usable_kernels()) {
            if (same_bits(activated(*with), plain)) continue;
            ++failures;
            std::printf("%s: activation %d\n", with->name, index);
        }
    }
}

}  // namespace

int count_failures_of_attention();     // attention.cpp
int count_failures_of_recurrences();   // recurrences.cpp
int count_failures_of_experts();       // experts.cpp
int count_failures_of_layers();        // layers.cpp
int count_failures_of_whole_layers();  // whole_layers.cpp

int main() {
    check_activations();
    for (int32_t index = 0; index < static_cast<int32_t>(Format::count); ++index) {
        const Format format = static_cast<Format>(index);
        if (std::any_of(std::begin(kBlocks), std::end(kBlocks), [&](const Block& one) { return one.format == format; }))
            check_file_panel(format);
        if (is_of_floats(format)) {
            check(format, 256, 48, 256, {0, 1, 2, 3, 4, 5, 6, 7, 9, 41});
            check(format, 209, 33, 209, {1, 7, 100});
            check(format, 33, 1, 33, {1, 4, 13});
            check(format, 1, 1, 1, {1, 2, 8});
            check(format, 31, 131, 31, {1, 14});
            check_not_finite(format, 512);
        } else if (shape_of(format).columns) {  // K-quants are whole blocks of 256 columns
            check(format, 256, 48, 512, {0, 1, 2, 3, 5, 9, 41});
            check(format, 256, 1, 256, {1, 4});
        } else if (is_of_groups(format)) {
            check(format, 32, 48, 256, {0, 1, 2, 3, 5, 9, 41});
            check(format, 96, 33, 209, {1, 7});
            check(format, 128, 17, 257, {1, 2});
            check(format, 33, 1, 33, {1, 4});
            check(format, 289, 18, 289, {1, 3, 41});
            check(format, 32, 1, 1, {1, 2});
        } else {
            check(format, 32, 48, 256, {0, 1, 2, 3, 5, 9, 41});
            check(format, 32, 1, 32, {1, 4});
        }
    }
    check_not_finite(Format::i4z, 32);
    check_not_finite(Format::i8, 512);
    check_not_finite(Format::q4_k, 256);
    check_not_finite(Format::q6_k, 256);
    check(Format::i4z, 32, 300000, 32, {1});
    check(Format::bf16, 32, 300000, 32, {1});
    check(Format::i8, 64, 40, 96, {200});
    check(Format::i4m, 32, 33, 2210, {3, 41});  // several blocks, and two chunks of a row with more bits
    check(Format::i8z, 128, 17, 2210, {3, 41});
    check(Format::iq4_nl, 32, 33, 2240, {3, 41});
    check(Format::q6_k, 256, 33, 2304, {3, 41});
    failures += count_failures_of_attention() + count_failures_of_experts() + count_failures_of_layers();
    failures += count_failures_of_recurrences() + count_failures_of_whole_layers();
    std::printf("%s: %d failures\n", dragoman::instruction_set(), failures);
    return failures ? 1 : 0;
}
