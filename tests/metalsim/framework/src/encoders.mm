// The compute and blit encoders, with what Metal's validation checks.
#include <algorithm>
#include <cstring>
#include <random>

#include "internal.h"

using namespace metalsim;

namespace {

struct Binding {
  MetalsimBuffer* buffer = nil;  // retained
  NSUInteger offset = 0;
  std::shared_ptr<std::vector<char>> inlined;  // setBytes
};

std::string plural(NSUInteger n, const char* what) { return std::to_string(n) + " " + what; }
std::string sizes(MTLSize s) {
  return "(" + std::to_string(s.width) + ", " + std::to_string(s.height) + ", " + std::to_string(s.depth) + ")";
}
bool empty(MTLSize s) { return !s.width || !s.height || !s.depth; }
bool above(MTLSize s, NSUInteger limit) { return s.width > limit || s.height > limit || s.depth > limit; }
// As many as there are, or as many as can be counted.
NSUInteger times(NSUInteger a, NSUInteger b) {
  NSUInteger product;
  return __builtin_mul_overflow(a, b, &product) ? ~NSUInteger{0} : product;
}

}  // namespace

struct EncoderState {
  MetalsimCommandBuffer* buffer;  // retained
  MetalsimPipeline* pipeline = nil;
  Binding bindings[kBufferSlots];
  NSUInteger threadgroup_bytes[kBufferSlots] = {};
  bool concurrent = false;
  std::vector<Command> unordered;  // a concurrent encoder's dispatches since the last barrier
  bool ended = false;
  NSString* label = nil;
};

@implementation MetalsimComputeEncoder
- (instancetype)initWithBuffer:(MetalsimCommandBuffer*)buffer type:(MTLDispatchType)type {
  _state = new EncoderState;
  _state->buffer = [buffer retain];
  _state->concurrent = type == MTLDispatchTypeConcurrent;
  return self;
}
- (void)dealloc {
  if (!_state->ended) [self fail:"dealloc" message:"the encoder is released before endEncoding"];
  for (Binding& binding : _state->bindings) [binding.buffer release];
  [_state->pipeline release];
  [_state->label release];
  [_state->buffer release];
  delete _state;
  [super dealloc];
}
- (void)fail:(const char*)selector message:(const std::string&)message {
  [_state->buffer fail:std::string("-[MTLComputeCommandEncoder ") + selector + "]: " + message];
}
- (BOOL)open:(const char*)selector {
  if (!_state->ended) return YES;
  [self fail:selector message:"the encoder has ended"];
  return NO;
}
- (BOOL)open:(const char*)selector index:(NSUInteger)index {
  if (![self open:selector]) return NO;
  if (index < kBufferSlots) return YES;
  [self fail:selector message:"index " + std::to_string(index) + " is above 30"];
  return NO;
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
- (void)insertDebugSignpost:(NSString*)text {
}
- (void)pushDebugGroup:(NSString*)name {
}
- (void)popDebugGroup {
}
- (void)endEncoding {
  if (![self open:"endEncoding"]) return;
  [self barrier];
  _state->ended = true;
  [_state->buffer encoderEnded];
}

// ---- State.

- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline {
  if (![self open:"setComputePipelineState:"]) return;
  if (!pipeline) return [self fail:"setComputePipelineState:" message:"the pipeline is nil"];
  [(id)pipeline retain];
  [_state->pipeline release];
  _state->pipeline = (MetalsimPipeline*)pipeline;
}
- (void)bind:(id<MTLBuffer>)buffer offset:(NSUInteger)offset index:(NSUInteger)index selector:(const char*)selector {
  if (![self open:selector index:index]) return;
  if (buffer && offset >= buffer.length)
    return [self
           fail:selector
        message:"offset " + std::to_string(offset) + " is not within the buffer's " + plural(buffer.length, "bytes")];
  Binding& binding = _state->bindings[index];
  [(id)buffer retain];
  [binding.buffer release];
  binding = {(MetalsimBuffer*)buffer, offset, nullptr};
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self bind:buffer offset:offset index:index selector:"setBuffer:offset:atIndex:"];
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  const char* selector = "setBufferOffset:atIndex:";
  if (![self open:selector index:index]) return;
  if (!_state->bindings[index].buffer)
    return [self fail:selector message:"no buffer is bound at index " + std::to_string(index)];
  [self bind:_state->bindings[index].buffer offset:offset index:index selector:selector];
}
- (void)setBuffers:(const id<MTLBuffer>[])buffers offsets:(const NSUInteger[])offsets withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; i++)
    [self bind:buffers[i] offset:offsets[i] index:range.location + i selector:"setBuffers:offsets:withRange:"];
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  const char* selector = "setBytes:length:atIndex:";
  if (![self open:selector index:index]) return;
  if (!length || length > kMaxInlineBytes)
    return [self fail:selector message:plural(length, "bytes; 1 to 4096 are allowed")];
  Binding& binding = _state->bindings[index];
  [binding.buffer release];
  binding = {nil, 0, std::make_shared<std::vector<char>>((const char*)bytes, (const char*)bytes + length)};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  const char* selector = "setThreadgroupMemoryLength:atIndex:";
  if (![self open:selector index:index]) return;
  if (length % kThreadgroupGranule) return [self fail:selector message:plural(length, "bytes are no multiple of 16")];
  if (length > kThreadgroupMemory)
    return [self fail:selector message:plural(length, "bytes, more than the device's 32768")];
  _state->threadgroup_bytes[index] = length;
}
// Dispatches run one after the other, but a concurrent encoder promises no order between barriers: so they come in the
// order that the settings give to threads too, and one that counts on another has no chance to be right by luck.
- (void)barrier {
  std::vector<Command>& commands = _state->unordered;
  metalsim_settings chosen = settings();
  if (chosen.order == kLifo) std::reverse(commands.begin(), commands.end());
  if (chosen.order == kRandom) std::shuffle(commands.begin(), commands.end(), std::mt19937_64(chosen.seed));
  for (const Command& command : commands) [_state->buffer encode:command];
  commands.clear();
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  if ([self open:"memoryBarrierWithScope:"]) [self barrier];
}
- (void)memoryBarrierWithResources:(const id<MTLResource>[])resources count:(NSUInteger)count {
  if ([self open:"memoryBarrierWithResources:count:"]) [self barrier];
}
- (void)useResources:(const id<MTLResource>[])resources count:(NSUInteger)count usage:(MTLResourceUsage)usage {
  for (NSUInteger i = 0; i < count; i++) [self useResource:resources[i] usage:usage];
}
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
  if (![self open:"useResource:usage:"] || !_state->buffer.retainedReferences) return;
  Kept kept((id)resource);
  [_state->buffer encode:{[kept]() -> std::optional<std::string> { return std::nullopt; }}];
}

// ---- Dispatches.

// What is wrong with the argument for a parameter, or "".
- (std::string)problemOfParameter:(const KernelParameter&)parameter kernel:(const KernelInfo&)kernel {
  if (parameter.conditional || parameter.kind == KernelParameter::other) return "";
  std::string index = std::to_string(parameter.index);
  if (parameter.kind == KernelParameter::threadgroup)
    return _state->threadgroup_bytes[parameter.index] ? "" : " needs threadgroup memory at index " + index;
  const Binding& binding = _state->bindings[parameter.index];
  if (!binding.buffer && !binding.inlined) return " needs a buffer at index " + index;
  auto least = kernel.least_bytes.find(parameter.index);
  NSUInteger there = binding.inlined ? binding.inlined->size() : binding.buffer->_length - binding.offset;
  if (least != kernel.least_bytes.end() && there < least->second)
    return " needs " + plural(least->second, "bytes") + " at index " + index + ", there are " + std::to_string(there);
  if (parameter.constant && binding.offset % kConstantAlignment)
    return " takes constant memory at index " + index + ", where offset " + std::to_string(binding.offset) +
           " is no multiple of " + std::to_string(kConstantAlignment);
  return "";
}
// What is wrong with the bindings for the pipeline's kernel, or "".
- (std::string)problemOfBindings {
  const MetalsimFunction* function = _state->pipeline->_function;
  NSUInteger memory = 0;
  for (NSUInteger bytes : _state->threadgroup_bytes) memory += bytes;
  if (memory > kThreadgroupMemory) return plural(memory, "bytes of threadgroup memory, more than the device's 32768");
  const KernelInfo& kernel = (*function->_program)->kernels().at(*function->_host_name);
  for (const KernelParameter& parameter : kernel.parameters) {
    std::string problem = [self problemOfParameter:parameter kernel:kernel];
    if (!problem.empty()) return "kernel " + *function->_host_name + problem;
  }
  return "";
}
- (std::string)problemOfGrid:(MTLSize)grid threads:(MTLSize)threads {
  if (!_state->pipeline) return "no pipeline is set";
  if (empty(threads)) return "a threadgroup of " + sizes(threads) + " threads is empty";
  NSUInteger most = [_state->pipeline maxTotalThreadsPerThreadgroup];
  if (above(threads, most) || threads.width * threads.height * threads.depth > most)
    return "a threadgroup of " + sizes(threads) + " threads has more than the pipeline's " + std::to_string(most);
  if (_state->pipeline->_whole_simdgroups && threads.width * threads.height * threads.depth % kSimdgroup)
    return "a threadgroup of " + sizes(threads) + " threads is no multiple of 32, as the pipeline was promised";
  if (empty(grid)) return "a grid of " + sizes(grid) + " is empty";
  if (above(grid, UINT32_MAX)) return "a grid of " + sizes(grid) + " threads has more than 32 bits count";
  return [self problemOfBindings];
}
- (void)dispatchGrid:(MTLSize)grid threads:(MTLSize)threads selector:(const char*)selector {
  if (![self open:selector]) return;
  std::string problem = [self problemOfGrid:grid threads:threads];
  if (!problem.empty()) return [self fail:selector message:problem];
  const MetalsimFunction* function = _state->pipeline->_function;
  metalsim::Dispatch dispatch{*function->_program,
                              *function->_host_name,
                              *function->_constants,
                              {},
                              {},
                              {grid.width, grid.height, grid.depth},
                              {threads.width, threads.height, threads.depth}};
  std::vector<Kept> resources;
  std::vector<std::shared_ptr<std::vector<char>>> inlined;
  for (int i = 0; i < (int)kBufferSlots; i++) {
    const Binding& b = _state->bindings[i];
    if (_state->threadgroup_bytes[i]) dispatch.threadgroup_bytes[i] = _state->threadgroup_bytes[i];
    if (b.inlined) {
      dispatch.buffers[i] = {b.inlined->data(), b.inlined->size(), 0};
      inlined.push_back(b.inlined);
    } else if (b.buffer) {
      dispatch.buffers[i] = {b.buffer->_memory + b.offset, b.buffer->_length - b.offset, b.offset};
      if (_state->buffer.retainedReferences) resources.emplace_back(b.buffer);
    }
  }
  Command command = {[dispatch, resources, inlined] { return run(dispatch); }};
  if (_state->concurrent)
    _state->unordered.push_back(command);
  else
    [_state->buffer encode:command];
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  MTLSize grid = MTLSizeMake(times(groups.width, threads.width), times(groups.height, threads.height),
                             times(groups.depth, threads.depth));
  [self dispatchGrid:grid threads:threads selector:"dispatchThreadgroups:threadsPerThreadgroup:"];
}
- (void)dispatchThreads:(MTLSize)grid threadsPerThreadgroup:(MTLSize)threads {
  [self dispatchGrid:grid threads:threads selector:"dispatchThreads:threadsPerThreadgroup:"];
}
@end

// ---- Copies and fills.

@implementation MetalsimBlitEncoder
- (instancetype)initWithBuffer:(MetalsimCommandBuffer*)buffer {
  _buffer = [buffer retain];
  return self;
}
- (void)dealloc {
  if (!_ended) [self fail:"dealloc" message:"the encoder is released before endEncoding"];
  [_label release];
  [_buffer release];
  [super dealloc];
}
- (void)fail:(const char*)selector message:(const std::string&)message {
  [_buffer fail:std::string("-[MTLBlitCommandEncoder ") + selector + "]: " + message];
}
- (BOOL)open:(const char*)selector {
  if (!_ended) return YES;
  [self fail:selector message:"the encoder has ended"];
  return NO;
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
- (void)insertDebugSignpost:(NSString*)text {
}
- (void)pushDebugGroup:(NSString*)name {
}
- (void)popDebugGroup {
}
- (void)endEncoding {
  if (![self open:"endEncoding"]) return;
  _ended = YES;
  [_buffer encoderEnded];
}
- (BOOL)within:(id<MTLBuffer>)buffer at:(NSUInteger)offset size:(NSUInteger)size selector:(const char*)selector {
  if (![self open:selector]) return NO;
  if (buffer && size && offset <= buffer.length && size <= buffer.length - offset) return YES;
  [self fail:selector
      message:plural(size, "bytes at ") + std::to_string(offset) + " are not within the buffer's " +
              plural(buffer.length, "bytes")];
  return NO;
}
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)from
              toBuffer:(id<MTLBuffer>)destination
     destinationOffset:(NSUInteger)to
                  size:(NSUInteger)size {
  const char* selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:";
  if (![self within:source at:from size:size selector:selector]) return;
  if (![self within:destination at:to size:size selector:selector]) return;
  if (source == destination && from < to + size && to < from + size)
    return [self fail:selector message:"the two ranges overlap"];
  Kept a((id)source), b((id)destination);
  [_buffer encode:{[=]() -> std::optional<std::string> {
             memcpy(((MetalsimBuffer*)b.get())->_memory + to, ((MetalsimBuffer*)a.get())->_memory + from, size);
             return std::nullopt;
           }}];
}
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value {
  if (![self within:buffer at:range.location size:range.length selector:"fillBuffer:range:value:"]) return;
  Kept kept((id)buffer);
  [_buffer encode:{[=]() -> std::optional<std::string> {
             memset(((MetalsimBuffer*)kept.get())->_memory + range.location, value, range.length);
             return std::nullopt;
           }}];
}
@end
