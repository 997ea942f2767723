// The device and its buffers.
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "internal.h"

using namespace metalsim;

NSErrorDomain const MTLLibraryErrorDomain = @"MTLLibraryErrorDomain";
NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

NSError* metalsim::error_with(NSString* domain, NSInteger code, const std::string& message) {
  id text = string_of(message);
  NSString* key = NSLocalizedDescriptionKey;
  return [NSError errorWithDomain:domain
                             code:code
                         userInfo:[NSDictionary dictionaryWithObjects:&text forKeys:&key count:1]];
}
void metalsim::report_misuse(const std::string& message) {
  fprintf(stderr, "metalsim: %s\n", message.c_str());
  if (settings().abort_on_misuse) abort();
}

// ---- Buffers.

static std::atomic<NSUInteger> allocated;

@implementation MetalsimBuffer
- (void*)contents {
  // The CPU has no way to private memory.
  return [self storageMode] == MTLStorageModePrivate ? nullptr : _memory;
}
- (NSUInteger)length {
  return _length;
}
- (uint64_t)gpuAddress {
  return (uint64_t)_memory;
}
- (MTLStorageMode)storageMode {
  return (MTLStorageMode)(_options >> 4 & 15);
}
- (MTLResourceOptions)resourceOptions {
  return _options;
}
- (void)didModifyRange:(NSRange)range {
  if (range.location + range.length > _length)
    report_misuse("-[MTLBuffer didModifyRange:]: the range ends beyond the buffer's " + std::to_string(_length) +
                  " bytes");
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
- (void)dealloc {
  if (!_borrowed) {
    free(_memory);
    allocated -= _length;
  } else if (_deallocator) {
    _deallocator(_memory, _length);
    _Block_release((const void*)_deallocator);
  }
  [_label release];
  [super dealloc];
}
@end

static MetalsimBuffer* new_buffer(NSUInteger length, MTLResourceOptions options, const char* selector) {
  NSUInteger most = [[MetalsimDevice shared] maxBufferLength];
  if (!length || length > most) {
    report_misuse(std::string("-[MTLDevice ") + selector + "]: a buffer of " + std::to_string(length) +
                  " bytes; 1 to " + std::to_string(most) + " are allowed");
    return nil;
  }
  MetalsimBuffer* buffer = [MetalsimBuffer alloc];
  buffer->_length = length;
  buffer->_options = options;
  return buffer;
}
// Page-aligned and zeroed, as Metal's are.
static BOOL give_memory(MetalsimBuffer* buffer) {
  constexpr size_t kPage = 16384;
  size_t alignment = buffer->_length >= kPage ? kPage : 256;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, buffer->_length)) return NO;
  memset(memory, 0, buffer->_length);
  buffer->_memory = (char*)memory;
  allocated += buffer->_length;
  return YES;
}

// ---- The device.

@implementation MetalsimDevice
+ (MetalsimDevice*)shared {
  static MetalsimDevice* device = [[MetalsimDevice alloc] init];
  return device;
}
- (NSString*)name {
  return @"metalsim (a simulated Apple GPU)";
}
- (uint64_t)registryID {
  return 1;
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(kMaxThreads, kMaxThreads, kMaxThreads);
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return kThreadgroupMemory;
}
// Apple's limits are shares of the memory too.
- (uint64_t)recommendedMaxWorkingSetSize {
  struct sysinfo info;
  sysinfo(&info);
  return (uint64_t)info.totalram * info.mem_unit / 4 * 3;
}
- (NSUInteger)maxBufferLength {
  return [self recommendedMaxWorkingSetSize] / 4 * 3;
}
- (NSUInteger)currentAllocatedSize {
  return allocated;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  switch (family) {
    case MTLGPUFamilyApple7:
    case MTLGPUFamilyApple8:
    case MTLGPUFamilyApple9:
    case MTLGPUFamilyMac2:
    case MTLGPUFamilyCommon1:
    case MTLGPUFamilyCommon2:
    case MTLGPUFamilyCommon3:
    case MTLGPUFamilyMetal3:
      return YES;
  }
  return NO;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  MetalsimBuffer* buffer = new_buffer(length, options, "newBufferWithLength:options:");
  if (!buffer || give_memory(buffer)) return buffer;
  buffer->_borrowed = YES;
  [buffer release];
  return nil;
}
- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes length:(NSUInteger)length options:(MTLResourceOptions)options {
  id<MTLBuffer> buffer = [self newBufferWithLength:length options:options];
  if (buffer) memcpy(((MetalsimBuffer*)buffer)->_memory, bytes, length);
  return buffer;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void*, NSUInteger))deallocator {
  const char* selector = "newBufferWithBytesNoCopy:length:options:deallocator:";
  if ((uintptr_t)bytes % 4096) {
    report_misuse(std::string("-[MTLDevice ") + selector + "]: the pointer is not aligned to a page");
    return nil;
  }
  MetalsimBuffer* buffer = new_buffer(length, options, selector);
  if (!buffer) return nil;
  buffer->_memory = (char*)bytes;
  buffer->_borrowed = YES;
  if (deallocator) buffer->_deallocator = (void (^)(void*, NSUInteger))_Block_copy((const void*)deallocator);
  return buffer;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  return new_library(source, options, error);
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error {
  if (!function) {
    report_misuse("-[MTLDevice newComputePipelineStateWithFunction:error:]: the function is nil");
    if (error) *error = error_with(MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound, "the function is nil");
    return nil;
  }
  MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
  descriptor.computeFunction = function;
  id<MTLComputePipelineState> pipeline = new_pipeline(descriptor, error);
  [descriptor release];
  return pipeline;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:
                                                              (MTLAutoreleasedComputePipelineReflection*)reflection
                                                               error:(NSError**)error {
  if (reflection) *reflection = nil;
  return new_pipeline(descriptor, error);
}
// Only Apple's tools make libraries in files, and only Apple's GPUs run them.
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error {
  if (error)
    *error = error_with(MTLLibraryErrorDomain, MTLLibraryErrorUnsupported,
                        std::string("metalsim runs no compiled libraries: ") + (url ? url.path.UTF8String : "(nil)"));
  return nil;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return new_queue(64);
}
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count {
  return new_queue(count);
}
- (id<MTLSharedEvent>)newSharedEvent {
  return [[MetalsimSharedEvent alloc] init];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return [[MetalsimDevice shared] retain]; }
