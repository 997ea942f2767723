// Command queues and command buffers: what was encoded runs in the queue's order, as late as is allowed or, if asked
// for, on a thread from commit on.
#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "internal.h"

using namespace metalsim;

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct BufferState {
  MetalsimCommandQueue* queue;  // retained
  bool retained = true;         // keeps what is encoded alive
  std::mutex mutex;
  std::condition_variable changed;
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  bool encoding = false;
  std::vector<Command> commands;
  std::vector<MTLCommandBufferHandler> scheduled, completed;
  std::string failure;
  double start = 0, end = 0;
  NSError* error = nil;
  NSString* label = nil;
};
struct QueueState {
  std::mutex mutex;
  std::deque<MetalsimCommandBuffer*> pending;  // enqueued, in order, each retained
  std::recursive_mutex running;                // one at a time
  NSString* label = nil;
};

// All queues that live, for those who wait for an event that another queue's work signals.
static std::mutex& queues_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
static std::vector<MetalsimCommandQueue*>& queues() {
  static auto* all = new std::vector<MetalsimCommandQueue*>;
  return *all;
}

@implementation MetalsimCommandQueue
- (instancetype)init {
  _state = new QueueState;
  std::lock_guard<std::mutex> lock(queues_mutex());
  queues().push_back(self);
  return self;
}
- (void)dealloc {
  {
    std::lock_guard<std::mutex> lock(queues_mutex());
    std::erase(queues(), self);
  }
  [_state->label release];
  delete _state;
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSString*)label {
  return _state->label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_state->label release];
  _state->label = label;
}
- (MetalsimCommandBuffer*)bufferRetaining:(BOOL)retained {
  MetalsimCommandBuffer* buffer = [MetalsimCommandBuffer alloc];
  buffer->_state = new BufferState;
  buffer->_state->queue = [self retain];
  buffer->_state->retained = retained;
  return [buffer autorelease];
}
- (id<MTLCommandBuffer>)commandBuffer {
  return [self bufferRetaining:YES];
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  return [self bufferRetaining:NO];
}
- (void)add:(MetalsimCommandBuffer*)buffer {
  std::lock_guard<std::mutex> lock(_state->mutex);
  _state->pending.push_back([buffer retain]);
}
- (MetalsimCommandBuffer*)first {
  std::lock_guard<std::mutex> lock(_state->mutex);
  return _state->pending.empty() ? nil : [_state->pending.front() retain];
}
- (void)dropFirst {
  std::lock_guard<std::mutex> lock(_state->mutex);
  [_state->pending.front() release];
  _state->pending.pop_front();
}
// Runs what is pending, in order, up to and with `last` (nil: all that is committed).
- (void)completeThrough:(MetalsimCommandBuffer*)last {
  while (true) {
    MetalsimCommandBuffer* next;
    {
      std::lock_guard<std::recursive_mutex> running(_state->running);
      if (last && last->_state->status >= MTLCommandBufferStatusCompleted) return;
      next = [self first];
      if (!next) return;
      if (!last && next->_state->status < MTLCommandBufferStatusCommitted) {
        [next release];
        return;
      }
      [next execute];
      [self dropFirst];
    }
    // No lock is held while a user's block runs.
    [next runHandlers];
    BOOL done = next == last;
    [next release];
    if (done) return;
  }
}
@end

// ---- Command buffers.

@implementation MetalsimCommandBuffer
- (void)dealloc {
  for (auto* handlers : {&_state->scheduled, &_state->completed})
    for (MTLCommandBufferHandler block : *handlers) _Block_release((const void*)block);
  [_state->error release];
  [_state->label release];
  MetalsimCommandQueue* queue = _state->queue;
  delete _state;
  [queue release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (id<MTLCommandQueue>)commandQueue {
  return _state->queue;
}
- (BOOL)retainedReferences {
  return _state->retained;
}
- (NSString*)label {
  return _state->label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_state->label release];
  _state->label = label;
}
- (void)pushDebugGroup:(NSString*)name {
}
- (void)popDebugGroup {
}

// ---- Encoding.

- (void)fail:(const std::string&)message {
  report_misuse(message);
  std::lock_guard<std::mutex> lock(_state->mutex);
  if (_state->failure.empty()) _state->failure = message;
}
// Whether an encoder may be made, or a command encoded outside one.
- (BOOL)open:(const char*)selector {
  std::string prefix = std::string("-[MTLCommandBuffer ") + selector + "]: ";
  if (_state->status >= MTLCommandBufferStatusCommitted) {
    [self fail:prefix + "the command buffer is committed already"];
    return NO;
  }
  if (!_state->encoding) return YES;
  [self fail:prefix + "the encoder before has not ended"];
  return NO;
}
- (void)encode:(const Command&)command {
  std::lock_guard<std::mutex> lock(_state->mutex);
  _state->commands.push_back(command);
}
- (void)encoderEnded {
  _state->encoding = false;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
// Dispatches run one after the other in both types, which a concurrent encoder allows.
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (![self open:"computeCommandEncoder"]) return nil;
  _state->encoding = true;
  return [[[MetalsimComputeEncoder alloc] initWithBuffer:self] autorelease];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  if (![self open:"blitCommandEncoder"]) return nil;
  _state->encoding = true;
  return [[[MetalsimBlitEncoder alloc] initWithBuffer:self] autorelease];
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self open:"encodeSignalEvent:value:"]) return;
  Kept kept((id)event);
  [self encode:[kept, value]() -> std::optional<std::string> {
    ((id<MTLSharedEvent>)kept.get()).signaledValue = value;
    return std::nullopt;
  }];
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self open:"encodeWaitForEvent:value:"]) return;
  Kept kept((id)event);
  MetalsimCommandQueue* mine = _state->queue;
  [self encode:[kept, value, mine]() -> std::optional<std::string> {
    id<MTLSharedEvent> shared = (id<MTLSharedEvent>)kept.get();
    if (shared.signaledValue < value) run_other_queues(mine);
    [shared waitUntilSignaledValue:value timeoutMS:UINT64_MAX];
    return std::nullopt;
  }];
}
// Nobody may wait for the work that signals an event but the one who waits for the event.
static void run_other_queues(MetalsimCommandQueue* mine) {
  std::vector<MetalsimCommandQueue*> others;
  {
    std::lock_guard<std::mutex> lock(queues_mutex());
    for (MetalsimCommandQueue* queue : queues())
      if (queue != mine) others.push_back([queue retain]);
  }
  for (MetalsimCommandQueue* queue : others) {
    [queue completeThrough:nil];
    [queue release];
  }
}

// ---- Running.

- (void)enqueue {
  {
    std::lock_guard<std::mutex> lock(_state->mutex);
    if (_state->status != MTLCommandBufferStatusNotEnqueued) return;
    _state->status = MTLCommandBufferStatusEnqueued;
  }
  [_state->queue add:self];
}
- (void)commit {
  if (_state->status >= MTLCommandBufferStatusCommitted) {
    [self fail:"-[MTLCommandBuffer commit]: committed twice"];
    return;
  }
  if (_state->encoding) [self fail:"-[MTLCommandBuffer commit]: an encoder has not ended"];
  [self enqueue];
  {
    std::lock_guard<std::mutex> lock(_state->mutex);
    _state->status = MTLCommandBufferStatusCommitted;
    _state->changed.notify_all();
  }
  if (!settings().eager) return;
  [self retain];
  std::thread([self] {
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    [_state->queue completeThrough:self];
    [pool drain];
    [self release];
  }).detach();
}
- (void)execute {
  std::vector<Command> commands;
  {
    // One enqueued before others holds them up until it is committed.
    std::unique_lock<std::mutex> lock(_state->mutex);
    _state->changed.wait(lock, [&] { return _state->status >= MTLCommandBufferStatusCommitted; });
    _state->status = MTLCommandBufferStatusScheduled;
    commands.swap(_state->commands);
  }
  _state->start = now();
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  NSInteger code = _state->failure.empty() ? MTLCommandBufferErrorPageFault : MTLCommandBufferErrorInvalidResource;
  for (const Command& command : commands) {
    if (!_state->failure.empty()) break;
    if (auto failure = command()) _state->failure = *failure;
  }
  commands.clear();  // lets go of the resources
  _state->end = now();
  std::lock_guard<std::mutex> lock(_state->mutex);
  bool failed = !_state->failure.empty();
  if (failed) _state->error = [error_with(MTLCommandBufferErrorDomain, code, _state->failure) retain];
  _state->status = failed ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
  _state->changed.notify_all();
  [pool drain];
}
- (void)runHandlers {
  for (auto* handlers : {&_state->scheduled, &_state->completed}) {
    std::vector<MTLCommandBufferHandler> blocks;
    {
      std::lock_guard<std::mutex> lock(_state->mutex);
      blocks.swap(*handlers);
    }
    for (MTLCommandBufferHandler block : blocks) {
      block(self);
      _Block_release((const void*)block);
    }
  }
}
- (void)add:(MTLCommandBufferHandler)block to:(std::vector<MTLCommandBufferHandler>*)handlers {
  if (_state->status >= MTLCommandBufferStatusCommitted) {
    [self fail:"-[MTLCommandBuffer add...Handler:]: the command buffer is committed already"];
    return;
  }
  std::lock_guard<std::mutex> lock(_state->mutex);
  handlers->push_back((MTLCommandBufferHandler)_Block_copy((const void*)block));
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)block {
  [self add:block to:&_state->scheduled];
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  [self add:block to:&_state->completed];
}

// ---- Looking and waiting: here late work is done.

- (BOOL)wait:(const char*)selector {
  if (_state->status < MTLCommandBufferStatusCommitted) {
    report_misuse(std::string("-[MTLCommandBuffer ") + selector + "]: the command buffer is not committed");
    return NO;
  }
  [_state->queue completeThrough:self];
  std::unique_lock<std::mutex> lock(_state->mutex);
  _state->changed.wait(lock, [&] { return _state->status >= MTLCommandBufferStatusCompleted; });
  return YES;
}
- (void)waitUntilScheduled {
  [self wait:"waitUntilScheduled"];
}
- (void)waitUntilCompleted {
  [self wait:"waitUntilCompleted"];
}
// One who polls is waiting.
- (MTLCommandBufferStatus)status {
  if (_state->status >= MTLCommandBufferStatusCommitted && !settings().eager) [_state->queue completeThrough:self];
  std::lock_guard<std::mutex> lock(_state->mutex);
  return _state->status;
}
- (NSError*)error {
  std::lock_guard<std::mutex> lock(_state->mutex);
  return _state->error;
}
- (CFTimeInterval)GPUStartTime {
  return _state->start;
}
- (CFTimeInterval)GPUEndTime {
  return _state->end;
}
@end

id<MTLCommandQueue> new_queue() { return [[MetalsimCommandQueue alloc] init]; }
