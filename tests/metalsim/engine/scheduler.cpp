// Runs a threadgroup: one fiber a thread on the calling operating system thread.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "places.h"
#include "run.h"
#include "switch.h"

namespace metalsim {

thread_local Worker* worker;
extern "C" {
thread_local Current metalsim_current;
}

std::string describe(const Fiber& fiber) {
  const Uint3& p = fiber.thread.in_group;
  return "thread (" + std::to_string(p.x) + ", " + std::to_string(p.y) + ", " + std::to_string(p.z) + ")";
}

static void leave_group() {
  void* abandoned;
  metalsim_switch(&abandoned, worker->main_stack_pointer);
  __builtin_unreachable();
}

static void record_fault(const char* kind, const std::string& message) {
  Worker& w = *worker;
  Fault& f = w.fault;
  const Thread& t = current_fiber()->thread;
  const Uint3 &g = w.launch.group_position, &p = t.in_group;
  snprintf(f.kind, sizeof f.kind, "%s", kind);
  snprintf(f.message, sizeof f.message, "%s", message.c_str());
  uint32_t group[] = {g.x, g.y, g.z}, thread[] = {p.x, p.y, p.z};
  memcpy(f.group, group, sizeof group);
  memcpy(f.thread, thread, sizeof thread);
  f.index = t.index;
  w.failed = true;
}
void fail(const char* kind, const std::string& message, const void* pc) {
  record_fault(kind, message);
  worker->fault.program_counter = (uint64_t)pc;
  leave_group();
  __builtin_unreachable();
}
void fail_at(const char* kind, const std::string& message, const char* file, int line) {
  record_fault(kind, message);
  snprintf(worker->fault.file, sizeof worker->fault.file, "%s", file);
  worker->fault.line = line;
  leave_group();
  __builtin_unreachable();
}

// ---- The queue of threads that can run.

static uint64_t random_number(Worker& w) {
  uint64_t x = w.random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return w.random_state = x;
}
static void push_ready(Worker& w, Fiber& f) {
  f.state = State::ready;
  w.ready[(w.ready_head + w.ready_count++) % kMaxThreads] = f.thread.index;
}
static Fiber& pop_ready(Worker& w) {
  unsigned n = w.ready_count--;
  if (w.order == Order::lifo) return w.fibers[w.ready[(w.ready_head + n - 1) % kMaxThreads]];
  unsigned head = w.ready_head++ % kMaxThreads;
  if (w.order == Order::random) std::swap(w.ready[head], w.ready[(head + random_number(w) % n) % kMaxThreads]);
  return w.fibers[w.ready[head]];
}

// Nothing can run although threads are left: the barrier is waited for in vain.
[[noreturn]] static void fail_barrier(Worker& w) {
  const Fiber *waiting = nullptr, *other = nullptr;
  for (unsigned i = 0; i < w.count; i++) {
    const Fiber& f = w.fibers[i];
    (f.state == State::at_barrier ? waiting : other) = &f;
  }
  metalsim_current.thread = const_cast<Thread*>(&waiting->thread);
  const BarrierSite& site = w.barriers[waiting->thread.index];
  fail_at(
      "divergent barrier",
      describe(*waiting) + " waits at a threadgroup_barrier that " + describe(*other) + " never reaches (it returned)",
      site.file, site.line);
}

static void run_next(Fiber& me) {
  Worker& w = *worker;
  if (w.ready_count == 0) fail_barrier(w);
  Fiber& next = pop_ready(w);
  if (&next == &me) return;
  w.counters.fiber_switches++;
  metalsim_current.thread = &next.thread;
  metalsim_switch(&me.stack_pointer, next.stack_pointer);
}

// ---- Simdgroup operations.

// Every lane of the simdgroup waits or has finished. Those earliest in the program go on, together: the others are
// further on, and will meet them there. That is how a processor with one program counter a simdgroup joins branches.
static uint32_t earliest_lanes(Worker& w, Simdgroup& g) {
  const Fiber* earliest = nullptr;
  uint32_t mask = 0;
  for (unsigned i = g.first; i < g.first + g.count; i++) {
    Fiber& f = w.fibers[i];
    if (f.state != State::at_simd) continue;
    int order = earliest ? compare_places(f, *earliest) : -1;
    if (order < 0) mask = 0, earliest = &f;
    if (order <= 0) mask |= 1u << f.thread.lane;
  }
  return mask;
}
static void release_lanes(Worker& w, Simdgroup& g) {
  Exchange& e = g.exchange[g.generation++ & 1];
  e.mask = earliest_lanes(w, g);
  e.reduced = false;
  for (unsigned i = g.first; i < g.first + g.count; i++) {
    Fiber& f = w.fibers[i];
    if (!(e.mask >> f.thread.lane & 1)) continue;
    f.exchange = &e;
    memcpy(e.slots[f.thread.lane], f.value, f.value_size);
    push_ready(w, f);
  }
  unsigned active = __builtin_popcount(e.mask);
  g.waiting -= active;
  g.runnable += active;
  w.counters.simd_operations++;
  w.counters.inactive_lanes += g.count - active;
}
static void lane_stops(Worker& w, Simdgroup& g) {
  if (--g.runnable == 0 && g.waiting) release_lanes(w, g);
}

static Exchange* meet_lanes(const void* value, unsigned size, const void* site) {
  Worker& w = *worker;
  Fiber& me = *current_fiber();
  Simdgroup& g = *me.simdgroup;
  me.value = value;
  me.value_size = size;
  me.site = (uintptr_t)site;
  me.state = State::at_simd;
  g.waiting++;
  lane_stops(w, g);
  run_next(me);
  return me.exchange;
}

// ---- Threadgroup barriers.

// All threads must have come by the same calls, in the same passes of the loops.
static void check_barrier(Worker& w) {
  for (unsigned i = 1; i < w.count; i++) {
    const Fiber &f = w.fibers[i], &first = w.fibers[0];
    if (compare_places(f, first) == 0) continue;
    metalsim_current.thread = const_cast<Thread*>(&f.thread);
    const BarrierSite& b = w.barriers[i];
    fail_at("divergent barrier",
            describe(f) + " waits at this threadgroup_barrier while " + describe(first) + " waits at line " +
                std::to_string(w.barriers[0].line) + ", in another call or another pass of a loop",
            b.file, b.line);
  }
}

static void release_barrier(Worker& w) {
  check_barrier(w);
  const BarrierSite& first = w.barriers[0];
  for (int space = 0; space < 2; space++)
    if (first.flags >> space & 1) w.fence_epoch[space]++;
  w.counters.barriers++;
  w.at_barrier = 0;
  for (unsigned i = 0; i < w.count; i++) {
    w.fibers[i].simdgroup->runnable++;
    push_ready(w, w.fibers[i]);
  }
}

// ---- A thread's life.

static void fiber_main() {
  Worker& w = *worker;
  w.request->kernel();
  Fiber& me = *current_fiber();
  me.state = State::finished;
  if (++w.finished == w.count) leave_group();
  lane_stops(w, *me.simdgroup);
  run_next(me);
  __builtin_unreachable();
}

static void prepare_fiber(Worker& w, unsigned i) {
  const Uint3 &size = w.launch.group_size, &at = w.launch.group_position, &full = w.launch.full_group_size;
  Fiber& f = w.fibers[i];
  f.simdgroup = &w.simdgroups[i / kLanes];
  f.buffers_read = 0;
  Uint3 p = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  f.thread = {i, i % kLanes, p, {at.x * full.x + p.x, at.y * full.y + p.y, at.z * full.z + p.z}, nullptr, 0};
  // Stacks start at different cache lines, lest the same line of every stack falls into the same cache set.
  f.stack_pointer = new_stack(w.stacks + (i + 1) * kStackBytes - i % 61 * 320 / 64 * 64, fiber_main);
  push_ready(w, f);
}

// The work of a simdgroup is reading the buffer of which it reads most; lanes that read none of it stood idle.
static unsigned idle_lanes(const Worker& w, unsigned first) {
  const Simdgroup& g = w.simdgroups[first / kLanes];
  size_t most = std::max_element(g.bytes_read, g.bytes_read + kMaxBuffers) - g.bytes_read;
  if (g.bytes_read[most] == 0) return 0;
  unsigned idle = 0;
  for (unsigned i = first; i < first + g.count; i++) idle += !(w.fibers[i].buffers_read >> most & 1);
  return idle;
}

void run_group(Worker& w) {
  const Uint3& size = w.launch.group_size;
  w.count = size.x * size.y * size.z;
  w.finished = w.at_barrier = w.ready_count = w.ready_head = 0;
  w.fence_epoch[0] = w.fence_epoch[1] = 0;
  w.group_serial++;
  memset(w.arena, 0xff, w.arena_used);  // NaN, and far out of range as an index
  for (unsigned first = 0; first < w.count; first += kLanes) {
    Simdgroup& g = w.simdgroups[first / kLanes];
    g.first = first;
    g.count = g.runnable = w.count - first < kLanes ? w.count - first : kLanes;
    memset(g.bytes_read, 0, sizeof g.bytes_read);
    g.waiting = g.generation = g.fence_epoch[0] = g.fence_epoch[1] = 0;
  }
  for (unsigned i = 0; i < w.count; i++) prepare_fiber(w, i);
  Fiber& first = pop_ready(w);
  metalsim_current = {&first.thread, &w.launch};
  metalsim_switch(&w.main_stack_pointer, first.stack_pointer);
  w.counters.threads += w.count;
  w.counters.threadgroups++;
  for (unsigned first = 0; first < w.count; first += kLanes) w.counters.idle_lanes += idle_lanes(w, first);
}

size_t reserve_threadgroup_memory(Worker& w, size_t size) {
  size_t begin = w.arena_used;
  w.declared_bytes += size;
  if (w.declared_bytes > kThreadgroupLimit) return SIZE_MAX;
  w.ranges.push_back({begin, begin + size});
  w.arena_used = (begin + size + kArenaGap + 63) / 64 * 64;
  return begin;
}

}  // namespace metalsim

// ---- What shaders call.

using namespace metalsim;

#define CALLER __builtin_return_address(0)

namespace metalsim {
extern "C" {

Exchange* metalsim_simd_exchange(const void* value, unsigned size) { return meet_lanes(value, size, CALLER); }

void metalsim_simd_barrier(int flags) {
  Fiber& me = *current_fiber();
  Exchange* e = meet_lanes(nullptr, 0, CALLER);
  if ((unsigned)__builtin_popcount(e->mask) != me.simdgroup->count)
    fail("divergent barrier", "simdgroup_barrier is not reached by all lanes of the simdgroup", CALLER);
  // The first lane that comes back moves the epochs for all.
  if (e->reduced) return;
  e->reduced = true;
  for (int space = 0; space < 2; space++)
    if (flags >> space & 1) me.simdgroup->fence_epoch[space]++;
}

void metalsim_group_barrier(int flags, const char* file, int line) {
  Worker& w = *worker;
  Fiber& me = *current_fiber();
  w.barriers[me.thread.index] = {file, line, flags};
  me.site = (uintptr_t)CALLER;
  me.state = State::at_barrier;
  me.simdgroup->runnable--;
  if (me.simdgroup->runnable == 0 && me.simdgroup->waiting) release_lanes(w, *me.simdgroup);
  if (++w.at_barrier == w.count) release_barrier(w);
  run_next(me);
}

void metalsim_inactive_lane(int lane) {
  fail("inactive lane",
       "the value of lane " + std::to_string(lane) + " is read, which takes no part in this simdgroup operation",
       CALLER);
}

// Checked mode lets the lanes meet, because Metal demands that all of them execute a matrix operation together.
void metalsim_matrix_operation(MatrixOperation operation) {
  Worker& w = *worker;
  Fiber& me = *current_fiber();
  if (operation == MatrixOperation::multiply_accumulate && me.thread.lane == 0) w.counters.multiply_accumulates++;
  if (!w.checks) return;
  Exchange* e = meet_lanes(nullptr, 0, CALLER);
  w.counters.simd_operations -= me.thread.lane == 0;
  if (e->mask != UINT32_MAX)
    fail("divergent simdgroup matrix", "a simdgroup matrix operation is not executed by all 32 lanes", CALLER);
}

void metalsim_check_tile(const void* first, unsigned long row_bytes, unsigned size) {
  if (worker->checks) check_tile((const char*)first, row_bytes, size, CALLER);
}

void metalsim_atomic_access(const void* address, unsigned size, AtomicAccess access) {
  if (worker->checks) check_atomic((const char*)address, size, access, CALLER);
}

void* metalsim_threadgroup_variable(ThreadgroupSlot* slot, unsigned long size) {
  static unsigned next_id = 1;
  Worker& w = *worker;
  unsigned id = __atomic_load_n(&slot->id, __ATOMIC_RELAXED);
  if (!id) {
    unsigned fresh = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    id = __atomic_compare_exchange_n(&slot->id, &id, fresh, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? fresh : id;
  }
  if (w.variables.size() <= id) w.variables.resize(id + 1);
  if (!w.variables[id]) {
    size_t begin = reserve_threadgroup_memory(w, size);
    if (begin == SIZE_MAX) fail("threadgroup memory", "more than 32768 bytes of threadgroup memory", CALLER);
    memset(w.arena + begin, 0xff, size);
    w.variables[id] = 1 + begin;
  }
  return w.arena + w.variables[id] - 1;
}

// clang's division check calls these instead of letting the processor trap.
struct DivisionData {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_divrem_overflow_abort(DivisionData* data, uintptr_t, uintptr_t) {
  fail("division", "integer division by zero, or of the smallest integer by -1", CALLER);
}
}
}  // namespace metalsim
