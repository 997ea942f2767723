// When encoded work runs. Work doesn't run by itself (unless asked for, see Settings): whoever waits moves it on, a
// step at a time, and nobody holds a lock while a kernel or a user's block runs.
#pragma once
#include <chrono>
#include <deque>
#include <thread>

#include "internal.h"

namespace metalsim {

using Deadline = std::chrono::steady_clock::time_point;

// What somebody waits for; called with the schedule's lock held.
using Condition = std::function<bool()>;

// One lock guards the states of all queues, command buffers and events; `changed` tells that one of them changed.
struct Schedule {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t changes = 0;
  std::vector<MetalsimCommandQueue*> queues;  // all that live
  void notify() {
    changes++;
    changed.notify_all();
  }
};
Schedule& schedule();
using ScheduleLock = std::unique_lock<std::mutex>;

// Runs work until the condition holds; where no work can run, waits for other threads. Work of `queue` alone, unless it
// waits for an event, which other queues' work may signal; of all queues if nil. Returns whether the condition holds.
bool work_until(const Condition& condition, MetalsimCommandQueue* queue, Deadline deadline = Deadline::max());
// The same for those who only look: never waits.
void work_while_possible(const Condition& condition, MetalsimCommandQueue* queue);
// Marks what is committed as scheduled, up to this buffer.
void work_until_scheduled(MetalsimCommandBuffer* buffer);

// Someone may be waiting by means that we don't see (a completed handler, an event's listener) for the condition, and
// would wait for ever if its work stayed undone: so it's done after a while, or when the program waits for a semaphore.
// `key` is the object that it's about.
void expect(id key, const Condition& condition, MetalsimCommandQueue* queue);
void expect_no_more(id key);  // with the schedule's lock held
// As work_until, of what is expected.
bool work_on_expected_until(const Condition& condition, Deadline deadline);

}  // namespace metalsim

struct BufferState {
  MetalsimCommandQueue* queue;  // retained
  bool retained = true;         // keeps what is encoded alive
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  bool encoding = false;
  std::vector<metalsim::Command> commands;
  size_t next = 0;  // the command that runs next
  std::vector<MTLCommandBufferHandler> scheduled, completed;
  std::thread::id handler;  // calls the completed handlers
  bool handled = false;     // they have returned
  std::string failure;
  double start = 0, end = 0;
  NSError* error = nil;
  NSString* label = nil;
};
struct QueueState {
  std::deque<MetalsimCommandBuffer*> pending;   // enqueued, in order, each retained
  bool busy = false;                            // a thread runs the first's commands
  std::deque<MetalsimCommandBuffer*> finished;  // whose completed handlers are due, each retained
  std::thread::id handler;                      // runs them
  NSUInteger open = 0, most_open;               // command buffers that are not committed, and how many may be
  NSString* label = nil;
};
