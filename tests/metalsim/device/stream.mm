// torch's own classes for the MPS device and its one stream, by torch's headers, on our Metal framework.
#include <ATen/mps/MPSStream.h>
#include <c10/metal/error.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "device.h"

namespace at::mps {

static std::string message_of(NSError* error) {
  return error ? error.localizedDescription.UTF8String : "no reason given";
}

MPSDevice* MPSDevice::_device = nullptr;
MPSDevice::MPSDevice() : _mtl_device(MTLCreateSystemDefaultDevice()) {}
MPSDevice::~MPSDevice() = default;
MPSDevice* MPSDevice::getInstance() {
  static MPSDevice* device = new MPSDevice;
  return device;
}
bool MPSDevice::isMacOS13Plus(MacOSVersion) const { return true; }
std::string MPSDevice::getName() const {
  @autoreleasepool {
    return _mtl_device.name.UTF8String;
  }
}
unsigned MPSDevice::getCoreCount() const { return 8; }

bool is_available() { return true; }
bool is_macos_13_or_newer(MacOSVersion version) { return MPSDevice::getInstance()->isMacOS13Plus(version); }
bool is_apple_family_or_newer(AppleGPUFamily family) {
  return [MPSDevice::getInstance()->device() supportsFamily:(MTLGPUFamily)family];
}

// As on macOS, synchronize() and the getters may be called within and without a block on the stream's queue; so they
// are guarded by a lock of their own. The queue only orders the encoding.
static std::recursive_mutex& stream_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
using StreamLock = std::lock_guard<std::recursive_mutex>;

// Committed and not yet waited for; one stream, so one list.
static std::vector<id<MTLCommandBuffer>>& in_flight() {
  static auto* buffers = new std::vector<id<MTLCommandBuffer>>;
  return *buffers;
}

MPSStream::MPSStream(Stream stream) : _stream(stream) {
  TORCH_CHECK(stream.device_type() == DeviceType::MPS, "expected an MPS stream, got one of ", stream.device());
  _commandQueue = [MPSDevice::getInstance()->device() newCommandQueue];
  _serialQueue = dispatch_queue_create("metal gpu stream", nullptr);
  _errorBuffer = [device() newBufferWithLength:sizeof(c10::metal::ErrorMessages) options:MTLResourceStorageModeShared];
  memset([_errorBuffer contents], 0, sizeof(c10::metal::ErrorMessages));
}
MPSStream::~MPSStream() = default;
MTLDevice_t MPSStream::device() const { return MPSDevice::getInstance()->device(); }

MPSCommandBuffer_t MPSStream::commandBuffer() {
  StreamLock lock(stream_mutex());
  if (_commandBuffer) return _commandBuffer;
  @autoreleasepool {
    _commandBuffer = (MPSCommandBuffer_t)[(id)[_commandQueue commandBuffer] retain];
  }
  return _commandBuffer;
}
MTLComputeCommandEncoder_t MPSStream::commandEncoder() {
  StreamLock lock(stream_mutex());
  if (!_commandEncoder) _commandEncoder = [(id)[(id<MTLCommandBuffer>)commandBuffer() computeCommandEncoder] retain];
  return _commandEncoder;
}
void MPSStream::endKernelCoalescing() {
  StreamLock lock(stream_mutex());
  if (!_commandEncoder) return;
  [_commandEncoder endEncoding];
  [(id)_commandEncoder release];
  _commandEncoder = nil;
}

void MPSStream::flush() { commit(); }
void MPSStream::commitAndContinue() { commit(); }
void MPSStream::commit() {
  if (!_commandBuffer) return;
  id<MTLCommandBuffer> buffer = (id<MTLCommandBuffer>)_commandBuffer;
  _commandBuffer = nil;
  [buffer commit];
  in_flight().push_back(buffer);
}
void MPSStream::commitAndWait() {
  commit();
  std::vector<id<MTLCommandBuffer>> buffers;
  buffers.swap(in_flight());
  std::string failure;
  @autoreleasepool {
    for (id<MTLCommandBuffer> buffer : buffers) {
      [buffer waitUntilCompleted];
      if (buffer.status == MTLCommandBufferStatusError && failure.empty()) failure = message_of(buffer.error);
      [(id)buffer release];
    }
  }
  TORCH_CHECK(failure.empty(), "MPS: command buffer failed: ", failure);
  checkLastError();
}
void MPSStream::synchronize(SyncType kind) {
  StreamLock lock(stream_mutex());
  endKernelCoalescing();
  if (kind == SyncType::COMMIT_AND_WAIT)
    commitAndWait();
  else if (kind == SyncType::COMMIT || kind == SyncType::COMMIT_AND_CONTINUE)
    commit();
}
void MPSStream::addCompletedHandler(MTLCommandBufferHandler block) {
  StreamLock lock(stream_mutex());
  [(id<MTLCommandBuffer>)commandBuffer() addCompletedHandler:block];
}

void MPSStream::copy(MTLBuffer_t source, MTLBuffer_t destination, size_t length, size_t source_offset,
                     size_t destination_offset, uint64_t, SyncType kind) {
  if (!length) return;
  StreamLock lock(stream_mutex());
  endKernelCoalescing();
  @autoreleasepool {
    id<MTLBlitCommandEncoder> encoder = [(id<MTLCommandBuffer>)commandBuffer() blitCommandEncoder];
    [encoder copyFromBuffer:source
               sourceOffset:source_offset
                   toBuffer:destination
          destinationOffset:destination_offset
                       size:length];
    [encoder endEncoding];
  }
  synchronize(kind);
}
void MPSStream::copy_and_sync(MTLBuffer_t source, MTLBuffer_t destination, size_t length, size_t source_offset,
                              size_t destination_offset, bool non_blocking, uint64_t profile_id) {
  copy(source, destination, length, source_offset, destination_offset, profile_id,
       non_blocking ? SyncType::COMMIT : SyncType::COMMIT_AND_WAIT);
}
void MPSStream::executeMPSGraph(MPSGraph*, NSDictionary*, NSDictionary*, SyncType) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "metalsim runs no MPSGraph");
}

// Kernels report by TORCH_REPORT_ERROR into this buffer; read and emptied at the next synchronization.
MTLBuffer_t MPSStream::getErrorBuffer() { return _errorBuffer; }
void MPSStream::checkLastError() {
  auto* messages = (c10::metal::ErrorMessages*)[_errorBuffer contents];
  if (!messages->count) return;
  c10::metal::ErrorMessage first = messages->msg[0];
  memset((void*)messages, 0, sizeof *messages);
  for (char* text : {first.func, first.file}) text[127] = 0;
  first.message[249] = 0;
  throw c10::AcceleratorError({first.func, first.file, first.line}, 1, first.message);
}

MPSStream* MPSStreamImpl::_stream = nullptr;
MPSStream* MPSStreamImpl::getInstance() {
  static MPSStream* stream = new MPSStream(Stream(Stream::DEFAULT, metalsim::mps_device()));
  return stream;
}
MPSStream* getCurrentMPSStream() { return MPSStreamImpl::getInstance(); }
MPSStream* getDefaultMPSStream() { return MPSStreamImpl::getInstance(); }

// An exception must not leave a block (dispatch would end the process), so it is carried over.
__attribute__((visibility("default"))) void dispatch_sync_with_rethrow(dispatch_queue_t queue, void (^block)()) {
  __block std::exception_ptr thrown;
  dispatch_sync(queue, ^{
    try {
      block();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace at::mps

// Through the queue as torch's own operators go, so that one inside a block on the queue is noticed as a deadlock.
void metalsim::synchronize() {
  at::mps::MPSStream* stream = at::mps::getDefaultMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    stream->synchronize(at::mps::SyncType::COMMIT_AND_WAIT);
  });
}
