// One MTLBuffer a storage, exactly as long as the storage, so that the checks know where each tensor's memory ends.
#include <ATen/mps/MPSDevice.h>
#import <Metal/Metal.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device.h"

namespace metalsim {

static id<MTLDevice> device() { return at::mps::MPSDevice::getInstance()->device(); }
size_t max_buffer_length() { return device().maxBufferLength; }

static std::string in_megabytes(size_t bytes) { return std::to_string(bytes >> 20) + " MB"; }

class Allocator final : public at::mps::IMPSAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, nullptr, &release, mps_device()};
    reserve(bytes);
    id<MTLBuffer> buffer = [device() newBufferWithLength:bytes options:MTLResourceStorageModeShared];
    if (!buffer) {
      std::lock_guard<std::mutex> lock(mutex_);
      total_ -= bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "MPS backend out of memory: no buffer of ", bytes, " bytes");
    }
    // New memory holds anything: NaN, or an index far out of range, shows whoever reads it unwritten.
    memset([buffer contents], 0xff, bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    sizes_[(void*)buffer] = bytes;
    return {(void*)buffer, (void*)buffer, &release, mps_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    synchronize();
    memcpy(contents(to), contents(from), bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard<std::mutex> lock(mutex_);
    stats.allocated_bytes[0].current = (int64_t)total_;
    stats.allocated_bytes[0].peak = (int64_t)peak_;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    peak_ = total_;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    size_t all = getRecommendedMaxMemory(), used = getCurrentAllocatedMemory();
    return {all - std::min(all, used), all};
  }

  ssize_t getUnalignedBufferSize(const void* buffer) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sizes_.find(buffer);
    return found == sizes_.end() ? -1 : (ssize_t)found->second;
  }
  bool isSharedBuffer(const void* buffer) const override { return getUnalignedBufferSize(buffer) >= 0; }
  std::pair<const void*, uint32_t> getSharedBufferPtr(const void* buffer) const override {
    return {isSharedBuffer(buffer) ? contents(buffer) : nullptr, 0};
  }
  c10::DataPtr allocScalarBufferWithValue(void* value, size_t bytes) const override {
    c10::DataPtr memory = const_cast<Allocator*>(this)->allocate(bytes);
    memcpy(contents(memory.get()), value, bytes);
    return memory;
  }
  c10::Storage getHostAliasStorage(const c10::Storage& storage) const override {
    TORCH_CHECK(storage.device_type() == c10::DeviceType::MPS, "expected a storage on mps, got one on ",
                storage.device());
    // Keeps the memory alive for as long as the alias lives.
    auto* owner = new c10::Storage(storage);
    void* memory = storage.nbytes() ? contents(storage.data()) : nullptr;
    c10::DataPtr alias(memory, owner, [](void* kept) { delete (c10::Storage*)kept; }, c10::DeviceType::CPU);
    return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(alias), nullptr, false);
  }

  // Caches and their marks: there is no cache.
  void freeInactiveBuffers() const override {}
  at::IntArrayRef getBufferShape(const void*) const override { return {}; }
  void setBufferShape(const void*, const at::IntArrayRef&) const override {}
  id_t getBufferId(const void*) const override { return 0; }
  void setLowWatermarkRatio(double) const override {}
  void setHighWatermarkRatio(double ratio) const override { set_memory_fraction(ratio); }
  ssize_t getLowWatermarkValue() const override { return 0; }
  size_t getLowWatermarkLimit() const override { return 0; }
  size_t getHighWatermarkLimit() const override { return limit_; }
  std::string formatSize(size_t bytes) const override { return in_megabytes(bytes); }
  size_t getTotalAllocatedMemory() const override { return getCurrentAllocatedMemory(); }
  size_t getCurrentAllocatedMemory() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return total_;
  }
  size_t getDriverAllocatedMemory() const override { return getCurrentAllocatedMemory(); }
  size_t getRecommendedMaxMemory() const override { return device().recommendedMaxWorkingSetSize; }
  bool recordEvents(c10::ArrayRef<const void*>) const override { return false; }
  bool waitForEvents(c10::ArrayRef<const void*>) const override { return false; }

  void limit(double fraction) {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = fraction ? (size_t)(fraction * (double)getRecommendedMaxMemory()) : SIZE_MAX;
  }

 private:
  static void* contents(const void* buffer) { return [(id<MTLBuffer>)const_cast<void*>(buffer) contents]; }
  static void release(void* buffer);
  void forget(void* buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sizes_.find(buffer);
    if (found == sizes_.end()) return;
    total_ -= found->second;
    sizes_.erase(found);
  }
  void reserve(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= limit_ && total_ <= limit_ - bytes,
                     "MPS backend out of memory (MPS allocated: ", in_megabytes(total_),
                     ", max allowed: ", in_megabytes(limit_), "). Tried to allocate ", in_megabytes(bytes), ".");
    TORCH_CHECK(bytes <= max_buffer_length(), "Invalid buffer size: ", in_megabytes(bytes));
    total_ += bytes;
    peak_ = std::max(peak_, total_);
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, size_t> sizes_;
  size_t total_ = 0, peak_ = 0, limit_ = SIZE_MAX;
};

static Allocator& instance() {
  static auto* allocator = new Allocator;
  return *allocator;
}
// Work under way holds on to its buffers itself, so that memory can go at once.
void Allocator::release(void* buffer) {
  if (!buffer) return;
  instance().forget(buffer);
  [(id)buffer release];
}

at::mps::IMPSAllocator& allocator() { return instance(); }
void set_memory_fraction(double fraction) { instance().limit(fraction); }

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_mps()) return tensor;
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      allocator().getHostAliasStorage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

static const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::MPS, &allocator());
  return true;
}();

}  // namespace metalsim

namespace at::mps {
__attribute__((visibility("default"))) IMPSAllocator* getIMPSAllocator() { return &metalsim::allocator(); }
__attribute__((visibility("default"))) bool isMPSPinnedPtr(const void*) { return false; }
at::Allocator* GetMPSAllocator() { return &metalsim::allocator(); }
}  // namespace at::mps
