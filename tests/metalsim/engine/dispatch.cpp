// A dispatch: threadgroups shared out to workers, counters summed, the first fault handed back.
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "checks.h"
#include "run.h"

namespace metalsim {

static Worker* make_worker() {
  auto* w = new Worker{};
  w->stacks = (char*)map_memory(kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE);
  // The lowest page of each stack faults, lest a large array run into the neighbour's stack.
  for (unsigned i = 0; i < kMaxThreads; i++) mprotect(w->stacks + i * kStackBytes, kPage, PROT_NONE);
  w->arena = (char*)map_memory(kArenaBytes, PROT_READ | PROT_WRITE);
  return w;
}

// Workers outlive dispatches: making one costs a thousand system calls.
static std::mutex pool_lock;
static std::vector<Worker*> pool;
static Worker* take_worker() {
  std::lock_guard<std::mutex> hold(pool_lock);
  if (pool.empty()) return make_worker();
  Worker* w = pool.back();
  pool.pop_back();
  return w;
}
static void return_worker(Worker* w) {
  std::lock_guard<std::mutex> hold(pool_lock);
  pool.push_back(w);
}

static void prepare_worker(Worker& w, const Request& request, MemoryChecks* checks) {
  w.request = &request;
  w.checks = checks;
  w.counters = {};
  w.fault = {};
  w.failed = false;
  w.order = (Order)request.order;
  w.ranges.clear();
  w.variables.clear();
  w.arena_used = kArenaGap;
  w.declared_bytes = 0;
  w.group_serial = 0;
  w.launch = {};
  for (unsigned i = 0; i < kMaxBuffers; i++) {
    w.launch.buffers[i] = request.buffers[i].address;
    if (!request.threadgroup_bytes[i]) continue;
    size_t begin = reserve_threadgroup_memory(w, request.threadgroup_bytes[i]);
    if (begin == SIZE_MAX) begin = 0;  // the Python side has refused this already
    w.launch.threadgroup_memory[i] = w.arena + begin;
  }
  if (checks) bind_copies(*checks, w.launch);
  w.launch.grid_size = {request.grid[0], request.grid[1], request.grid[2]};
  w.launch.full_group_size = {request.group[0], request.group[1], request.group[2]};
  auto groups = [&](int i) { return (request.grid[i] + request.group[i] - 1) / request.group[i]; };
  w.launch.groups = {groups(0), groups(1), groups(2)};
}

// Threadgroups at the grid's edge are smaller where the grid is no multiple of their size.
static void place_group(Worker& w, uint64_t number, const Request& request) {
  Launch& l = w.launch;
  l.group_position = {(unsigned)(number % l.groups.x), (unsigned)(number / l.groups.x % l.groups.y),
                      (unsigned)(number / ((uint64_t)l.groups.x * l.groups.y))};
  auto size = [](unsigned grid, unsigned at, unsigned full) { return std::min(full, grid - at * full); };
  l.group_size = {size(request.grid[0], l.group_position.x, request.group[0]),
                  size(request.grid[1], l.group_position.y, request.group[1]),
                  size(request.grid[2], l.group_position.z, request.group[2])};
}

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// The order of threadgroups follows the threads': ascending, descending, or a seeded permutation i -> (a i + b) mod n.
struct GroupOrder {
  Order order;
  uint64_t count, factor, shift;
  GroupOrder(Order o, uint64_t n, uint64_t seed)
      : order(o), count(n), factor(mix(seed) % n | 1), shift(mix(~seed) % n) {
    while (std::gcd(factor, count) != 1) factor++;
  }
  uint64_t at(uint64_t i) const {
    if (order == Order::fifo) return i;
    return order == Order::lifo ? count - 1 - i : (uint64_t)(((unsigned __int128)factor * i + shift) % count);
  }
};

static const ConstantValue* value_for(const FunctionConstant& constant, const Request& request) {
  for (uint64_t i = 0; i < request.value_count; i++) {
    const ConstantValue& value = request.values[i];
    if (value.name ? !strcmp(value.name, constant.name) : value.index == constant.index) return &value;
  }
  return nullptr;
}
// Gives the shader's variables their values; those derived from others come behind them in the list.
static void set_constants(const Request& request) {
  for (const FunctionConstant* c = request.constants; c; c = c->next) {
    if (c->derive) c->derive();
    if (!c->name) continue;
    const ConstantValue* value = value_for(*c, request);
    *c->defined = value != nullptr;
    memset(c->value, 0, c->size);
    if (value) memcpy(c->value, value->bytes, std::min<size_t>(c->size, value->size));
  }
}

static void add(Counters& total, const Counters& part) {
  uint64_t* t = (uint64_t*)&total;
  const uint64_t* p = (const uint64_t*)&part;
  for (size_t i = 0; i < sizeof(Counters) / sizeof(uint64_t); i++) t[i] += p[i];
}

}  // namespace metalsim

using namespace metalsim;

// Returns 0, or 1 with *fault set. One at a time, since function constants are variables of the shader; its
// threadgroups run in parallel.
extern "C" __attribute__((visibility("default"))) int metalsim_dispatch(const Request* request, Counters* counters,
                                                                        Fault* fault) {
  static auto* one_at_a_time = new std::mutex;
  std::lock_guard<std::mutex> lock(*one_at_a_time);
  set_constants(*request);
  MemoryChecks* checks = request->checked ? make_checks(*request) : nullptr;
  uint64_t total = 1;
  for (int i = 0; i < 3; i++) total *= (request->grid[i] + request->group[i] - 1) / request->group[i];
  GroupOrder order((Order)request->order, total, request->seed);
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex result_lock;
  *counters = {};
  auto work = [&] {
    Worker* w = take_worker();
    prepare_worker(*w, *request, checks);
    worker = w;
    for (uint64_t i; (i = next++) < total && !stop;) {
      uint64_t number = order.at(i);
      place_group(*w, number, *request);
      w->random_state = mix(request->seed ^ mix(number)) | 1;
      run_group(*w);
      if (w->failed) stop = true;
    }
    w->checks = nullptr;
    std::lock_guard<std::mutex> hold(result_lock);
    add(*counters, w->counters);
    if (w->failed) *fault = w->fault;
    return_worker(w);
  };
  unsigned workers = request->checked ? 1 : (unsigned)std::min<uint64_t>(request->workers, total);
  if (workers <= 1) {
    work();
  } else {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < workers; i++) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
  }
  if (checks) finish_checks(checks, *counters);
  return stop;
}
