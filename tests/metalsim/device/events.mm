// An event is the command buffer that was closed when the event was recorded.
#include <ATen/mps/MPSStream.h>

#include <mutex>
#include <unordered_map>

#include "device.h"

namespace metalsim {
namespace {

struct Event {
  bool timed = false;
  id<MTLCommandBuffer> mark = nil;  // retained
};

std::mutex& events_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::unordered_map<uint32_t, Event>& events() {
  static auto* all = new std::unordered_map<uint32_t, Event>;
  return *all;
}
// Retained, since another thread may record or release the event meanwhile. nil where it was never recorded.
id<MTLCommandBuffer> mark_of(uint32_t number, bool need_time = false) {
  std::lock_guard<std::mutex> lock(events_mutex());
  auto found = events().find(number);
  TORCH_CHECK(found != events().end(), "invalid event ID: ", number);
  TORCH_CHECK(!need_time || found->second.timed, "Event was not created with argument 'enable_timing=True'");
  return [(id)found->second.mark retain];
}
void set_mark(uint32_t number, id<MTLCommandBuffer> mark) {
  std::lock_guard<std::mutex> lock(events_mutex());
  auto found = events().find(number);
  TORCH_CHECK(found != events().end(), "invalid event ID: ", number);
  [(id)found->second.mark release];
  found->second.mark = [(id)mark retain];
}

}  // namespace

uint32_t acquire_event(bool timed) {
  static uint32_t last = 0;
  std::lock_guard<std::mutex> lock(events_mutex());
  events()[++last].timed = timed;
  return last;
}
void release_event(uint32_t number) {
  std::lock_guard<std::mutex> lock(events_mutex());
  auto found = events().find(number);
  if (found == events().end()) return;
  [(id)found->second.mark release];
  events().erase(found);
}
void record_event(uint32_t number) {
  at::mps::MPSStream* stream = at::mps::getDefaultMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    stream->endKernelCoalescing();
    id<MTLCommandBuffer> mark = [(id)stream->commandBuffer() retain];
    stream->synchronize(at::mps::SyncType::COMMIT);
    set_mark(number, mark);
    [(id)mark release];
  });
}
// There is one stream, and it keeps its order.
void wait_for_event(uint32_t number) { [(id)mark_of(number) release]; }
void synchronize_event(uint32_t number) {
  id<MTLCommandBuffer> mark = mark_of(number);
  [mark waitUntilCompleted];
  [(id)mark release];
}
bool query_event(uint32_t number) {
  id<MTLCommandBuffer> mark = mark_of(number);
  bool done = !mark || mark.status >= MTLCommandBufferStatusCompleted;
  [(id)mark release];
  return done;
}
double elapsed_milliseconds(uint32_t start, uint32_t end) {
  id<MTLCommandBuffer> first = mark_of(start, true), last = mark_of(end, true);
  TORCH_CHECK(first && last, "both events must be recorded before the elapsed time is asked for");
  [last waitUntilCompleted];
  double milliseconds = (last.GPUEndTime - first.GPUEndTime) * 1e3;
  [(id)first release];
  [(id)last release];
  return milliseconds;
}

}  // namespace metalsim
