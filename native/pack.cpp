// See pack.hpp. Sources: ggml's ggml-common.h for the blocks of GGUF files; the formats' own places are told in formats.hpp.
#include "pack.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "panel.hpp"

namespace dragoman {
namespace {

float half_to_float(uint16_t half) {
    uint32_t sign = uint32_t{half} >> 15 << 31, exponent = half >> 10 & 31, fraction = half & 1023;
    float value;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(fraction), -24);
    } else if (exponent == 31) {
        value = fraction ? NAN : INFINITY;
    } else {
        value = std::ldexp(static_cast<float>(fraction + 1024), static_cast<int>(exponent) - 25);
    }
    return sign ? -value : value;
}

uint16_t read_half(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    return half;
}

float float_at(const uint8_t* halves, int64_t index) { return half_to_float(read_half(halves + 2 * index)); }

// --- codes ------------------------------------------------------------------------------------------------------------------

// Where a float of two bytes lies in its panel.
int64_t float_place(Format format, int64_t output, int64_t column) {
    const int64_t odd = column % 2;
    return column / 2 * kLine + (format == Format::bf16 ? 4 * output + 2 * odd : 2 * output + 2 * kPanel * odd);
}

int code_at(int bits, const uint8_t* chunk, int output, int column) {
    const int quad = column / 4, place = 4 * output + column % 4;
    if (bits == 8) return static_cast<int8_t>(chunk[kLine * quad + place]);
    int code = 0, shift = 0;
    if (bits >= 4) {
        code = chunk[kLine * (quad / 2) + place] >> 4 * (quad % 2) & 15;
        chunk += 4 * kLine;
        shift = 4;
    }
    if (bits == 2 || bits == 3 || bits == 6) {
        code |= (chunk[kLine * (quad / 4) + place] >> 2 * (quad % 4) & 3) << shift;
        chunk += 2 * kLine;
        shift += 2;
    }
    if (bits == 3 || bits == 5) code |= (chunk[place] >> quad & 1) << shift;
    return code;
}

// --- parameters -------------------------------------------------------------------------------------------------------------

// Where the words of an output lie that hold a chunk's pair, or of a fourth chunk the first three of these.
int64_t word_place(int chunk, int output) {
    return (chunk / kWordChunks * (kWordChunks - 1) + (chunk % kWordChunks) % (kWordChunks - 1)) * kWordBytes + 2 * output;
}

int pair_at(const uint8_t* words, int chunk, int output) {
    const uint8_t* word = words + word_place(chunk, output);
    if (chunk % kWordChunks < kWordChunks - 1) return read_half(word) & 0xFFF;
    return read_half(word) >> 12 | read_half(word + kWordBytes) >> 12 << 4 | read_half(word + 2 * kWordBytes) >> 12 << 8;
}

float power(int exponent) { return std::ldexp(1.0f, exponent - 128); }

void put_chunk(int bits, const uint8_t (&bytes)[kQuads][kLine], uint8_t* out) {
    Sixteen quads[kQuads];
    std::memcpy(quads, bytes, sizeof quads);
    switch (bits) {
        case 4: return put_planes<4>(quads, out);
        case 5: return put_planes<5>(quads, out);
        default: return put_planes<8>(quads, out);
    }
}

// 0, or an errno, or -1 where the file ends before.
int32_t read_all(int descriptor, int64_t from, int64_t count, uint8_t* to) {
    while (count > 0) {
        const ssize_t got = pread(descriptor, to, static_cast<size_t>(count), from);
        if (got < 0 && errno != EINTR) return errno;
        if (got == 0) return -1;
        if (got < 0) continue;
        from += got;
        count -= got;
        to += got;
    }
    return 0;
}

}  // namespace

ChunkValues chunk_values(const Matrix& matrix, int64_t output, int64_t chunk) {
    const Shape& shape = shape_of(matrix.format);
    const int lane = static_cast<int>(output % kPanel);
    const int64_t per_block = matrix.chunks_of_block();
    const uint8_t* block = matrix.panel(output / kPanel) + chunk / per_block * shape.block_bytes;
    const uint8_t* inner = block + inner_place(shape);
    const int place = static_cast<int>(chunk % per_block), pair = has_words(matrix.format) ? pair_at(inner, place, lane) : 0;
    const uint8_t* planes = matrix.panel(output / kPanel) + matrix.parameter_bytes() + chunk * matrix.chunk_bytes();
    ChunkValues values{};
    for (int column = 0; column < kChunk; ++column) {
        int code = code_at(shape.bits, planes, lane, column);
        if (shape.codes == Codes::iq4_nl) code = kIq4Nl[code];
        if (shape.codes == Codes::mxfp4) code = kMxfp4[code];
        values.codes[column] = code - shape.offset;
    }
    for (int half = 0; half < 2; ++half) {
        float scale = matrix.format == Format::mxfp4 ? power(block[lane]) : float_at(block, lane), minimum = 0;
        const bool has_bytes = shape.columns != 0 && !has_words(matrix.format);
        const uint8_t byte = has_bytes ? inner[place * kByteScales + kPanel * half + lane] : 0;
        const int lower = pair % (1 << kInnerBits), upper = pair >> kInnerBits;
        switch (matrix.format) {
            case Format::i4z: minimum = scale * block[32 + lane]; break;
            case Format::i8z: minimum = scale * static_cast<int8_t>(block[32 + lane]); break;
            case Format::i4m:
            case Format::i5m: minimum = float_at(block + 32, lane); break;
            case Format::q2_k:
                scale *= byte & 15;
                minimum = float_at(block + 32, lane) * (byte >> 4);
                break;
            case Format::q4_k:
            case Format::q5_k:
                scale *= lower;
                minimum = float_at(block + 32, lane) * upper;
                break;
            case Format::q3_k: scale = std::fma(scale, static_cast<float>(half ? upper : lower), -kInnerOffset * scale); break;
            case Format::q6_k: scale *= static_cast<int8_t>(byte); break;
            default: break;
        }
        values.scale[half] = scale;
        values.minimum[half] = minimum;
    }
    return values;
}

void pack_groups(const Matrix& matrix, int64_t first, int64_t count, const uint8_t* codes, const uint16_t* scales,
                 const void* minima, uint8_t* out) {
    const Shape& shape = shape_of(matrix.format);
    const int64_t chunks = matrix.chunks(), blocks = matrix.blocks(), chunk_bytes = matrix.chunk_bytes();
    const bool has_half_minima = matrix.format == Format::i4m || matrix.format == Format::i5m;
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        uint8_t* panel = out + (first + begin) / kPanel * matrix.panel_bytes();
        uint8_t* planes = panel + matrix.parameter_bytes();
        const int here = static_cast<int>(count - begin < kPanel ? count - begin : kPanel);
        std::memset(panel, 0, static_cast<size_t>(matrix.parameter_bytes()));
        for (int output = 0; output < here; ++output) {
            for (int64_t block = 0; block < blocks; ++block) {
                uint8_t* to = panel + block * shape.block_bytes;
                const int64_t from = (begin + output) * blocks + block;
                std::memcpy(to + 2 * output, scales + from, 2);
                if (!shape.has_minimum) continue;
                if (has_half_minima) std::memcpy(to + 32 + 2 * output, static_cast<const uint16_t*>(minima) + from, 2);
                if (!has_half_minima) to[32 + output] = static_cast<const uint8_t*>(minima)[from];
            }
        }
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t left = matrix.columns - chunk * kChunk;
            alignas(kLine) uint8_t quads[kQuads][kLine] = {};
            for (int output = 0; output < here; ++output) {
                const uint8_t* from = codes + (begin + output) * matrix.columns + chunk * kChunk;
                uint8_t padded[kChunk] = {};
                if (left < kChunk) std::memcpy(padded, from, left);
                for (int quad = 0; quad < kQuads; ++quad)
                    std::memcpy(quads[quad] + 4 * output, (left < kChunk ? padded : from) + 4 * quad, 4);
            }
            put_chunk(shape.bits, quads, planes + chunk * chunk_bytes);
        }
    }
}

void pack_floats(const Matrix& matrix, int64_t first, int64_t count, const uint16_t* values, uint8_t* out) {
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        uint8_t* panel = out + (first + begin) / kPanel * matrix.panel_bytes();
        for (int64_t column = 0; column < matrix.chunks() * kChunk; ++column) {
            for (int64_t output = 0; output < kPanel; ++output) {
                const bool is_there = column < matrix.columns && begin + output < count;
                const uint16_t value = is_there ? values[(begin + output) * matrix.columns + column] : uint16_t{0};
                std::memcpy(panel + float_place(matrix.format, output, column), &value, 2);
            }
        }
    }
}

void float_values(const Matrix& matrix, int64_t output, int64_t chunk, float (&values)[kChunk]) {
    const uint8_t* panel = matrix.panel(output / kPanel);
    for (int column = 0; column < kChunk; ++column) {
        const uint16_t half = read_half(panel + float_place(matrix.format, output % kPanel, chunk * kChunk + column));
        const uint32_t bits = uint32_t{half} << 16;
        if (matrix.format == Format::f16) values[column] = half_to_float(half);
        if (matrix.format == Format::bf16) std::memcpy(&values[column], &bits, 4);
    }
}

int64_t gguf_row_bytes(const Matrix& matrix) {
    const int64_t columns = shape_of(matrix.format).columns ? kSuper : kChunk;
    return matrix.columns / columns * file_block(matrix.format).bytes;
}

void pack_gguf(const Matrix& matrix, int64_t first, int64_t count, const uint8_t* rows, uint8_t* out) {
    const int64_t row_bytes = gguf_row_bytes(matrix);
    const std::vector<uint8_t> zeros(static_cast<size_t>(count % kPanel ? row_bytes : 0));
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        const uint8_t* sixteen[kPanel];
        for (int64_t row = begin; row < begin + kPanel; ++row)
            sixteen[row - begin] = row < count ? rows + row * row_bytes : zeros.data();
        kernels().file_panel(matrix, sixteen, out + (first + begin) / kPanel * matrix.panel_bytes());
    }
}

int32_t pack_gguf_file(const Matrix& matrix, int64_t first, int64_t count, int32_t descriptor, int64_t begin,
                       const int64_t* order, uint8_t* out) {
    const int64_t row_bytes = gguf_row_bytes(matrix);
    std::vector<uint8_t> rows(static_cast<size_t>(kPanel * row_bytes));
    const uint8_t* sixteen[kPanel];
    for (int row = 0; row < kPanel; ++row) sixteen[row] = rows.data() + row * row_bytes;
    for (int64_t done = 0; done < count; done += kPanel) {
        const int64_t here = count - done < kPanel ? count - done : kPanel, together = order ? 1 : here;
        std::fill(rows.begin() + here * row_bytes, rows.end(), uint8_t{0});
        for (int64_t row = 0; row < here; row += together) {
            const int64_t from = begin + (order ? order[done + row] : done) * row_bytes;
            const int32_t why = read_all(descriptor, from, together * row_bytes, rows.data() + row * row_bytes);
            if (why) return why;
        }
        kernels().file_panel(matrix, sixteen, out + (first + done) / kPanel * matrix.panel_bytes());
    }
    return 0;
}

void unpack_rows(const Matrix& matrix, const int64_t* rows, int64_t count, float* out) {
    for (int64_t row = 0; row < count; ++row) {
        for (int64_t chunk = 0; chunk < matrix.chunks(); ++chunk) {
            float* to = out + row * matrix.columns + chunk * kChunk;
            const int64_t left = matrix.columns - chunk * kChunk, count = left < kChunk ? left : kChunk;
            if (matrix.is_float()) {
                float values[kChunk];
                float_values(matrix, rows[row], chunk, values);
                std::memcpy(to, values, sizeof(float) * count);
                continue;
            }
            const ChunkValues values = chunk_values(matrix, rows[row], chunk);
            for (int64_t column = 0; column < count; ++column)
                to[column] = values.scale[column / 16] * static_cast<float>(values.codes[column]) - values.minimum[column / 16];
        }
    }
}

bool find_format(const char* name, Format* format) {
    for (int i = 0; i < static_cast<int>(Format::count); ++i) {
        if (std::strcmp(kShapes[i].name, name) == 0) {
            *format = static_cast<Format>(i);
            return true;
        }
    }
    return false;
}

}  // namespace dragoman
