// Random matrices and rows for native tests, and threads that share work.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "pack.hpp"

namespace dragoman {

inline std::mt19937 generator(11);

inline int random_below(int limit) { return static_cast<int>(generator() % static_cast<unsigned>(limit)); }

inline std::vector<float> random_floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random_below(20001) - 10000) / 4000.0f;
    return values;
}

// Packed matrices behind each other in memory that ends where they end, so that the sanitizer sees what is read behind it.
struct Stack {
    Stack(Format format, int64_t group, int64_t outputs, int64_t columns, int64_t count)
        : first{format, group, outputs, columns, nullptr} {
        begin = static_cast<uint8_t*>(std::aligned_alloc(kLine, static_cast<size_t>(first.bytes() * count)));
        first.data = begin;
        for (int64_t index = 0; index < count; ++index) {
            if (first.is_float()) {
                std::vector<uint16_t> values(static_cast<size_t>(outputs * columns));
                for (uint16_t& value : values)
                    value = static_cast<uint16_t>(random_below(2) << 15 | (14 << 10) | random_below(1024));
                pack_floats(first, 0, outputs, values.data(), begin + index * first.bytes());
                continue;
            }
            std::vector<uint8_t> codes(static_cast<size_t>(outputs * columns));
            std::vector<uint8_t> zeros(static_cast<size_t>(outputs * first.blocks()));
            std::vector<uint16_t> scales(zeros.size());
            for (uint8_t& code : codes) code = static_cast<uint8_t>(random_below(16));
            for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random_below(16));
            for (uint16_t& scale : scales) scale = static_cast<uint16_t>(5 << 10 | random_below(1024));
            pack_groups(first, 0, outputs, codes.data(), scales.data(), zeros.data(), begin + index * first.bytes());
        }
    }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    ~Stack() { std::free(begin); }

    Matrix matrix(int64_t index) const {
        Matrix one = first;
        one.data += index * one.bytes();
        return one;
    }

    Matrix first;
    uint8_t* begin;
};

inline void in_turn(int64_t count, const std::function<void(int64_t)>& body) {
    for (int64_t index = 0; index < count; ++index) body(index);
}

inline void on_three(int64_t count, const std::function<void(int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t first = 0; first < 3; ++first) {
        threads.emplace_back([=, &body] {
            for (int64_t index = first; index < count; index += 3) body(index);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace dragoman
