// Packs rows of floating-point numbers: as floats, as codes, as panels, 16 rows at a time. See pack.hpp.
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "pack.hpp"

namespace dragoman {
namespace {

float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Without branches for what is not normal, so that loops become vectors.
float from_half(uint16_t half) {
    const uint32_t sign = uint32_t{half} >> 15 << 31, rest = uint32_t{half} << 13 & 0x0FFFE000;
    const float value = from_bits(rest) * 0x1p112f;  // also of subnormal ones, which this makes normal
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits |= rest >= 0x0F800000 ? 0x7F800000u : 0u;
    return from_bits(bits | sign);
}

void to_floats(Number number, const uint8_t* from, int64_t count, float* to) {
    if (number == Number::f32) {
        std::memcpy(to, from, static_cast<size_t>(count) * 4);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, from + 2 * i, 2);
        to[i] = number == Number::f16 ? from_half(bits) : from_bits(uint32_t{bits} << 16);
    }
}

}  // namespace

bool pack_numbers(const Matrix& matrix, int64_t first, int64_t count, Number number, const uint8_t* rows, uint8_t* out) {
    const int64_t columns = matrix.columns, blocks = matrix.blocks(), row_bytes = columns * (number == Number::f32 ? 4 : 2);
    const bool has_four_bits = matrix.format == Format::i4z;
    std::vector<float> values(columns);
    std::vector<uint8_t> codes(kPanel * columns), zeros(kPanel * blocks);
    std::vector<uint16_t> scales(kPanel * blocks);
    for (int64_t begin = 0; begin < count; begin += kPanel) {
        const int64_t here = count - begin < kPanel ? count - begin : kPanel;
        for (int64_t row = 0; row < here; ++row) {
            to_floats(number, rows + (begin + row) * row_bytes, columns, values.data());
            const bool is_finite = kernels().codes(values.data(), columns, matrix.group, has_four_bits ? 15 : 255,
                                                   &codes[row * columns], &scales[row * blocks], &zeros[row * blocks]);
            if (!is_finite) return false;
        }
        if (!has_four_bits) {  // kept with a sign, which takes nothing from their difference
            for (uint8_t& code : codes) code ^= 0x80;
            for (uint8_t& zero : zeros) zero ^= 0x80;
        }
        pack_groups(matrix, first + begin, here, codes.data(), scales.data(), zeros.data(), out);
    }
    return true;
}

}  // namespace dragoman
