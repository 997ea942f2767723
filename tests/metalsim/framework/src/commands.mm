// Command queues and command buffers: what is encoded, committed and waited for. How it runs: schedule.mm.
#include "schedule.h"

using namespace metalsim;

@implementation MetalsimCommandQueue
- (instancetype)init {
  _state = new QueueState;
  ScheduleLock lock(schedule().mutex);
  schedule().queues.push_back(self);
  return self;
}
- (void)dealloc {
  {
    ScheduleLock lock(schedule().mutex);
    std::erase(schedule().queues, self);
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
  NSUInteger open;
  {
    ScheduleLock lock(schedule().mutex);
    open = _state->open++;
  }
  if (open >= _state->most_open)
    report_misuse("-[MTLCommandQueue commandBuffer]: " + std::to_string(open) +
                  " command buffers are neither committed nor released: on macOS this waits for ever");
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
@end

// ---- Command buffers.

@implementation MetalsimCommandBuffer
- (void)dealloc {
  {
    ScheduleLock lock(schedule().mutex);
    if (_state->status < MTLCommandBufferStatusCommitted) _state->queue->_state->open--;
  }
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
  ScheduleLock lock(schedule().mutex);
  if (_state->failure.empty()) _state->failure = message;
}
- (MTLCommandBufferStatus)current {
  ScheduleLock lock(schedule().mutex);
  return _state->status;
}
// Whether an encoder may be made, or a command encoded outside one.
- (BOOL)open:(const char*)selector {
  std::string prefix = std::string("-[MTLCommandBuffer ") + selector + "]: ";
  if ([self current] >= MTLCommandBufferStatusCommitted) {
    [self fail:prefix + "the command buffer is committed already"];
    return NO;
  }
  if (!_state->encoding) return YES;
  [self fail:prefix + "the encoder before has not ended"];
  return NO;
}
- (void)encode:(const Command&)command {
  ScheduleLock lock(schedule().mutex);
  _state->commands.push_back(command);
}
- (void)encoderEnded {
  _state->encoding = false;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (![self open:"computeCommandEncoder"]) return nil;
  _state->encoding = true;
  return [[[MetalsimComputeEncoder alloc] initWithBuffer:self type:type] autorelease];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  if (![self open:"blitCommandEncoder"]) return nil;
  _state->encoding = true;
  return [[[MetalsimBlitEncoder alloc] initWithBuffer:self] autorelease];
}
- (BOOL)open:(const char*)selector event:(id<MTLEvent>)event {
  if (![self open:selector]) return NO;
  if (!event) [self fail:std::string("-[MTLCommandBuffer ") + selector + "]: the event is nil"];
  return event != nil;
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self open:"encodeSignalEvent:value:" event:event]) return;
  Kept kept((id)event);
  auto signal = [kept, value]() -> std::optional<std::string> {
    ((id<MTLSharedEvent>)kept.get()).signaledValue = value;
    return std::nullopt;
  };
  [self encode:{signal, nullptr, true}];
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self open:"encodeWaitForEvent:value:" event:event]) return;
  Kept kept((id)event);
  auto reached = [kept, value] { return [(MetalsimSharedEvent*)kept.get() value] >= value; };
  [self encode:{[]() -> std::optional<std::string> { return std::nullopt; }, reached}];
}

// ---- Committing.

- (void)enqueue {
  ScheduleLock lock(schedule().mutex);
  if (_state->status != MTLCommandBufferStatusNotEnqueued) return;
  _state->status = MTLCommandBufferStatusEnqueued;
  _state->queue->_state->pending.push_back([self retain]);
}
- (void)commit {
  if ([self current] >= MTLCommandBufferStatusCommitted) {
    [self fail:"-[MTLCommandBuffer commit]: committed twice"];
    return;
  }
  if (_state->encoding) [self fail:"-[MTLCommandBuffer commit]: an encoder has not ended"];
  [self enqueue];
  bool handlers;
  {
    ScheduleLock lock(schedule().mutex);
    _state->status = MTLCommandBufferStatusCommitted;
    _state->queue->_state->open--;
    handlers = !_state->scheduled.empty() || !_state->completed.empty();
    schedule().notify();
  }
  if (settings().eager)
    [self completeOnAThread];
  else if (handlers)
    expect(self, [state = _state] { return state->status >= MTLCommandBufferStatusCompleted; }, _state->queue);
}
- (void)completeOnAThread {
  [self retain];
  std::thread([self] {
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    [self complete];
    [pool drain];
    [self release];
  }).detach();
}
- (void)add:(MTLCommandBufferHandler)block to:(std::vector<MTLCommandBufferHandler>*)handlers {
  if ([self current] >= MTLCommandBufferStatusCommitted) {
    [self fail:"-[MTLCommandBuffer add...Handler:]: the command buffer is committed already"];
    return;
  }
  handlers->push_back((MTLCommandBufferHandler)_Block_copy((const void*)block));
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)block {
  [self add:block to:&_state->scheduled];
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  [self add:block to:&_state->completed];
}

// ---- Looking and waiting: here late work is done.

- (BOOL)committed:(const char*)selector {
  if ([self current] >= MTLCommandBufferStatusCommitted) return YES;
  report_misuse(std::string("-[MTLCommandBuffer ") + selector + "]: the command buffer is not committed");
  return NO;
}
// Until its handlers have returned; one of them, which would wait for itself, goes on.
- (void)complete {
  work_until([&] { return _state->handled || _state->handler == std::this_thread::get_id(); }, _state->queue);
}
- (void)waitUntilScheduled {
  if ([self committed:"waitUntilScheduled"]) work_until_scheduled(self);
}
- (void)waitUntilCompleted {
  if ([self committed:"waitUntilCompleted"]) [self complete];
}
// One who polls is waiting.
- (MTLCommandBufferStatus)status {
  if ([self current] >= MTLCommandBufferStatusCommitted)
    work_while_possible([&] { return _state->status >= MTLCommandBufferStatusCompleted; }, _state->queue);
  return [self current];
}
- (NSError*)error {
  ScheduleLock lock(schedule().mutex);
  return _state->error;
}
- (CFTimeInterval)GPUStartTime {
  ScheduleLock lock(schedule().mutex);
  return _state->start;
}
- (CFTimeInterval)GPUEndTime {
  ScheduleLock lock(schedule().mutex);
  return _state->end;
}
@end

id<MTLCommandQueue> new_queue(NSUInteger most_buffers) {
  MetalsimCommandQueue* queue = [[MetalsimCommandQueue alloc] init];
  queue->_state->most_open = most_buffers;
  return queue;
}
