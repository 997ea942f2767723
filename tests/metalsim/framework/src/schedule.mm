#include "schedule.h"

#include <algorithm>

namespace metalsim {

Schedule& schedule() {
  static auto* one = new Schedule;
  return *one;
}

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Handlers = std::vector<MTLCommandBufferHandler>;
static void call(Handlers& handlers, MetalsimCommandBuffer* buffer) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  for (MTLCommandBufferHandler block : handlers) {
    block(buffer);
    _Block_release((const void*)block);
  }
  [pool drain];
}

// ---- One command buffer.

static bool ready(const BufferState& buffer) {
  if (buffer.next == buffer.commands.size()) return true;
  const Command& command = buffer.commands[buffer.next];
  return !command.ready || !buffer.failure.empty() || command.ready();
}
// Runs its commands up to the end or to one that must wait. Called and left with the lock held.
static void run_commands(BufferState& buffer, ScheduleLock& lock) {
  if (!buffer.next) buffer.start = now();
  while (buffer.next < buffer.commands.size() && ready(buffer)) {
    const Command& command = buffer.commands[buffer.next++];
    // After a failure events are signalled still, so that nobody waits for ever.
    if (!buffer.failure.empty() && !command.always) continue;
    lock.unlock();
    std::optional<std::string> failure = command.run();
    lock.lock();
    if (failure && buffer.failure.empty()) buffer.failure = *failure;
  }
}
static void set_result(BufferState& buffer, bool invalid) {
  buffer.end = now();
  if (buffer.failure.empty()) {
    buffer.status = MTLCommandBufferStatusCompleted;
    return;
  }
  NSInteger code = invalid ? MTLCommandBufferErrorInvalidResource : MTLCommandBufferErrorPageFault;
  buffer.error = [error_with(MTLCommandBufferErrorDomain, code, buffer.failure) retain];
  buffer.status = MTLCommandBufferStatusError;
}

// ---- One queue. Each of these does a step and tells whether there was one to do.

static MetalsimCommandBuffer* first_of(const QueueState& queue) {
  bool there = !queue.busy && !queue.pending.empty();
  return there && queue.pending.front()->_state->status >= MTLCommandBufferStatusCommitted ? queue.pending.front()
                                                                                           : nil;
}
static bool call_completed_handlers(QueueState& queue) {
  ScheduleLock lock(schedule().mutex);
  // One thread calls them, in order; a handler that waits for another buffer's is on that thread already.
  std::thread::id before = queue.handler, me = std::this_thread::get_id();
  if (queue.finished.empty() || (before != std::thread::id() && before != me)) return false;
  queue.handler = me;
  MetalsimCommandBuffer* buffer = queue.finished.front();
  queue.finished.pop_front();
  Handlers handlers;
  handlers.swap(buffer->_state->completed);
  buffer->_state->handler = me;
  lock.unlock();
  call(handlers, buffer);
  lock.lock();
  buffer->_state->handled = true;
  queue.handler = before;
  schedule().notify();
  lock.unlock();
  [buffer release];
  return true;
}
static bool call_scheduled_handlers(MetalsimCommandBuffer* buffer, ScheduleLock& lock) {
  BufferState& state = *buffer->_state;
  if (state.status == MTLCommandBufferStatusCommitted) state.status = MTLCommandBufferStatusScheduled;
  if (state.scheduled.empty()) return false;
  Handlers handlers;
  handlers.swap(state.scheduled);
  [buffer retain];
  lock.unlock();
  call(handlers, buffer);
  [buffer release];
  lock.lock();
  return true;
}
static bool run_first(QueueState& queue) {
  ScheduleLock lock(schedule().mutex);
  MetalsimCommandBuffer* buffer = first_of(queue);
  if (!buffer) return false;
  if (call_scheduled_handlers(buffer, lock)) return true;
  BufferState& state = *buffer->_state;
  if (!ready(state)) return false;
  bool invalid = !state.failure.empty();
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  queue.busy = true;
  run_commands(state, lock);
  queue.busy = false;
  std::vector<Command> done;
  if (state.next == state.commands.size()) {
    set_result(state, invalid);
    done.swap(state.commands);
    queue.pending.pop_front();
    queue.finished.push_back(buffer);
    expect_no_more(buffer);
  }
  schedule().notify();
  lock.unlock();
  done.clear();  // lets go of the resources, which may call a user's deallocator
  [pool drain];
  return true;
}
static bool step(MetalsimCommandQueue* queue) {
  [queue retain];
  bool stepped = run_first(*queue->_state);
  while (call_completed_handlers(*queue->_state)) stepped = true;
  [queue release];
  return stepped;
}

// ---- All queues.

static std::vector<MetalsimCommandQueue*> other_queues(MetalsimCommandQueue* queue) {
  std::vector<MetalsimCommandQueue*> others;
  ScheduleLock lock(schedule().mutex);
  for (MetalsimCommandQueue* each : schedule().queues)
    if (each != queue && (!each->_state->pending.empty() || !each->_state->finished.empty()))
      others.push_back([each retain]);
  return others;
}
static bool waits_for_event(MetalsimCommandQueue* queue) {
  ScheduleLock lock(schedule().mutex);
  MetalsimCommandBuffer* first = first_of(*queue->_state);
  return first && !ready(*first->_state);
}
static bool step_for(MetalsimCommandQueue* queue) {
  if (queue && step(queue)) return true;
  if (queue && !waits_for_event(queue)) return false;
  bool stepped = false;
  for (MetalsimCommandQueue* other : other_queues(queue)) {
    stepped = stepped || step(other);
    [other release];
  }
  return stepped;
}

static bool holds(const Condition& condition, uint64_t* changes) {
  ScheduleLock lock(schedule().mutex);
  *changes = schedule().changes;
  return condition();
}
template <class Step>
static bool repeat_until(const Condition& condition, Step step, Deadline deadline) {
  uint64_t seen;
  while (!holds(condition, &seen)) {
    if (step()) continue;
    ScheduleLock lock(schedule().mutex);
    auto other = [&] { return schedule().changes != seen; };
    if (deadline == Deadline::max())
      schedule().changed.wait(lock, other);
    else if (!schedule().changed.wait_until(lock, deadline, other))
      return condition();
  }
  return true;
}
bool work_until(const Condition& condition, MetalsimCommandQueue* queue, Deadline deadline) {
  return repeat_until(condition, [&] { return step_for(queue); }, deadline);
}
void work_while_possible(const Condition& condition, MetalsimCommandQueue* queue) {
  uint64_t seen;
  while (!holds(condition, &seen) && step_for(queue)) continue;
}
void work_until_scheduled(MetalsimCommandBuffer* buffer) {
  ScheduleLock lock(schedule().mutex);
  auto& pending = buffer->_state->queue->_state->pending;
  auto scheduled = [&] { return buffer->_state->status >= MTLCommandBufferStatusScheduled; };
  while (!scheduled()) {
    // The first that is not scheduled yet: those before the buffer come before it.
    auto next = std::find_if(pending.begin(), pending.end(), [](MetalsimCommandBuffer* each) {
      return each->_state->status < MTLCommandBufferStatusScheduled;
    });
    if ((*next)->_state->status == MTLCommandBufferStatusCommitted)
      call_scheduled_handlers(*next, lock);
    else
      schedule().changed.wait(lock);
  }
}

// ---- What is expected.

namespace {
struct Expected {
  id key;
  Condition condition;
  MetalsimCommandQueue* queue;
  Deadline due;
};
}  // namespace
static std::vector<Expected>& expectations() {
  static auto* all = new std::vector<Expected>;
  return *all;
}
constexpr auto kPatience = std::chrono::seconds(2);

// One step of what is due by then; whether there was one to do.
static bool work_on_expected(Deadline due) {
  std::vector<MetalsimCommandQueue*> queues;
  {
    ScheduleLock lock(schedule().mutex);
    for (const Expected& each : expectations())
      if (each.due <= due && !each.condition()) queues.push_back([each.queue retain]);
  }
  bool stepped = false;
  for (MetalsimCommandQueue* queue : queues) {
    stepped = stepped || step_for(queue);
    [queue release];
  }
  return stepped;
}
bool work_on_expected_until(const Condition& condition, Deadline deadline) {
  return repeat_until(condition, [] { return work_on_expected(Deadline::max()); }, deadline);
}
// What is due stays so until it's done, and is tried again whenever something changes.
[[noreturn]] static void watch() {
  ScheduleLock lock(schedule().mutex);
  while (true) {
    uint64_t seen = schedule().changes;
    auto next = Deadline::max(), time = std::chrono::steady_clock::now();
    for (const Expected& each : expectations())
      if (each.due > time) next = std::min(next, each.due);
    lock.unlock();
    while (work_on_expected(time)) continue;
    lock.lock();
    auto changed = [&] { return schedule().changes != seen; };
    if (next == Deadline::max())
      schedule().changed.wait(lock, changed);
    else
      schedule().changed.wait_until(lock, next, changed);
  }
}
void expect(id key, const Condition& condition, MetalsimCommandQueue* queue) {
  static std::once_flag started;
  std::call_once(started, [] { std::thread(watch).detach(); });
  ScheduleLock lock(schedule().mutex);
  expectations().push_back({key, condition, queue, std::chrono::steady_clock::now() + kPatience});
  schedule().notify();
}
void expect_no_more(id key) {
  std::erase_if(expectations(), [&](const Expected& each) { return each.key == key; });
}

}  // namespace metalsim
