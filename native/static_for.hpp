// Loops that the compiler writes out. Used by the kernels, whose vectors must live in registers.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

namespace dragoman {

template <int First, class Body, int... Index>
inline __attribute__((always_inline)) void static_for_each(Body&& body, std::integer_sequence<int, Index...>) {
    (body(std::integral_constant<int, First + Index>{}), ...);
}

// Calls `body` with the constants First to Last - 1.
template <int First, int Last, class Body>
inline __attribute__((always_inline)) void static_for(Body&& body) {
    if constexpr (First < Last) static_for_each<First>(body, std::make_integer_sequence<int, Last - First>{});
}

template <class Make, int... Index>
inline auto make_array_of(Make&& make, std::integer_sequence<int, Index...>) {
    return std::array{make(std::integral_constant<int, Index>{})...};
}

// `make(0)` to `make(N - 1)` in an array.
template <int N, class Make>
inline auto make_array(Make&& make) {
    return make_array_of(make, std::make_integer_sequence<int, N>{});
}

}  // namespace dragoman
