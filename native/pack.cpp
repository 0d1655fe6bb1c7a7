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

constexpr uint64_t kEach = 0x0101010101010101u;  // times a byte: that byte in all eight

uint64_t eight_at(const uint8_t* from) {
    uint64_t eight;
    std::memcpy(&eight, from, 8);
    return eight;
}

void put_eight(uint64_t eight, uint8_t* to) { std::memcpy(to, &eight, 8); }

// The codes of two quads, of `Bits` each, in the bytes of one: the second one's above the first one's.
template <int Bits>
uint32_t in_one(uint64_t both) {
    return static_cast<uint32_t>(both | both >> (32 - Bits));
}

// Writes what one output has of a chunk's planes; `codes` [32 columns], `out`: the output's place in the chunk's first line. A quad's
// four codes move together, two quads at a time.
template <int Bits>
void put_planes(const uint8_t* codes, uint8_t* out) {
    constexpr bool kHasFour = Bits >= 4 && Bits < 8, kHasTwo = Bits == 2 || Bits == 3 || Bits == 6,
                   kHasOne = Bits == 3 || Bits == 5;
    constexpr int kTwo = kHasFour ? 4 : 0, kOne = kTwo + (kHasTwo ? 2 : 0);
    uint32_t lines[Bits] = {};
    for (int two = 0; two < kQuads / 2; ++two) {
        const uint64_t both = eight_at(codes + 8 * two), high = kHasFour ? both >> 4 & 15 * kEach : both;
        if constexpr (Bits == 8) std::memcpy(&lines[2 * two], &both, 8);
        if constexpr (kHasFour) lines[two] = in_one<4>(both & 15 * kEach);
        if constexpr (kHasTwo) lines[kTwo + two / 2] |= in_one<2>(high & 3 * kEach) << 4 * (two % 2);
        if constexpr (kHasOne) lines[kOne] |= in_one<1>(high >> (kHasTwo ? 2 : 0) & kEach) << 2 * two;
    }
    for (int line = 0; line < Bits; ++line) std::memcpy(out + kLine * line, &lines[line], 4);
}

// The same of some chunks behind each other, `codes` [chunks][32 columns].
template <int Bits>
void put_chunks(const uint8_t* codes, int64_t chunks, uint8_t* out) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) put_planes<Bits>(codes + chunk * kChunk, out + chunk * kLine * Bits);
}

void put_codes(int bits, const uint8_t* codes, int64_t chunks, uint8_t* out) {
    switch (bits) {
        case 2: return put_chunks<2>(codes, chunks, out);
        case 3: return put_chunks<3>(codes, chunks, out);
        case 4: return put_chunks<4>(codes, chunks, out);
        case 5: return put_chunks<5>(codes, chunks, out);
        case 6: return put_chunks<6>(codes, chunks, out);
        default: return put_chunks<8>(codes, chunks, out);
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

// The smaller scales of a block, each of the chunks [0, 8) two of six bits: the lower one and the upper one of a pair.
using Pairs = uint16_t[kSuper / kChunk];

uint16_t pair_of(int lower, int upper) { return static_cast<uint16_t>(lower | upper << kInnerBits); }

// Where the words of an output lie that hold a chunk's pair, or of a fourth chunk the first three of these.
int64_t word_place(int chunk, int output) {
    return (chunk / kWordChunks * (kWordChunks - 1) + (chunk % kWordChunks) % (kWordChunks - 1)) * kWordBytes + 2 * output;
}

void put_pairs(const Pairs& pairs, int output, uint8_t* words) {
    for (int chunk = 0; chunk < kSuper / kChunk; ++chunk) {
        const int place = chunk % kWordChunks;
        if (place == kWordChunks - 1) continue;
        const int fourth = pairs[chunk - place + kWordChunks - 1] >> 4 * place & 15;
        const auto word = static_cast<uint16_t>(pairs[chunk] | fourth << 12);
        std::memcpy(words + word_place(chunk, output), &word, 2);
    }
}

int pair_at(const uint8_t* words, int chunk, int output) {
    const uint8_t* word = words + word_place(chunk, output);
    if (chunk % kWordChunks < kWordChunks - 1) return read_half(word) & 0xFFF;
    return read_half(word) >> 12 | read_half(word + kWordBytes) >> 12 << 4 | read_half(word + 2 * kWordBytes) >> 12 << 8;
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
    for (int i = 0; i < 16; i += 8) {
        put_eight(eight_at(from + i) & 15 * kEach, codes + i);
        put_eight(eight_at(from + i) >> 4 & 15 * kEach, codes + 16 + i);
    }
}

void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 4; ++i) {
        // each bit of the byte in a byte of its own, which the sum carries to that byte's highest place
        const uint64_t spread = (from[i] * 0x0101010101010101u) & 0x8040201008040201u;
        const uint64_t fifth = ((spread + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u) >> 3;
        put_eight(eight_at(codes + 8 * i) | fifth, codes + 8 * i);
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
        for (int i = 0; i < 32; i += 8)
            put_eight(eight_at(from + 32 * (part / 4) + i) >> 2 * (part % 4) & 3 * kEach, codes + 32 * part + i);
}

// Sets a bit of each code, of which every part of 32 columns has one in the same 32 bytes.
void add_bits(const uint8_t* from, int place, uint8_t* codes) {
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; i += 8) {
            uint8_t* to = codes + 32 * part + i;
            put_eight(eight_at(to) | (eight_at(from + i) >> part & kEach) << place, to);
        }
    }
}

void read_q3_k(const uint8_t* from, FileBlock& block) {
    two_bits(from + 32, block.codes);
    add_bits(from, 2, block.codes);
    const uint8_t* scales = from + 96;
    for (int i = 0; i < 16; ++i) {
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        int high = scales[8 + i % 4] >> 2 * (i / 4) & 3;
        block.scales[i] = static_cast<uint8_t>(low | high << 4);
    }
    block.scale = read_half(from + 108);
}

void read_q4_k(const uint8_t* from, FileBlock& block, bool has_fifth_bit) {
    block.scale = read_half(from);
    block.minimum = read_half(from + 2);
    scales_of_six_bits(from + 4, block);
    const uint8_t* codes = from + (has_fifth_bit ? 48 : 16);
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; i += 8)
            put_eight(eight_at(codes + 32 * (part / 2) + i) >> 4 * (part % 2) & 15 * kEach, block.codes + 32 * part + i);
    if (has_fifth_bit) add_bits(from + 16, 4, block.codes);
}

void read_q6_k(const uint8_t* from, FileBlock& block) {
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; i += 8) {
            const uint64_t low = eight_at(from + 64 * (part / 4) + 32 * (part % 2) + i) >> 4 * (part % 4 / 2) & 15 * kEach;
            const uint64_t high = eight_at(from + 128 + 32 * (part / 4) + i) >> 2 * (part % 4) & 3 * kEach;
            put_eight(low | high << 4, block.codes + 32 * part + i);
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

// Zeros where nothing will be written: behind the parameters, and for outputs that the last panel lacks.
void clear(const Matrix& matrix, int outputs, uint8_t* panel) {
    std::memset(panel, 0, outputs < kPanel ? matrix.panel_bytes() : matrix.parameter_bytes());
}

void put_parameters(const Matrix& matrix, const FileBlock& from, int output, uint8_t* block) {
    const Shape& shape = shape_of(matrix.format);
    if (matrix.format == Format::mxfp4) {
        block[output] = from.exponent;
        return;
    }
    std::memcpy(block + 2 * output, &from.scale, 2);
    if (shape.has_minimum) std::memcpy(block + 32 + 2 * output, &from.minimum, 2);
    if (shape.columns == 0) return;
    uint8_t* inner = block + inner_place(shape);
    Pairs pairs = {};
    for (int chunk = 0; chunk < kSuper / kChunk; ++chunk) {
        const bool has_halves = shape.sub == 16;
        const int lower = from.scales[has_halves ? 2 * chunk : chunk];
        const int upper = has_halves ? from.scales[2 * chunk + 1] : from.minima[chunk];
        if (has_words(matrix.format)) {
            pairs[chunk] = pair_of(lower, upper);
        } else {
            inner[chunk * kByteScales + output] = static_cast<uint8_t>(lower);
            inner[chunk * kByteScales + kPanel + output] = static_cast<uint8_t>(upper);
        }
    }
    if (has_words(matrix.format)) put_pairs(pairs, output, inner);
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
        clear(matrix, here, panel);
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
            for (int output = 0; output < here; ++output) {
                const uint8_t* from = codes + (begin + output) * matrix.columns + chunk * kChunk;
                uint8_t padded[kChunk] = {};
                if (left < kChunk) std::memcpy(padded, from, left);
                put_codes(shape.bits, left < kChunk ? padded : from, 1, planes + chunk * chunk_bytes + 4 * output);
            }
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
                  row_bytes = gguf_row_bytes(matrix), blocks = matrix.columns / columns,
                  planes_bytes = columns / kChunk * matrix.chunk_bytes();
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        uint8_t* panel = out + (first + begin) / kPanel * matrix.panel_bytes();
        uint8_t* planes = panel + matrix.parameter_bytes();
        const int here = static_cast<int>(count - begin < kPanel ? count - begin : kPanel);
        clear(matrix, here, panel);
        for (int64_t block = 0; block < blocks; ++block) {
            for (int output = 0; output < here; ++output) {
                FileBlock read;
                read_block(matrix.format, rows + (begin + output) * row_bytes + block * size, read);
                put_parameters(matrix, read, output, panel + block * shape.block_bytes);
                put_codes(shape.bits, read.codes, columns / kChunk, planes + block * planes_bytes + 4 * output);
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
