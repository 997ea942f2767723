// How torch finds the device: its hooks and its guard.
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/mps/MPSStream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device.h"

namespace metalsim {

struct Hooks final : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isOnMacOSorNewer(unsigned major, unsigned) const override { return major <= 15; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex device) const override { check(device); }
  c10::DeviceIndex getCurrentDevice() const override { return kDevice; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return check(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return check(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  c10::Device getDeviceFromPtr(void*) const override { return mps_device(); }
  c10::Allocator* getMPSDeviceAllocator() const override { return &allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return at::getCPUAllocator(); }

  void deviceSynchronize() const override { synchronize(); }
  void commitStream() const override { stream().synchronize(at::mps::SyncType::COMMIT); }
  void* getCommandBuffer() const override {
    stream().endKernelCoalescing();
    return (void*)stream().commandBuffer();
  }
  void* getDispatchQueue() const override { return (void*)stream().queue(); }

  void emptyCache() const override {}
  size_t getCurrentAllocatedMemory() const override { return allocator().getCurrentAllocatedMemory(); }
  size_t getDriverAllocatedMemory() const override { return allocator().getDriverAllocatedMemory(); }
  size_t getRecommendedMaxMemory() const override { return allocator().getRecommendedMaxMemory(); }
  size_t getMaxBufferLength() const override { return max_buffer_length(); }
  void setMemoryFraction(double fraction) const override { set_memory_fraction(fraction); }

  // Signposts are for Apple's Instruments: there is nobody to read them.
  void profilerStartTrace(const std::string&, bool) const override {}
  void profilerStopTrace() const override {}

  uint32_t acquireEvent(bool timed) const override { return acquire_event(timed); }
  void releaseEvent(uint32_t event) const override { release_event(event); }
  void recordEvent(uint32_t event) const override { record_event(event); }
  void waitForEvent(uint32_t event) const override { wait_for_event(event); }
  void synchronizeEvent(uint32_t event) const override { synchronize_event(event); }
  bool queryEvent(uint32_t event) const override { return query_event(event); }
  double elapsedTimeOfEvents(uint32_t start, uint32_t end) const override { return elapsed_milliseconds(start, end); }

 private:
  static at::mps::MPSStream& stream() { return *at::mps::getDefaultMPSStream(); }
  static c10::DeviceIndex check(c10::DeviceIndex device) {
    TORCH_CHECK(device == kDevice || device == -1, "there is one mps device, and it has the index 0, not ",
                (int)device);
    return kDevice;
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::MPS;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return mps_device(); }
  c10::Device getDevice() const override { return mps_device(); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_mps(), "expected an mps device, got ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, mps_device()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override {
    synchronize();
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (!*event) *event = (void*)(uintptr_t)acquire_event(flag == c10::EventFlag::BACKEND_DEFAULT);
    record_event(number(*event));
  }
  void block(void* event, const c10::Stream&) const override {
    if (event) wait_for_event(number(event));
  }
  bool queryEvent(void* event) const override { return !event || query_event(number(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) synchronize_event(number(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event) release_event(number(event));
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    return elapsed_milliseconds(number(start), number(end));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }

 private:
  static uint32_t number(void* event) { return (uint32_t)(uintptr_t)event; }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)

// torch makes its hooks object once, when first asked whether there is MPS, and may have been asked before we came:
// the object it then made has no members, so that ours can take its place.
static const bool hooks_in_place = [] {
  static_assert(sizeof(Hooks) == sizeof(at::MPSHooksInterface));
  const at::MPSHooksInterface& hooks = at::detail::getMPSHooks();
  if (!hooks.hasMPS()) new (const_cast<at::MPSHooksInterface*>(&hooks)) Hooks;
  return true;
}();

}  // namespace metalsim
