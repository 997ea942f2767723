// The engine's own view: fibers, threadgroups, memory checks. One Worker runs on each operating system thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define METALSIM_INLINE inline __attribute__((always_inline))
#include "metalsim/engine.h"

namespace metalsim {

constexpr unsigned kLanes = 32, kMaxThreads = 1024, kMaxBuffers = 31, kThreadgroupLimit = 32768;

enum class State : uint8_t { ready, at_simd, at_barrier, finished };
enum class Order : int { fifo, lifo, random };

struct Simdgroup;
struct Fiber {
  Thread thread;  // first, so that shaders' Thread* and the engine's Fiber* are one pointer
  void* stack_pointer;
  Simdgroup* simdgroup;
  State state;
  const void* value;  // what this lane brings to the simdgroup operation at which it waits
  unsigned value_size;
  uintptr_t site;  // the call at which it waits
  Exchange* exchange;
  uint32_t buffers_read;  // a bit for each device buffer; kept in checked mode
};

struct Simdgroup {
  unsigned first, count, runnable, waiting, generation;
  uint32_t fence_epoch[2];           // of device and threadgroup memory: simdgroup_barrier's doing
  uint64_t bytes_read[kMaxBuffers];  // of device buffers; kept in checked mode
  Exchange exchange[2];
};

struct BarrierSite {
  const char* file;
  int line, flags;
};

// Layout shared with library.py.
struct BufferCounters {
  uint64_t read_issued, written_issued, read_distinct, written_distinct;
};
struct Counters {
  uint64_t threads, threadgroups, barriers, simd_operations, inactive_lanes, idle_lanes, multiply_accumulates,
      fiber_switches;
  BufferCounters buffers[kMaxBuffers];
};
struct BufferBinding {
  char* address;
  uint64_t size;
  uint32_t constant;  // bound to a `constant` parameter: its reads don't make a lane busy
  uint32_t read_only;
  uint64_t offset;  // of `address` in its Metal buffer
};
struct Fault {
  char kind[32];
  char message[480];
  uint32_t group[3], thread[3], index;
  uint64_t program_counter;
  char file[256];
  int32_t line;
};
// A shader's list of its function constants (launch.h's RegisterConstant); those derived from others have no name.
struct FunctionConstant {
  int index;
  const char* name;
  char* value;
  unsigned size;
  bool* defined;
  void (*derive)();
  FunctionConstant* next;
};
// A value for the constant with this index or (name not null) this name.
struct ConstantValue {
  int64_t index;
  const char* name;
  const void* bytes;
  uint64_t size;
};
struct Request {
  void (*kernel)();
  BufferBinding buffers[kMaxBuffers];
  uint64_t threadgroup_bytes[kMaxBuffers];
  uint32_t grid[3], group[3];
  uint32_t checked, order, workers;
  uint64_t seed;
  char *image_begin, *image_end;
  const FunctionConstant* constants;
  const ConstantValue* values;
  uint64_t value_count;
};

struct MemoryChecks;

struct Worker {
  const Request* request;
  Launch launch;
  Counters counters;
  Fault fault;
  bool failed;
  Fiber fibers[kMaxThreads];
  Simdgroup simdgroups[kMaxThreads / kLanes];
  BarrierSite barriers[kMaxThreads];
  char* stacks;
  void* main_stack_pointer;
  unsigned count, finished, at_barrier;
  uint32_t fence_epoch[2];
  uint32_t group_serial;
  unsigned ready[kMaxThreads], ready_count, ready_head;
  Order order;
  uint64_t random_state;
  char* arena;
  size_t arena_used, declared_bytes;
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> ranges;      // threadgroup memory in the arena, with gaps between
  std::vector<size_t> variables;  // by ThreadgroupSlot id: 1 + offset in the arena
  MemoryChecks* checks;
};

extern thread_local Worker* worker;
inline Fiber* current_fiber() { return (Fiber*)metalsim_current.thread; }

[[noreturn]] void fail(const char* kind, const std::string& message, const void* pc);
[[noreturn]] void fail_at(const char* kind, const std::string& message, const char* file, int line);
size_t reserve_threadgroup_memory(Worker& w, size_t size);
std::string describe(const Fiber& fiber);
constexpr size_t kStackBytes = 128 << 10, kArenaBytes = 256 << 10, kArenaGap = 1024;

// memory.cpp
MemoryChecks* make_checks(const Request& request);
void finish_checks(MemoryChecks* checks, Counters& counters);
void check_tile(const char* first, size_t row_bytes, unsigned size, const void* pc);
void check_atomic(const char* address, unsigned size, AtomicAccess access, const void* pc);

}  // namespace metalsim
