// Who waits for what: queues for events, programs for command buffers, handlers, events and listeners.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "harness.h"

static id<MTLCommandQueue> one, two;
static id<MTLComputePipelineState> add_one, twice;
static id<MTLBuffer> buffer;
static id<MTLSharedEvent> event;
static int value() { return *(const int*)[buffer contents]; }

static id<MTLCommandBuffer> committed(id<MTLCommandQueue> queue, id<MTLComputePipelineState> pipeline) {
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  encode(commands, pipeline, buffer, 8);
  [commands commit];
  return commands;
}

CASE(two_queues_take_turns) {
  id<MTLCommandBuffer> a = [one commandBuffer], b = [two commandBuffer];
  encode(a, add_one, buffer, 8);
  [a encodeSignalEvent:event value:1];
  [a encodeWaitForEvent:event value:2];
  encode(a, add_one, buffer, 8);
  [a encodeSignalEvent:event value:3];
  [b encodeWaitForEvent:event value:1];
  encode(b, twice, buffer, 8);
  [b encodeSignalEvent:event value:2];
  [b encodeWaitForEvent:event value:3];
  encode(b, twice, buffer, 8);
  [b commit];
  [a commit];
  [b waitUntilCompleted];
  CHECK(value() == 6 && event.signaledValue == 3);  // ((0 + 1) * 2 + 1) * 2
}
CASE(handlers_of_a_queue_that_helps) {
  id<MTLCommandBuffer> a = [one commandBuffer], b = [two commandBuffer];
  static std::atomic<int> calls;
  [b addCompletedHandler:^(id<MTLCommandBuffer>) {
    calls++;
  }];
  [b encodeSignalEvent:event value:1];
  [b commit];
  [a encodeWaitForEvent:event value:1];
  [a commit];
  [a waitUntilCompleted];
  [b waitUntilCompleted];
  CHECK(calls == 1);
}
CASE(late_work_of_other_queues_is_left_alone) {
  committed(two, add_one);
  [committed(one, twice) waitUntilCompleted];
  CHECK(value() == 0);
  // Nor is it run where this queue can't go on but other work wouldn't help.
  id<MTLCommandBuffer> first = [one commandBuffer];
  [first enqueue];
  id<MTLCommandBuffer> second = committed(one, twice);
  CHECK(second.status == MTLCommandBufferStatusCommitted && value() == 0);
  [first commit];
  [second waitUntilCompleted];
  CHECK(value() == 0);
}
CASE(the_processor_signals) {
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a encodeWaitForEvent:event value:5];
  encode(a, add_one, buffer, 8);
  [a commit];
  CHECK(a.status < MTLCommandBufferStatusCompleted && value() == 0);  // looking doesn't wait
  std::thread other([] {
    @autoreleasepool {
      event.signaledValue = 5;
    }
  });
  [a waitUntilCompleted];
  other.join();
  CHECK(value() == 1);
}
CASE(the_processor_waits_for_an_event) {
  id<MTLCommandBuffer> a = [one commandBuffer];
  encode(a, add_one, buffer, 8);
  [a encodeSignalEvent:event value:4];
  [a commit];
  CHECK([event waitUntilSignaledValue:3 timeoutMS:~0ull] && value() == 1);
  CHECK(![event waitUntilSignaledValue:5 timeoutMS:1] && event.signaledValue == 4);
}
CASE(the_processor_polls_an_event) {
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a encodeSignalEvent:event value:1];
  [a encodeSignalEvent:event value:2];
  [a commit];
  while (event.signaledValue < 2) std::this_thread::yield();
}
CASE(listeners_are_told) {
  MTLSharedEventListener* listener = [[MTLSharedEventListener alloc] init];
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  static std::atomic<int> sum;
  for (uint64_t at : {2, 3, 9})
    [event notifyListener:listener
                  atValue:at
                    block:^(id<MTLSharedEvent> from, uint64_t reached) {
                      CHECK(from == event && reached >= at);
                      sum += (int)at;
                      dispatch_semaphore_signal(told);
                    }];
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a encodeSignalEvent:event value:3];
  [a commit];
  for (int i = 0; i < 2; i++) dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  CHECK(sum == 5);
  [event notifyListener:listener
                atValue:1
                  block:^(id<MTLSharedEvent>, uint64_t) {
                    sum += 100;
                    dispatch_semaphore_signal(told);
                  }];
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  CHECK(sum == 105);
  dispatch_queue_t queue = dispatch_queue_create("mine", DISPATCH_QUEUE_SERIAL);
  CHECK([[MTLSharedEventListener alloc] initWithDispatchQueue:queue].dispatchQueue == queue);
}

CASE(a_handler_is_awaited_by_a_semaphore) {
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a addCompletedHandler:^(id<MTLCommandBuffer>) {
    dispatch_semaphore_signal(done);
  }];
  encode(a, add_one, buffer, 8);
  [a commit];
  CHECK(dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER) == 0 && value() == 1);
}
CASE(a_handler_is_awaited_by_other_means) {
  static std::mutex mutex;
  static std::condition_variable changed;
  static bool done;
  committed(one, add_one);
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a addCompletedHandler:^(id<MTLCommandBuffer>) {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    changed.notify_all();
  }];
  encode(a, twice, buffer, 8);
  [a commit];
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [] { return done; });
  CHECK(value() == 2);
}
CASE(waiting_includes_the_handlers) {
  static std::atomic<int> calls;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([] {
      for (int i = 0; i < 15; i++) @autoreleasepool {
          id<MTLCommandBuffer> a = [one commandBuffer];
          __block bool mine = false;
          [a addCompletedHandler:^(id<MTLCommandBuffer>) {
            std::this_thread::yield();
            calls++;
            mine = true;
          }];
          encode(a, add_one, buffer, 8);
          [a commit];
          [a waitUntilCompleted];
          CHECK(mine);
        }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(value() == 60 && calls == 60);
}
CASE(handlers_of_a_queue_come_in_order) {
  static std::vector<int> order;
  id<MTLCommandBuffer> last = nil;
  for (int i = 0; i < 10; i++) {
    last = [one commandBuffer];
    [last addCompletedHandler:^(id<MTLCommandBuffer>) {
      order.push_back(i);
    }];
    [last commit];
  }
  [last waitUntilCompleted];
  CHECK(order.size() == 10);
  for (int i = 0; i < 10; i++) CHECK(order[i] == i);
}
CASE(handlers_may_commit_and_wait) {
  static bool handled;
  id<MTLCommandBuffer> a = [one commandBuffer];
  [a addCompletedHandler:^(id<MTLCommandBuffer> mine) {
    id<MTLCommandBuffer> b = [one commandBuffer];
    [b addCompletedHandler:^(id<MTLCommandBuffer>) {
      handled = true;
    }];
    encode(b, add_one, buffer, 8);
    [b commit];
    [b waitUntilCompleted];
    CHECK(handled && value() == 1);
    [mine waitUntilCompleted];  // itself
  }];
  [a commit];
  [a waitUntilCompleted];
  CHECK(handled);
}
CASE(late_work_is_not_run_by_scheduling_it) {
  static int scheduled;
  for (int i = 0; i < 2; i++) {
    id<MTLCommandBuffer> a = [one commandBuffer];
    [a addScheduledHandler:^(id<MTLCommandBuffer>) {
      CHECK(scheduled++ == i);
    }];
    encode(a, add_one, buffer, 8);
    [a commit];
    if (i) [a waitUntilScheduled];
  }
  CHECK(scheduled == 2 && value() == 0);
  [committed(one, add_one) waitUntilCompleted];
  CHECK(scheduled == 2 && value() == 3);
}
CASE(deallocators_run_without_locks) {
  void* memory = nullptr;
  CHECK(!posix_memalign(&memory, 16384, 16384));
  memset(memory, 0, 16384);
  static std::atomic<bool> gone;
  id<MTLCommandBuffer> a = [one commandBuffer];
  @autoreleasepool {
    id<MTLBuffer> borrowed = [device() newBufferWithBytesNoCopy:memory
                                                         length:16384
                                                        options:0
                                                    deallocator:^(void*, NSUInteger) {
                                                      std::thread([] {
                                                        @autoreleasepool {
                                                          [committed(one, add_one) waitUntilCompleted];
                                                        }
                                                      }).join();
                                                      gone = true;
                                                    }];
    encode(a, add_one, borrowed, 8);
    [(id)borrowed release];
  }
  [a commit];
  [a waitUntilCompleted];
  while (!gone) std::this_thread::yield();
  CHECK(value() == 1);
}
CASE(a_fault_still_signals) {
  id<MTLCommandBuffer> a = [one commandBuffer], b = [two commandBuffer];
  encode(a, new_pipeline_of(@"beyond"), buffer, 8);
  [a encodeWaitForEvent:event value:9];
  [a encodeSignalEvent:event value:1];
  [a commit];
  [b encodeWaitForEvent:event value:1];
  encode(b, add_one, buffer, 8);
  [b commit];
  [b waitUntilCompleted];
  [a waitUntilCompleted];  // it has signalled, but may not have ended yet
  CHECK(a.status == MTLCommandBufferStatusError && b.status == MTLCommandBufferStatusCompleted);
}

CASE(nothing_is_left) {
  id<MTLComputePipelineState> beyond = new_pipeline_of(@"beyond");
  auto all = [&] {
    @autoreleasepool {
      dispatch_queue_t queue = dispatch_queue_create("mine", DISPATCH_QUEUE_SERIAL);
      MTLSharedEventListener* listener = [[MTLSharedEventListener alloc] initWithDispatchQueue:queue];
      id<MTLSharedEvent> own = [device() newSharedEvent];
      dispatch_semaphore_t told = dispatch_semaphore_create(0);
      for (uint64_t at : {0, 1, 100})  // reached already, later and never
        [own notifyListener:listener
                    atValue:at
                      block:^(id<MTLSharedEvent>, uint64_t) {
                        dispatch_semaphore_signal(told);
                      }];
      id<MTLCommandBuffer> a = [one commandBuffer], b = [two commandBuffer];
      for (id<MTLCommandBuffer> each : {a, b})
        [each addCompletedHandler:^(id<MTLCommandBuffer>) {
          dispatch_semaphore_signal(told);
        }];
      [a encodeWaitForEvent:own value:1];
      encode(a, beyond, buffer, 8);
      [b encodeSignalEvent:own value:1];
      [a commit];
      [b commit];
      for (int i = 0; i < 4; i++) dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
      [a waitUntilCompleted];
      [(id)own release];
      [listener release];
      dispatch_release(told);
      dispatch_release(queue);
    }
  };
  // Threads may still be about to let go.
  auto settled = [] {
    long last = -1, alive = metalsim_live_objects(NULL);
    for (int quiet = 0; quiet < 50; alive = metalsim_live_objects(NULL)) {
      quiet = alive == last ? quiet + 1 : 0;
      last = alive;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return alive;
  };
  all();
  long before = settled();
  for (int i = 0; i < 3; i++) all();
  CHECK(settled() == before && metalsim_live_objects("MetalsimSharedEvent") == 1);  // `event`
  for (const char* kind : {"MetalsimCommandBuffer", "MetalsimQueue", "MetalsimSemaphore", "MTLSharedEventListener"})
    CHECK(metalsim_live_objects(kind) == 0);
}

int main(int, char** arguments) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  auto found = cases().find(arguments[1]);
  if (found == cases().end()) return 3;
  @autoreleasepool {
    one = [device() newCommandQueue];
    two = [device() newCommandQueue];
    add_one = new_pipeline_of(@"add_one");
    twice = new_pipeline_of(@"twice");
    buffer = [device() newBufferWithLength:32 options:0];
    event = [device() newSharedEvent];
    found->second();
  }
  puts("passed");
}
