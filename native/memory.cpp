// See memory.hpp. Linux only, as the rest of the library.
#include "memory.hpp"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <utility>

namespace dragoman {
namespace {

struct Held {
    std::mutex lock;
    std::map<int64_t, std::shared_ptr<const Memory>> by_number;
    int64_t next = 1;
};

Held& all() {
    static Held held;
    return held;
}

std::shared_ptr<const Memory> mapped(int64_t size, int protection, int flags, int descriptor, int64_t offset) {
    void* data = mmap(nullptr, static_cast<size_t>(size), protection, flags, descriptor, offset);
    return data == MAP_FAILED ? nullptr : std::make_shared<const Memory>(static_cast<uint8_t*>(data), size);
}

}  // namespace

std::shared_ptr<const Memory> Memory::of_process(int64_t size) {
    auto memory = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory) madvise(memory->data(), static_cast<size_t>(size), MADV_HUGEPAGE);
    return memory;
}

std::shared_ptr<const Memory> Memory::of_file(int descriptor, int64_t offset, int64_t size, bool is_written) {
    return mapped(size, is_written ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, offset);
}

Memory::~Memory() { munmap(data_, static_cast<size_t>(size_)); }

int64_t hold(std::shared_ptr<const Memory> memory) {
    const std::lock_guard<std::mutex> locked(all().lock);
    all().by_number[all().next] = std::move(memory);
    return all().next++;
}

void let_go(int64_t number) {
    std::shared_ptr<const Memory> last;  // is freed without the lock
    const std::lock_guard<std::mutex> locked(all().lock);
    const auto found = all().by_number.find(number);
    if (found == all().by_number.end()) return;
    last = std::move(found->second);
    all().by_number.erase(found);
}

std::shared_ptr<const Memory> held_memory(int64_t number) {
    const std::lock_guard<std::mutex> locked(all().lock);
    const auto found = all().by_number.find(number);
    return found == all().by_number.end() ? nullptr : found->second;
}

}  // namespace dragoman
