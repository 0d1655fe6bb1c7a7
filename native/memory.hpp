// Memory that packed weights lie in. Does: ask the system for it, give it back when nobody reads it any more. Does not: write it.
// Loaders make it by the C entry points, on any thread; operations find it by its number, and hold on to it from then on.
#pragma once

#include <cstdint>
#include <memory>

namespace dragoman {

class Memory {
public:
    // In huge pages where the system has some: fewer misses while weights stream by. Null if there is no room.
    static std::shared_ptr<const Memory> of_process(int64_t size);
    // A part of a file from `offset` on, a multiple of a page; `is_written`: what is written there is the file's. Null on failure.
    static std::shared_ptr<const Memory> of_file(int descriptor, int64_t offset, int64_t size, bool is_written);

    Memory(uint8_t* data, int64_t size) : data_(data), size_(size) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();

    uint8_t* data() const { return data_; }
    int64_t size() const { return size_; }

private:
    uint8_t* data_;
    int64_t size_;
};

// Holds memory under a number of its own, until that is let go.
int64_t hold(std::shared_ptr<const Memory> memory);
void let_go(int64_t number);

// The memory of that number; null if there is none any more.
std::shared_ptr<const Memory> held_memory(int64_t number);

}  // namespace dragoman
