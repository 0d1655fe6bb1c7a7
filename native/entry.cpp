// The C entry points: what Python calls by ctypes to pack matrices, and what tests call. None keeps what it is given.
#include <cstring>
#include <functional>
#include <utility>

#include "attention.hpp"
#include "memory.hpp"
#include "pack.hpp"
#include "product.hpp"

#define DRAGOMAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using dragoman::Format;
using dragoman::Matrix;

Matrix matrix_of(int32_t format, int64_t group, int64_t outputs, int64_t columns, const uint8_t* data) {
    return {static_cast<Format>(format), group, outputs, columns, data};
}

}  // namespace

// The number of the format of that name, -1 if there is none.
DRAGOMAN_EXPORT int32_t dragoman_format(const char* name) {
    Format format;
    return dragoman::find_format(name, &format) ? static_cast<int32_t>(format) : -1;
}

// The number of new memory, of this process or of a part of a file, 0 if there is none to be had (errno tells why).
DRAGOMAN_EXPORT int64_t dragoman_memory_of_process(int64_t size) {
    auto memory = dragoman::Memory::of_process(size);
    return memory ? dragoman::hold(std::move(memory)) : 0;
}

DRAGOMAN_EXPORT int64_t dragoman_memory_of_file(int32_t descriptor, int64_t offset, int64_t size, bool is_written) {
    auto memory = dragoman::Memory::of_file(descriptor, offset, size, is_written);
    return memory ? dragoman::hold(std::move(memory)) : 0;
}

DRAGOMAN_EXPORT void* dragoman_memory_data(int64_t number) { return dragoman::held_memory(number)->data(); }

// Nobody asks for it by its number any more; operations that have it keep it.
DRAGOMAN_EXPORT void dragoman_memory_let_go(int64_t number) { dragoman::let_go(number); }

DRAGOMAN_EXPORT const char* dragoman_instruction_set() { return dragoman::instruction_set(); }

DRAGOMAN_EXPORT int64_t dragoman_packed_bytes(int32_t format, int64_t group, int64_t outputs, int64_t columns) {
    return matrix_of(format, group, outputs, columns, nullptr).bytes();
}

DRAGOMAN_EXPORT void dragoman_pack_groups(int32_t format, int64_t group, int64_t outputs, int64_t columns, int64_t first,
                                          int64_t count, const uint8_t* codes, const uint16_t* scales, const void* minima,
                                          uint8_t* out) {
    dragoman::pack_groups(matrix_of(format, group, outputs, columns, out), first, count, codes, scales, minima, out);
}

// `number`: 0 f32, 1 f16, 2 bf16. False if a number is not finite, or too large for a scale.
DRAGOMAN_EXPORT bool dragoman_pack_numbers(int32_t format, int64_t group, int64_t outputs, int64_t columns, int64_t first,
                                           int64_t count, int32_t number, const uint8_t* rows, uint8_t* out) {
    const auto kind = static_cast<dragoman::Number>(number);
    return dragoman::pack_numbers(matrix_of(format, group, outputs, columns, out), first, count, kind, rows, out);
}

DRAGOMAN_EXPORT void dragoman_pack_gguf(int32_t format, int64_t group, int64_t outputs, int64_t columns, int64_t first,
                                        int64_t count, const uint8_t* rows, uint8_t* out) {
    dragoman::pack_gguf(matrix_of(format, group, outputs, columns, out), first, count, rows, out);
}

DRAGOMAN_EXPORT int32_t dragoman_pack_gguf_file(int32_t format, int64_t group, int64_t outputs, int64_t columns, int64_t first,
                                                int64_t count, int32_t descriptor, int64_t begin, const int64_t* order,
                                                uint8_t* out) {
    const Matrix matrix = matrix_of(format, group, outputs, columns, out);
    return dragoman::pack_gguf_file(matrix, first, count, descriptor, begin, order, out);
}

DRAGOMAN_EXPORT void dragoman_pack_floats(int32_t format, int64_t group, int64_t outputs, int64_t columns, int64_t first,
                                          int64_t count, const uint16_t* values, uint8_t* out) {
    dragoman::pack_floats(matrix_of(format, group, outputs, columns, out), first, count, values, out);
}

DRAGOMAN_EXPORT int64_t dragoman_gguf_row_bytes(int32_t format, int64_t group, int64_t outputs, int64_t columns) {
    return dragoman::gguf_row_bytes(matrix_of(format, group, outputs, columns, nullptr));
}

DRAGOMAN_EXPORT void dragoman_unpack_rows(int32_t format, int64_t group, int64_t outputs, int64_t columns, const uint8_t* data,
                                          const int64_t* rows, int64_t count, float* out) {
    dragoman::unpack_rows(matrix_of(format, group, outputs, columns, data), rows, count, out);
}

// The bytes of a block of keys of one head, and of a block of values. `type`: f32, bf16, f16, u8.
DRAGOMAN_EXPORT void dragoman_block_bytes(int32_t type, int64_t head, int64_t value, int64_t* keys, int64_t* values) {
    dragoman::Attention attention{};
    attention.head = head;
    attention.value = value;
    attention.type = static_cast<dragoman::CacheType>(type);
    *keys = attention.key_bytes();
    *values = attention.value_bytes();
}

// The product on the calling thread.
DRAGOMAN_EXPORT void dragoman_product(int32_t format, int64_t group, int64_t outputs, int64_t columns, const uint8_t* data,
                                      const float* x, int64_t num_rows, float* y) {
    const auto in_turn = [](int64_t count, const std::function<void(int64_t)>& body) {
        for (int64_t i = 0; i < count; ++i) body(i);
    };
    const dragoman::Product product = {matrix_of(format, group, outputs, columns, data), nullptr, y, outputs};
    dragoman::products(&product, 1, {x, num_rows, columns}, in_turn);
}
