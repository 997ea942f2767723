// The parts of checked mode that the dispatch loop needs too.
#pragma once
#include <sys/mman.h>

#include <algorithm>

#include "internal.h"

namespace metalsim {

constexpr int kDeviceSpace = 0, kThreadgroupSpace = 1;  // bits of mem_flags
constexpr size_t kPage = 4096;

struct RegionBinding {
  int index;
  const char *begin, *end;
};
struct Region {
  const char *begin, *end, *original;
  void* cells;
  std::vector<RegionBinding> bindings;
  const char* binding_begin(int index) const {
    for (const RegionBinding& b : bindings)
      if (b.index == index) return b.begin;
    return begin;
  }
};

inline void* map_memory(size_t size, int protection) {
  void* p = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  return p;
}
void bind_copies(const MemoryChecks& checks, Launch& launch);

}  // namespace metalsim
