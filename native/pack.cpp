// See pack.hpp. Sources: ggml's ggml-common.h for the blocks of GGUF files; the formats' own places are told in formats.hpp.
#include "pack.hpp"

#include <cmath>
#include <cstring>

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

// Writes the planes of a chunk; `codes` [16 outputs][32 columns]. A quad's four codes move together, as one word.
template <int Bits>
void put_planes(const uint8_t (&codes)[kPanel][kChunk], uint8_t* out) {
    constexpr int kWords = kLine / 4 * Bits;  // of a chunk: 16 of each line
    uint32_t words[kQuads][kPanel], planes[kWords] = {};
    for (int output = 0; output < kPanel; ++output)
        for (int quad = 0; quad < kQuads; ++quad) std::memcpy(&words[quad][output], &codes[output][4 * quad], 4);
    constexpr bool kHasFour = Bits >= 4 && Bits < 8, kHasTwo = Bits == 2 || Bits == 3 || Bits == 6,
                   kHasOne = Bits == 3 || Bits == 5;
    constexpr int kTwo = kHasFour ? 4 * kPanel : 0, kOne = kTwo + (kHasTwo ? 2 * kPanel : 0);
    for (int quad = 0; quad < kQuads; ++quad) {
        for (int output = 0; output < kPanel; ++output) {
            const uint32_t word = words[quad][output], high = kHasFour ? word >> 4 & 0x0F0F0F0F : word;
            if constexpr (Bits == 8) planes[kPanel * quad + output] = word;
            if constexpr (kHasFour) planes[kPanel * (quad / 2) + output] |= (word & 0x0F0F0F0F) << 4 * (quad % 2);
            if constexpr (kHasTwo) planes[kTwo + kPanel * (quad / 4) + output] |= (high & 0x03030303) << 2 * (quad % 4);
            if constexpr (kHasOne) planes[kOne + output] |= (high >> (kHasTwo ? 2 : 0) & 0x01010101) << quad;
        }
    }
    std::memcpy(out, planes, sizeof(planes));
}

void put_codes(int bits, const uint8_t (&codes)[kPanel][kChunk], uint8_t* out) {
    switch (bits) {
        case 2: return put_planes<2>(codes, out);
        case 3: return put_planes<3>(codes, out);
        case 4: return put_planes<4>(codes, out);
        case 5: return put_planes<5>(codes, out);
        case 6: return put_planes<6>(codes, out);
        default: return put_planes<8>(codes, out);
    }
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

struct Place {
    const uint8_t* block;
    const uint8_t* chunk;
};

Place parameters_of(const Matrix& matrix, int64_t panel, int64_t chunk) {
    const Shape& shape = shape_of(matrix.format);
    const int64_t per_block = matrix.chunks_of_block();
    const uint8_t* block = matrix.panel(panel) + chunk / per_block * (shape.block_bytes + per_block * shape.chunk_bytes);
    return {block, block + shape.block_bytes + chunk % per_block * shape.chunk_bytes};
}

float power(int exponent) { return std::ldexp(1.0f, exponent - 128); }

// What a block of a GGUF file says of 32 or 256 columns.
struct FileBlock {
    uint8_t codes[kSuper];
    uint16_t scale, minimum;
    uint8_t exponent;
    uint8_t scales[16], minima[16];  // of 16 or 32 columns each
};

void halves_of_bytes(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = from[i] & 15;
        codes[16 + i] = from[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 4; ++i) {
        // each bit of the byte in a byte of its own, which the sum carries to that byte's highest place
        const uint64_t spread = (from[i] * 0x0101010101010101u) & 0x8040201008040201u;
        const uint64_t fifth = ((spread + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u) >> 3;
        uint64_t eight;
        std::memcpy(&eight, codes + 8 * i, 8);
        eight |= fifth;
        std::memcpy(codes + 8 * i, &eight, 8);
    }
}

// Eight scales and minima of 6 bits in 12 bytes.
void scales_of_six_bits(const uint8_t* from, FileBlock& block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = from[i] & 63;
        block.minima[i] = from[i + 4] & 63;
        block.scales[i + 4] = static_cast<uint8_t>((from[i + 8] & 15) | from[i] >> 6 << 4);
        block.minima[i + 4] = static_cast<uint8_t>(from[i + 8] >> 4 | from[i + 4] >> 6 << 4);
    }
}

void two_bits(const uint8_t* from, uint8_t* codes) {
    for (int part = 0; part < 8; ++part)  // of 32 columns
        for (int i = 0; i < 32; ++i) codes[32 * part + i] = from[32 * (part / 4) + i] >> 2 * (part % 4) & 3;
}

void read_q3_k(const uint8_t* from, FileBlock& block) {
    two_bits(from + 32, block.codes);
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i) block.codes[32 * part + i] |= static_cast<uint8_t>((from[i] >> part & 1) << 2);
    const uint8_t* scales = from + 96;
    for (int i = 0; i < 16; ++i) {
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        int high = scales[8 + i % 4] >> 2 * (i / 4) & 3;
        block.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    block.scale = read_half(from + 108);
}

void read_q4_k(const uint8_t* from, FileBlock& block, bool has_fifth_bit) {
    block.scale = read_half(from);
    block.minimum = read_half(from + 2);
    scales_of_six_bits(from + 4, block);
    const uint8_t* codes = from + (has_fifth_bit ? 48 : 16);
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i) block.codes[32 * part + i] = codes[32 * (part / 2) + i] >> 4 * (part % 2) & 15;
    if (!has_fifth_bit) return;
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i) block.codes[32 * part + i] |= static_cast<uint8_t>((from[16 + i] >> part & 1) << 4);
}

void read_q6_k(const uint8_t* from, FileBlock& block) {
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; ++i) {
            const int low = from[64 * (part / 4) + 32 * (part % 2) + i] >> 4 * (part % 4 / 2) & 15;
            const int high = from[128 + 32 * (part / 4) + i] >> 2 * (part % 4) & 3;
            block.codes[32 * part + i] = static_cast<uint8_t>(low | high << 4);
        }
    }
    std::memcpy(block.scales, from + 192, 16);
    block.scale = read_half(from + 208);
}

// Bytes of a block in the file; what it says is written.
int64_t file_block_bytes(Format format) {
    switch (format) {
        case Format::i4:
        case Format::iq4_nl: return 18;
        case Format::i4m: return 20;
        case Format::i5: return 22;
        case Format::i5m: return 24;
        case Format::i8: return 34;
        case Format::q2_k: return 84;
        case Format::q3_k: return 110;
        case Format::q4_k: return 144;
        case Format::q5_k: return 176;
        case Format::q6_k: return 210;
        case Format::mxfp4: return 17;
        default: return 0;
    }
}

constexpr uint16_t kMinus = 0x8000;  // the sign of an f16: files add what a minimum takes away

void read_block(Format format, const uint8_t* from, FileBlock& block) {
    block.scale = read_half(from);
    switch (format) {
        case Format::i4:
        case Format::iq4_nl: return halves_of_bytes(from + 2, block.codes);
        case Format::mxfp4: block.exponent = from[0]; return halves_of_bytes(from + 1, block.codes);
        case Format::i4m: block.minimum = read_half(from + 2) ^ kMinus; return halves_of_bytes(from + 4, block.codes);
        case Format::i5: halves_of_bytes(from + 6, block.codes); return add_fifth_bits(from + 2, block.codes);
        case Format::i5m:
            block.minimum = read_half(from + 2) ^ kMinus;
            halves_of_bytes(from + 8, block.codes);
            return add_fifth_bits(from + 4, block.codes);
        case Format::i8: std::memcpy(block.codes, from + 2, 32); return;
        case Format::q2_k:
            std::memcpy(block.scales, from, 16);  // a minimum in the high half of each
            two_bits(from + 16, block.codes);
            block.scale = read_half(from + 80);
            block.minimum = read_half(from + 82);
            return;
        case Format::q3_k: return read_q3_k(from, block);
        case Format::q4_k: return read_q4_k(from, block, false);
        case Format::q5_k: return read_q4_k(from, block, true);
        case Format::q6_k: return read_q6_k(from, block);
        default: return;
    }
}

// Where a chunk's planes lie in a panel that is being written.
uint8_t* chunk_of(const Matrix& matrix, uint8_t* panel, int64_t chunk) {
    return panel + matrix.parameter_bytes() + chunk * matrix.chunk_bytes();
}

void put_parameters(const Matrix& matrix, const FileBlock& from, int output, uint8_t* block) {
    const Shape& shape = shape_of(matrix.format);
    if (matrix.format == Format::mxfp4) {
        block[output] = from.exponent;
        return;
    }
    std::memcpy(block + 2 * output, &from.scale, 2);
    if (shape.has_minimum) std::memcpy(block + 32 + 2 * output, &from.minimum, 2);
    if (shape.chunk_bytes == 0) return;
    for (int chunk = 0; chunk < kSuper / kChunk; ++chunk) {
        uint8_t* to = block + shape.block_bytes + chunk * shape.chunk_bytes;
        const bool has_halves = shape.sub == 16;
        to[output] = from.scales[has_halves ? 2 * chunk : chunk];
        to[16 + output] = has_halves ? from.scales[2 * chunk + 1] : from.minima[chunk];
    }
}

}  // namespace

ChunkValues chunk_values(const Matrix& matrix, int64_t output, int64_t chunk) {
    const Shape& shape = shape_of(matrix.format);
    const int lane = static_cast<int>(output % kPanel);
    const Place at = parameters_of(matrix, output / kPanel, chunk);
    const uint8_t* planes = matrix.panel(output / kPanel) + matrix.parameter_bytes() + chunk * matrix.chunk_bytes();
    ChunkValues values{};
    for (int column = 0; column < kChunk; ++column) {
        int code = code_at(shape.bits, planes, lane, column);
        if (shape.codes == Codes::iq4_nl) code = kIq4Nl[code];
        if (shape.codes == Codes::mxfp4) code = kMxfp4[code];
        values.codes[column] = code - shape.offset;
    }
    for (int half = 0; half < 2; ++half) {
        float scale = matrix.format == Format::mxfp4 ? power(at.block[lane]) : float_at(at.block, lane), minimum = 0;
        const uint8_t byte = shape.chunk_bytes ? at.chunk[shape.sub == 16 ? 16 * half + lane : lane] : 0;
        switch (matrix.format) {
            case Format::i4z: minimum = scale * at.block[32 + lane]; break;
            case Format::i8z: minimum = scale * static_cast<int8_t>(at.block[32 + lane]); break;
            case Format::i4m:
            case Format::i5m: minimum = float_at(at.block + 32, lane); break;
            case Format::q2_k:
                scale *= byte & 15;
                minimum = float_at(at.block + 32, lane) * (byte >> 4);
                break;
            case Format::q4_k:
            case Format::q5_k:
                scale *= byte;
                minimum = float_at(at.block + 32, lane) * at.chunk[16 + lane];
                break;
            case Format::q3_k:
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
    const int64_t chunks = matrix.chunks(), blocks = matrix.blocks();
    const bool has_half_minima = matrix.format == Format::i4m || matrix.format == Format::i5m;
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        uint8_t* panel = out + (first + begin) / kPanel * matrix.panel_bytes();
        const int here = static_cast<int>(count - begin < kPanel ? count - begin : kPanel);
        std::memset(panel, 0, matrix.parameter_bytes());
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
            uint8_t held[kPanel][kChunk] = {};
            const int64_t left = matrix.columns - chunk * kChunk;
            for (int output = 0; output < here; ++output) {
                std::memcpy(held[output], codes + (begin + output) * matrix.columns + chunk * kChunk,
                            left < kChunk ? left : kChunk);
            }
            put_codes(shape.bits, held, chunk_of(matrix, panel, chunk));
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
    return matrix.columns / columns * file_block_bytes(matrix.format);
}

void pack_gguf(const Matrix& matrix, int64_t first, int64_t count, const uint8_t* rows, uint8_t* out) {
    const Shape& shape = shape_of(matrix.format);
    const int64_t columns = shape.columns ? kSuper : kChunk, size = file_block_bytes(matrix.format),
                  row_bytes = gguf_row_bytes(matrix);
    const int64_t block_bytes = shape.block_bytes + columns / kChunk * shape.chunk_bytes;
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        uint8_t* panel = out + (first + begin) / kPanel * matrix.panel_bytes();
        const int here = static_cast<int>(count - begin < kPanel ? count - begin : kPanel);
        std::memset(panel, 0, matrix.parameter_bytes());
        for (int64_t block = 0; block < matrix.columns / columns; ++block) {
            FileBlock read[kPanel];
            std::memset(read, 0, sizeof(read));
            for (int output = 0; output < here; ++output) {
                read_block(matrix.format, rows + (begin + output) * row_bytes + block * size, read[output]);
                put_parameters(matrix, read[output], output, panel + block * block_bytes);
            }
            for (int64_t chunk = 0; chunk < columns / kChunk; ++chunk) {
                uint8_t held[kPanel][kChunk];
                for (int output = 0; output < kPanel; ++output)
                    std::memcpy(held[output], read[output].codes + chunk * kChunk, kChunk);
                put_codes(shape.bits, held, chunk_of(matrix, panel, block * (columns / kChunk) + chunk));
            }
        }
    }
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
