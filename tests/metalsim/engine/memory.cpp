// Checked mode: every memory access of a shader comes here (clang's -fsanitize=thread instrumentation, with this
// runtime behind it instead of clang's own) and is held against the bounds, what was written, and who touched it
// before.
#include <sys/mman.h>

#include <cstring>

#include "checks.h"

namespace metalsim {

enum class Access { read, write, atomic_load, atomic_store, atomic_update };
static bool reads(Access a) { return a != Access::write && a != Access::atomic_store; }
static bool writes(Access a) { return a != Access::read && a != Access::atomic_load; }

// Device memory's regions lie 8 GiB apart with nothing mapped between, so that no wrong index reaches another buffer.
constexpr unsigned kRegionShift = 33;
constexpr size_t kRegionLead = size_t{4} << 30;

struct Record {
  uint32_t group, epoch, simd_epoch;
  uint16_t thread;
  bool valid, atomic;
};
// The last write of a byte and two reads: with two readers known, any writer has another thread to conflict with.
struct Cell {
  Record write, reads[2];
};

struct MemoryChecks {
  char* base;
  size_t reserved;
  std::vector<Region> regions;
  const Request* request;
  std::vector<std::vector<bool>> read_bytes, written_bytes;  // by buffer
  Cell* threadgroup_cells;
};

static const char* verb(Access access) {
  const char* verbs[] = {"reads", "writes", "atomically reads", "atomically writes", "atomically updates"};
  return verbs[(int)access];
}

static bool ordered(const Record& before, const Fiber& me, int space) {
  const Worker& w = *worker;
  if (!before.valid) return true;
  if (before.group != w.group_serial) return space == kThreadgroupSpace;
  if (before.thread == me.thread.index || before.epoch != w.fence_epoch[space]) return true;
  return before.thread / kLanes == me.thread.index / kLanes && before.simd_epoch != me.simdgroup->fence_epoch[space];
}

[[noreturn]] static void fail_race(const Record& before, bool before_writes, Access access, const std::string& where,
                                   const void* pc) {
  std::string other = before.group == worker->group_serial ? describe(worker->fibers[before.thread])
                                                           : "a thread of another threadgroup";
  fail("race",
       std::string(verb(access)) + " " + where + ", which " + other + (before_writes ? " writes" : " reads") +
           " with no barrier between",
       pc);
}

// `where` is a function that names the place: only a race pays for the text.
template <class Where>
static void check_order(Cell* cells, size_t n, Access access, int space, Where where, const void* pc) {
  const Fiber& me = *current_fiber();
  Record now = {worker->group_serial,
                worker->fence_epoch[space],
                me.simdgroup->fence_epoch[space],
                (uint16_t)me.thread.index,
                true,
                access >= Access::atomic_load};
  for (Cell* c = cells; c < cells + n; c++) {
    bool both_atomic = now.atomic && c->write.atomic;
    if (!both_atomic && !ordered(c->write, me, space)) fail_race(c->write, true, access, where(c - cells), pc);
    if (writes(access)) {
      for (const Record& r : c->reads)
        if (!(now.atomic && r.atomic) && !ordered(r, me, space)) fail_race(r, false, access, where(c - cells), pc);
      c->write = now;
    }
    if (access == Access::read || access == Access::atomic_load) {
      bool first = ordered(c->reads[0], me, space) || c->reads[0].thread / kLanes == now.thread / kLanes;
      c->reads[first ? 0 : 1] = now;
    }
  }
}

static void check_alignment(const char* address, unsigned alignment, Access access, const void* pc) {
  if ((uintptr_t)address % alignment)
    fail("misaligned access",
         std::string(verb(access)) + " " + std::to_string(alignment) + " bytes at an address that is no multiple of " +
             std::to_string(alignment),
         pc);
}

static void threadgroup_access(Worker& w, size_t at, size_t n, Access access, const void* pc) {
  const Worker::Range* nearest = nullptr;
  for (const Worker::Range& r : w.ranges) {
    if (at >= r.begin && at + n <= r.end) {
      nearest = &r;
      break;
    }
    if (at + n > r.begin || !nearest) nearest = &r;
  }
  long offset = nearest ? (long)at - (long)nearest->begin : 0;
  if (!nearest || at < nearest->begin || at + n > nearest->end)
    fail("out of bounds",
         std::string(verb(access)) + " " + std::to_string(n) + " bytes at byte " + std::to_string(offset) +
             " of threadgroup memory of " + std::to_string(nearest ? nearest->end - nearest->begin : 0) + " bytes",
         pc);
  Cell* cells = w.checks->threadgroup_cells + at;
  auto where = [&](long i) { return "byte " + std::to_string(offset + i) + " of threadgroup memory"; };
  if (reads(access))
    for (size_t i = 0; i < n; i++)
      if (!cells[i].write.valid || cells[i].write.group != w.group_serial)
        fail("uninitialized read", std::string(verb(access)) + " " + where(i) + ", which was never written", pc);
  check_order(cells, n, access, kThreadgroupSpace, where, pc);
}

static int binding_at(const Region& region, const char* address, size_t n) {
  for (const RegionBinding& b : region.bindings)
    if (address >= b.begin && address + n <= b.end) return b.index;
  return -1;
}

[[noreturn]] static void fail_bounds(const Region& region, const char* address, size_t n, Access access,
                                     const void* pc) {
  const RegionBinding* nearest = &region.bindings[0];
  for (const RegionBinding& b : region.bindings)
    if (address >= b.begin) nearest = &b;
  fail("out of bounds",
       std::string(verb(access)) + " " + std::to_string(n) + " bytes at byte " +
           std::to_string(address - nearest->begin) + " of buffer " + std::to_string(nearest->index) + ", which has " +
           std::to_string(nearest->end - nearest->begin) + " bytes",
       pc);
}

static void device_access(Worker& w, const char* address, size_t n, Access access, const void* pc) {
  MemoryChecks& m = *w.checks;
  Region& region = m.regions[(size_t)(address - m.base) >> kRegionShift];
  int index = binding_at(region, address, n);
  if (index < 0) fail_bounds(region, address, n, access, pc);
  const BufferBinding& binding = m.request->buffers[index];
  if (reads(access) && !binding.constant) {
    current_fiber()->buffers_read |= 1u << index;
    current_fiber()->simdgroup->bytes_read[index] += n;
  }
  size_t offset = address - region.binding_begin(index);
  BufferCounters& counters = w.counters.buffers[index];
  auto touch = [&](uint64_t& issued, std::vector<bool>& bytes) {
    issued += n;
    if (bytes.empty()) bytes.resize(binding.size);
    for (size_t i = 0; i < n; i++) bytes[offset + i] = true;
  };
  if (reads(access)) touch(counters.read_issued, m.read_bytes[index]);
  if (writes(access)) touch(counters.written_issued, m.written_bytes[index]);
  if (!region.cells) return;  // nobody may write it
  Cell* cells = (Cell*)region.cells + (address - region.begin);
  auto where = [&](long i) { return "byte " + std::to_string(offset + i) + " of buffer " + std::to_string(index); };
  check_order(cells, n, access, kDeviceSpace, where, pc);
}

// The shader's own variables. A function constant without a value holds nothing in Metal.
static void image_access(const Request& request, const char* address, const void* pc) {
  for (const FunctionConstant* c = request.constants; c; c = c->next)
    if (c->name && !*c->defined && address >= c->value && address < c->value + c->size)
      fail("undefined function constant", std::string("reads '") + c->name + "', which was given no value", pc);
}

static void check(const void* pointer, size_t n, Access access, unsigned alignment, const void* pc) {
  // A library's constructors are instrumented too.
  if (!worker || !worker->checks) return;
  Worker& w = *worker;
  const char* address = (const char*)pointer;
  if ((size_t)(address - w.stacks) < kStackBytes * kMaxThreads) return;
  if (address >= w.request->image_begin && address < w.request->image_end) return image_access(*w.request, address, pc);
  if (n == 0) return;
  // Thread positions, the launch, and exchanged values are the engine's own.
  if ((size_t)(address - (const char*)&w) < sizeof(Worker)) return;
  if ((size_t)(address - (const char*)&metalsim_current) < sizeof(Current)) return;
  if ((size_t)(address - w.arena) < kArenaBytes) {
    threadgroup_access(w, address - w.arena, n, access, pc);
  } else if ((size_t)(address - w.checks->base) < w.checks->regions.size() << kRegionShift) {
    device_access(w, address, n, access, pc);
  } else if ((uintptr_t)address < 65536) {
    fail("null pointer", std::string(verb(access)) + " through a pointer to nothing: no buffer is bound there", pc);
  } else {
    fail("out of bounds", std::string(verb(access)) + " memory that belongs to no buffer", pc);
  }
  check_alignment(address, alignment, access, pc);
}

void check_tile(const char* first, size_t row_bytes, unsigned size, const void* pc) {
  Worker& w = *worker;
  for (int r = 0; r < 8; r++) {
    const char* row = first + r * row_bytes;
    size_t n = 8 * size;
    if ((size_t)(row - w.arena) < kArenaBytes) {
      bool inside = false;
      for (const Worker::Range& range : w.ranges)
        inside |= row >= w.arena + range.begin && row + n <= w.arena + range.end;
      if (!inside) fail("out of bounds", "a simdgroup_load reads past the end of threadgroup memory", pc);
    } else if ((size_t)(row - w.checks->base) < w.checks->regions.size() << kRegionShift) {
      const Region& region = w.checks->regions[(size_t)(row - w.checks->base) >> kRegionShift];
      if (binding_at(region, row, n) < 0) fail_bounds(region, row, n, Access::read, pc);
    } else if ((size_t)(row - w.stacks) >= kStackBytes * kMaxThreads) {
      fail("out of bounds", "a simdgroup_load reads memory that belongs to no buffer", pc);
    }
  }
}

void check_atomic(const char* address, unsigned size, AtomicAccess access, const void* pc) {
  Access kinds[] = {Access::atomic_load, Access::atomic_store, Access::atomic_update};
  check(address, size, kinds[(int)access], size, pc);
}

// ---- Guarded copies of the buffers.

// Views that overlap in the caller's memory share a region; others are kept apart even if they lie side by side.
static std::vector<Region> group_buffers(const Request& request) {
  std::vector<RegionBinding> all;
  for (unsigned i = 0; i < kMaxBuffers; i++) {
    const BufferBinding& b = request.buffers[i];
    if (b.address) all.push_back({(int)i, b.address, b.address + b.size});
  }
  std::sort(all.begin(), all.end(), [](const RegionBinding& a, const RegionBinding& b) { return a.begin < b.begin; });
  std::vector<Region> regions;
  for (const RegionBinding& b : all) {
    if (regions.empty() || b.begin >= regions.back().end) regions.push_back({b.begin, b.end, b.begin, nullptr, {}});
    Region& r = regions.back();
    r.end = std::max(r.end, b.end);
    r.bindings.push_back(b);
  }
  return regions;
}

MemoryChecks* make_checks(const Request& request) {
  auto* m = new MemoryChecks{};
  m->request = &request;
  m->regions = group_buffers(request);
  m->read_bytes.resize(kMaxBuffers);
  m->written_bytes.resize(kMaxBuffers);
  m->reserved = (m->regions.size() + 1) << kRegionShift;
  m->base = (char*)map_memory(m->reserved, PROT_NONE);
  m->threadgroup_cells = (Cell*)map_memory(kArenaBytes * sizeof(Cell), PROT_READ | PROT_WRITE);
  for (size_t i = 0; i < m->regions.size(); i++) {
    Region& r = m->regions[i];
    size_t size = r.end - r.begin;
    // The copy keeps the offset's alignment: a Metal buffer itself begins on a page.
    size_t lead = request.buffers[r.bindings[0].index].offset % kPage;
    char* page = m->base + (i << kRegionShift) + kRegionLead;
    mprotect(page, (lead + size + kPage - 1) / kPage * kPage, PROT_READ | PROT_WRITE);
    char* copy = page + lead;
    memcpy(copy, r.original, size);
    bool writable = false;
    for (RegionBinding& b : r.bindings) {
      b.begin += copy - r.original;
      b.end += copy - r.original;
      writable |= !request.buffers[b.index].read_only;
    }
    r.begin = copy;
    r.end = copy + size;
    if (writable) r.cells = map_memory(size * sizeof(Cell) + 1, PROT_READ | PROT_WRITE);
  }
  return m;
}

void bind_copies(const MemoryChecks& m, Launch& launch) {
  for (const Region& r : m.regions)
    for (const RegionBinding& b : r.bindings) launch.buffers[b.index] = (void*)b.begin;
}

void finish_checks(MemoryChecks* m, Counters& counters) {
  for (const Region& r : m->regions) {
    if (!r.cells) continue;
    memcpy(const_cast<char*>(r.original), r.begin, r.end - r.begin);
    munmap(r.cells, (r.end - r.begin) * sizeof(Cell) + 1);
  }
  auto count = [](const std::vector<bool>& bytes) { return (uint64_t)std::count(bytes.begin(), bytes.end(), true); };
  for (unsigned i = 0; i < kMaxBuffers; i++) {
    counters.buffers[i].read_distinct = count(m->read_bytes[i]);
    counters.buffers[i].written_distinct = count(m->written_bytes[i]);
  }
  munmap(m->threadgroup_cells, kArenaBytes * sizeof(Cell));
  munmap(m->base, m->reserved);
  delete m;
}

}  // namespace metalsim

// ---- The instrumentation's entry points.

using namespace metalsim;
#define CALLER __builtin_return_address(0)
#define METALSIM_ACCESSES(n)                                                               \
  void __tsan_read##n(const void* a) { check(a, n, Access::read, n, CALLER); }             \
  void __tsan_write##n(const void* a) { check(a, n, Access::write, n, CALLER); }           \
  void __tsan_unaligned_read##n(const void* a) { check(a, n, Access::read, 1, CALLER); }   \
  void __tsan_unaligned_write##n(const void* a) { check(a, n, Access::write, 1, CALLER); } \
  void __tsan_volatile_read##n(const void* a) { check(a, n, Access::read, n, CALLER); }    \
  void __tsan_volatile_write##n(const void* a) { check(a, n, Access::write, n, CALLER); }

extern "C" {
METALSIM_ACCESSES(1)
METALSIM_ACCESSES(2)
METALSIM_ACCESSES(4)
METALSIM_ACCESSES(8)
METALSIM_ACCESSES(16)
void __tsan_init() {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  check(from, n, Access::read, 1, CALLER);
  check(to, n, Access::write, 1, CALLER);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  check(from, n, Access::read, 1, CALLER);
  check(to, n, Access::write, 1, CALLER);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  check(to, n, Access::write, 1, CALLER);
  return memset(to, value, n);
}
}
