// Shared events, and those who ask to be told of a value.
#include <algorithm>

#include "schedule.h"

using namespace metalsim;

struct Listening {
  dispatch_queue_t queue;  // retained
  uint64_t value;
  MTLSharedEventNotificationBlock block;  // copied
};
struct EventState {
  uint64_t value = 0;
  std::vector<Listening> listening;
};

static void forget(const Listening& each) {
  _Block_release((const void*)each.block);
  [each.queue release];
}

@implementation MTLSharedEventListener
- (instancetype)init {
  _queue = dispatch_queue_create("shared event listener", nullptr);
  return self;
}
- (instancetype)initWithDispatchQueue:(dispatch_queue_t)queue {
  _queue = [queue retain];
  return self;
}
- (dispatch_queue_t)dispatchQueue {
  return _queue;
}
- (void)dealloc {
  [_queue release];
  [super dealloc];
}
@end

@implementation MetalsimSharedEvent
- (instancetype)init {
  _state = new EventState;
  return self;
}
- (void)dealloc {
  {
    ScheduleLock lock(schedule().mutex);
    expect_no_more(self);
  }
  for (const Listening& each : _state->listening) forget(each);
  delete _state;
  [_label release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSString*)label {
  return _label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_label release];
  _label = label;
}
- (uint64_t)value {
  return _state->value;
}

// One who polls is waiting: work is done until the value changes.
- (uint64_t)signaledValue {
  std::optional<uint64_t> before;
  work_while_possible(
      [&] {
        if (!before) before = _state->value;
        return _state->value != *before;
      },
      nil);
  ScheduleLock lock(schedule().mutex);
  return _state->value;
}
- (void)setSignaledValue:(uint64_t)value {
  std::vector<Listening> reached;
  {
    ScheduleLock lock(schedule().mutex);
    _state->value = value;
    auto is_reached = [&](const Listening& each) { return each.value <= value; };
    std::copy_if(_state->listening.begin(), _state->listening.end(), std::back_inserter(reached), is_reached);
    std::erase_if(_state->listening, is_reached);
    if (_state->listening.empty()) expect_no_more(self);
    schedule().notify();
  }
  for (const Listening& each : reached) {
    [self tell:each value:value];
    forget(each);
  }
}
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds {
  // More than a year is for ever, and beyond what the clock can add.
  bool forever = milliseconds >= 1ull << 35;
  auto deadline =
      forever ? Deadline::max() : std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  return work_until([&] { return _state->value >= value; }, nil, deadline);
}
- (void)tell:(const Listening&)one value:(uint64_t)value {
  MTLSharedEventNotificationBlock block = one.block;
  dispatch_async(one.queue, ^{
    block(self, value);
  });
}
- (void)notifyListener:(MTLSharedEventListener*)listener
               atValue:(uint64_t)value
                 block:(MTLSharedEventNotificationBlock)block {
  Listening one = {
      [listener.dispatchQueue retain], value, (MTLSharedEventNotificationBlock)_Block_copy((const void*)block)};
  uint64_t reached;
  {
    ScheduleLock lock(schedule().mutex);
    reached = _state->value;
    if (reached < value) _state->listening.push_back(one);
  }
  if (reached < value) return expect(self, [self, value] { return _state->value >= value; }, nil);
  [self tell:one value:reached];
  forget(one);
}
@end
