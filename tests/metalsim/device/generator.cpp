// The random number generator: torch draws on the CPU, so seeds give the CPU's numbers, not those of a Mac's GPU.
#include <ATen/CPUGeneratorImpl.h>

#include "device.h"

namespace metalsim {

struct GeneratorImpl final : c10::GeneratorImpl {
  at::Generator cpu = at::detail::createCPUGenerator();

  GeneratorImpl() : c10::GeneratorImpl(mps_device(), c10::DispatchKeySet(c10::DispatchKey::MPS)) {}

  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK_NOT_IMPLEMENTED(false, "metalsim's generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK_NOT_IMPLEMENTED(false, "metalsim's generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    at::Tensor copy = at::empty({(int64_t)state.numel()}, at::kByte);
    memcpy(copy.data_ptr(), state.data(), state.numel());
    cpu.set_state(copy);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.get_state().getIntrusivePtr(); }
  GeneratorImpl* clone_impl() const override {
    auto* twin = new GeneratorImpl;
    twin->cpu = cpu.clone();
    return twin;
  }
};

at::Generator new_generator() { return at::make_generator<GeneratorImpl>(); }
const at::Generator& default_generator() {
  static auto* generator = new at::Generator(new_generator());
  return *generator;
}
at::Generator cpu_generator(const at::Generator& mps) {
  return static_cast<GeneratorImpl*>(mps.unsafeGetGeneratorImpl())->cpu;
}

}  // namespace metalsim
