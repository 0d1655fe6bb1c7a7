// The threads that kernels run on: those of the arena of whoever calls, which inside a graph is the plugin's.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdint>
#include <functional>

namespace dragoman {

// Runs `body(i)` for each i in [0, count). While it waits, the calling thread takes up no other work: kernels keep rows in memory
// of the thread.
inline void on_threads(int64_t count, const std::function<void(int64_t)>& body) {
    if (count == 1) {
        body(0);
    } else {
        tbb::this_task_arena::isolate([&] { tbb::parallel_for(int64_t{0}, count, body); });
    }
}

}  // namespace dragoman
