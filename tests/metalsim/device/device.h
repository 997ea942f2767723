// What the parts of the simulated `mps` device share.
#pragma once
#include <ATen/ATen.h>
#include <ATen/mps/MPSAllocatorInterface.h>

namespace metalsim {

constexpr c10::DeviceIndex kDevice = 0;
inline c10::Device mps_device() { return {c10::DeviceType::MPS, kDevice}; }

// Waits until all work handed to the stream is done, and raises what a kernel reported.
void synchronize();

// allocator.mm
at::mps::IMPSAllocator& allocator();
void set_memory_fraction(double fraction);
size_t max_buffer_length();
// A CPU tensor on the memory of a tensor on `mps`; other tensors as they are. The caller has synchronized.
at::Tensor host_view(const at::Tensor& tensor);

// generator.cpp. Random numbers are drawn on the CPU, by the generator that stands behind each one of ours.
const at::Generator& default_generator();
at::Generator new_generator();
at::Generator cpu_generator(const at::Generator& mps);

// events.mm. Marks in the stream, by number; for torch.mps.Event and torch.Event.
uint32_t acquire_event(bool timed);
void release_event(uint32_t event);
void record_event(uint32_t event);
void wait_for_event(uint32_t event);
void synchronize_event(uint32_t event);
bool query_event(uint32_t event);
double elapsed_milliseconds(uint32_t start, uint32_t end);

}  // namespace metalsim
