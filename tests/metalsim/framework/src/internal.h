// The framework's own view of its objects.
#pragma once
#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "execution.h"

extern "C" void* _Block_copy(const void* block);
extern "C" void _Block_release(const void* block);

namespace metalsim {

constexpr NSUInteger kBufferSlots = 31, kThreadgroupMemory = 32768, kMaxThreads = 1024, kMaxInlineBytes = 4096,
                     kSimdgroup = 32;
constexpr NSUInteger kThreadgroupGranule = 16;  // threadgroup memory comes in multiples of this
constexpr NSUInteger kConstantAlignment = 4;    // of offsets for `constant` parameters, as Apple's GPUs want it

inline NSString* string_of(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
NSError* error_with(NSString* domain, NSInteger code, const std::string& message);
// What Metal's validation would assert on, where there is no command buffer to fail.
void report_misuse(const std::string& message);

// A step of a command buffer.
struct Command {
  std::function<std::optional<std::string>()> run;  // returns what went wrong, or nothing
  std::function<bool()> ready = nullptr;            // whether it can run yet; called with the schedule's lock held
  bool always = false;                              // runs after a failure too
};

// Keeps an Objective-C object alive for as long as a command may use it.
class Kept {
 public:
  explicit Kept(id object) : object_([object retain]) {}
  Kept(const Kept& other) : object_([other.object_ retain]) {}
  Kept& operator=(const Kept&) = delete;
  ~Kept() { [object_ release]; }
  id get() const { return object_; }

 private:
  id object_;
};

}  // namespace metalsim

// What the device makes, each where its class is; all are owned by the caller.
id<MTLLibrary> new_library(NSString* source, MTLCompileOptions* options, NSError** error);
id<MTLComputePipelineState> new_pipeline(MTLComputePipelineDescriptor* descriptor, NSError** error);
id<MTLCommandQueue> new_queue(NSUInteger most_buffers);

@interface MetalsimDevice : NSObject <MTLDevice>
+ (MetalsimDevice*)shared;
@end

@interface MetalsimBuffer : NSObject <MTLBuffer> {
 @public
  char* _memory;
  NSUInteger _length;
  MTLResourceOptions _options;
  NSString* _label;
  void (^_deallocator)(void*, NSUInteger);  // for memory that is not ours
  BOOL _borrowed;
}
@end

@interface MetalsimFunction : NSObject <MTLFunction> {
 @public
  std::shared_ptr<metalsim::Program>* _program;
  std::string* _host_name;
  std::vector<metalsim::GivenConstant>* _constants;
  NSString* _label;
}
@end

@interface MetalsimPipeline : NSObject <MTLComputePipelineState> {
 @public
  MetalsimFunction* _function;
  NSString* _label;
  NSUInteger _max_threads;  // of a threadgroup
  BOOL _whole_simdgroups;   // its threads are promised to be a multiple of a simdgroup's
}
@end

@interface MetalsimSharedEvent : NSObject <MTLSharedEvent> {
 @public
  struct EventState* _state;
  NSString* _label;
}
- (uint64_t)value;  // with the schedule's lock held
@end

@class MetalsimCommandQueue;
@interface MetalsimCommandBuffer : NSObject <MTLCommandBuffer> {
 @public
  struct BufferState* _state;
}
- (void)encode:(const metalsim::Command&)command;
- (void)encoderEnded;
- (void)fail:(const std::string&)message;
@end

@interface MetalsimCommandQueue : NSObject <MTLCommandQueue> {
 @public
  struct QueueState* _state;
}
@end

@interface MetalsimComputeEncoder : NSObject <MTLComputeCommandEncoder> {
 @public
  struct EncoderState* _state;
}
- (instancetype)initWithBuffer:(MetalsimCommandBuffer*)buffer type:(MTLDispatchType)type;
@end

@interface MetalsimBlitEncoder : NSObject <MTLBlitCommandEncoder> {
 @public
  MetalsimCommandBuffer* _buffer;
  BOOL _ended;
  NSString* _label;
}
- (instancetype)initWithBuffer:(MetalsimCommandBuffer*)buffer;
@end
