// Serial queues: a ticket for each block, served in order; dispatch_async's blocks run on threads of their own. And
// semaphores, with which a program may wait for a handler.
#import <Foundation/Foundation.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "schedule.h"

namespace {
struct Turns {
  std::string label;
  std::mutex mutex;
  std::condition_variable changed;
  unsigned long next = 0, serving = 0;
  std::thread::id runner;
};
}  // namespace

@interface MetalsimQueue : NSObject <OS_dispatch_queue> {
 @public
  Turns* _turns;
}
@end
@implementation MetalsimQueue
- (void)dealloc {
  delete _turns;
  [super dealloc];
}
@end

@interface MetalsimSemaphore : NSObject <OS_dispatch_semaphore> {
 @public
  intptr_t _value;
}
@end
@implementation MetalsimSemaphore
@end

static Turns& turns_of(dispatch_queue_t queue) { return *((MetalsimQueue*)queue)->_turns; }

static unsigned long take_ticket(Turns& turns) {
  std::lock_guard<std::mutex> lock(turns.mutex);
  return turns.next++;
}
// An exception that leaves the block ends the process, as on macOS.
static void run_in_turn(Turns& turns, unsigned long ticket, dispatch_block_t block) noexcept {
  {
    std::unique_lock<std::mutex> lock(turns.mutex);
    turns.changed.wait(lock, [&] { return turns.serving == ticket; });
    turns.runner = std::this_thread::get_id();
  }
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  block();
  [pool drain];
  std::lock_guard<std::mutex> lock(turns.mutex);
  turns.runner = {};
  turns.serving++;
  turns.changed.notify_all();
}

extern "C" {

dispatch_queue_t dispatch_queue_create(const char* label, void*) {
  MetalsimQueue* queue = [MetalsimQueue alloc];
  queue->_turns = new Turns;
  queue->_turns->label = label ? label : "";
  return queue;
}
void dispatch_sync(dispatch_queue_t queue, __attribute__((noescape)) dispatch_block_t block) {
  Turns& turns = turns_of(queue);
  bool deadlock;
  {
    std::lock_guard<std::mutex> lock(turns.mutex);
    deadlock = turns.runner == std::this_thread::get_id();
  }
  if (deadlock) {
    fprintf(stderr, "metalsim: dispatch_sync on queue '%s' from a block that runs on it: on macOS this is a deadlock\n",
            turns.label.c_str());
    abort();
  }
  run_in_turn(turns, take_ticket(turns), block);
}
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_block_t kept = (dispatch_block_t)_Block_copy((const void*)block);
  [queue retain];
  unsigned long ticket = take_ticket(turns_of(queue));
  std::thread([=] {
    run_in_turn(turns_of(queue), ticket, kept);
    _Block_release((const void*)kept);
    [queue release];
  }).detach();
}
void dispatch_once(dispatch_once_t* done, __attribute__((noescape)) dispatch_block_t block) {
  static std::recursive_mutex* mutex = new std::recursive_mutex;
  std::lock_guard<std::recursive_mutex> lock(*mutex);
  if (*done == -1) return;
  block();
  *done = -1;
}

void dispatch_retain(NSObject* object) { [object retain]; }
void dispatch_release(NSObject* object) { [object release]; }

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds) {
  if (when == DISPATCH_TIME_FOREVER) return when;
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return (when ? when : (dispatch_time_t)std::chrono::nanoseconds(now).count()) + (dispatch_time_t)nanoseconds;
}
dispatch_semaphore_t dispatch_semaphore_create(intptr_t value) {
  MetalsimSemaphore* semaphore = [MetalsimSemaphore alloc];
  semaphore->_value = value;
  return semaphore;
}
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore) {
  metalsim::ScheduleLock lock(metalsim::schedule().mutex);
  ((MetalsimSemaphore*)semaphore)->_value++;
  metalsim::schedule().notify();
  return 0;
}
// The signal may be a handler's business.
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout) {
  auto* mine = (MetalsimSemaphore*)semaphore;
  auto deadline = metalsim::Deadline::max();
  if (timeout != DISPATCH_TIME_FOREVER)
    deadline = metalsim::Deadline(std::chrono::nanoseconds(timeout ? timeout : dispatch_time(DISPATCH_TIME_NOW, 0)));
  auto take = [&] {
    if (mine->_value <= 0) return false;
    mine->_value--;
    return true;
  };
  return metalsim::work_on_expected_until(take, deadline) ? 0 : 1;
}
}
