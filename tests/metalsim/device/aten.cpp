// torch's operators on `mps`: making, viewing and copying tensors here, everything else by the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorShape.h>
#include <torch/library.h>

#include "device.h"

namespace metalsim {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

at::ScalarType checked_dtype(optional<at::ScalarType> dtype) {
  at::ScalarType type = c10::dtype_or_default(dtype);
  TORCH_CHECK_TYPE(type != at::kDouble && type != at::kComplexDouble,
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please "
                   "use float32 instead.");
  return type;
}
void check_device(optional<c10::Device> device) {
  TORCH_CHECK(!device || device->index() <= kDevice, "there is one mps device, and it has the index 0, not ",
              device ? (int)device->index() : 0);
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<c10::Device> device,
             optional<bool> pinned, optional<at::MemoryFormat> format) {
  check_device(device);
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::MPS), checked_dtype(dtype),
                                   format);
}
Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<c10::Device> device, optional<bool> pinned) {
  check_device(device);
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_strided_generic(size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::MPS),
                                           checked_dtype(dtype));
}

Tensor& copy(Tensor& self, const Tensor& source, bool) {
  synchronize();
  Tensor to = host_view(self);
  to.copy_(host_view(source));
  return self;
}
Tensor copy_from(const Tensor& source, const Tensor& destination, bool non_blocking) {
  Tensor to = destination;
  return copy(to, source, non_blocking);
}
Tensor copy_from_and_resize(const Tensor& source, const Tensor& destination) {
  if (destination.sizes() != source.sizes()) destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

// Grows the storage where it is too small, and keeps what it held.
void grow(const Tensor& tensor, int64_t elements) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  size_t held = storage->nbytes(), wanted = (size_t)elements * tensor.element_size();
  if (wanted <= held) return;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  synchronize();
  c10::DataPtr memory = allocator().allocate(wanted);
  if (held) allocator().copy_data(memory.get(), storage->data(), held);
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(wanted);
}
const Tensor& resize(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  for (int64_t extent : size) TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent);
  int64_t elements = c10::multiply_integers(size);
  if (elements) grow(self, elements + self.storage_offset());
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(storage.device().is_mps(),
              "Attempted to set the storage of a tensor on device \"mps:0\" to a storage on "
              "different device \"",
              storage.device(), "\"");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() && stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  return self;
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  int64_t elements = (int64_t)storage.nbytes() / self.element_size();
  return set_storage(self, std::move(storage), 0, {elements}, {});
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_nothing(Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}
Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

at::Scalar item(const Tensor& self) {
  synchronize();
  return host_view(self).item();
}
Tensor& fill(Tensor& self, const at::Scalar& value) {
  synchronize();
  host_view(self).fill_(value);
  return self;
}
Tensor& zero(Tensor& self) { return fill(self, 0); }

Tensor convolution(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  synchronize();
  optional<Tensor> host_bias = bias && bias->defined() ? optional<Tensor>(host_view(*bias)) : std::nullopt;
  return at::convolution(host_view(x), host_view(weight), host_bias, stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(x.device());
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  synchronize();
  auto [dx, dweight, dbias] =
      at::convolution_backward(host_view(grad), host_view(x), host_view(weight), std::nullopt, stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  auto back = [&](const Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dweight), back(dbias)};
}

// Of the two sides of a mixed call torch on a Mac takes numbers (0-d tensors) and indices from the CPU, nothing else.
void refuse_cpu_tensors(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const std::string& name = op.schema().name();
  if (name.find("index") != std::string::npos) return;
  auto check = [&](const Tensor& tensor, size_t argument) {
    TORCH_CHECK(!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu! (when "
                "checking argument ",
                op.schema().arguments()[argument].name(), " of ", name, ")");
  };
  for (size_t i = 0; i < arguments.size(); i++) {
    if (arguments[i].isTensor()) check(arguments[i].toTensor(), i);
    if (arguments[i].isTensorList())
      for (const Tensor& tensor : arguments[i].toTensorVector()) check(tensor, i);
  }
}

// torch picks a fused kernel by a table that has no entry for mps in its Linux build; this is the plain one.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                 double dropout, bool causal, optional<double> scale, bool grouped) {
  optional<Tensor> bias = mask;
  if (mask && mask->scalar_type() == at::kBool)
    bias = at::zeros_like(*mask, query.scalar_type()).masked_fill_(mask->logical_not(), -INFINITY);
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, bias, dropout, causal, std::nullopt, scale, grouped));
}

void fall_back_to_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  synchronize();
  size_t count = op.schema().arguments().size(), first = stack->size() - count;
  refuse_cpu_tensors(op, torch::jit::last(*stack, count));
  for (size_t i = first; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (value.isGenerator() && value.toGenerator().device().is_mps()) value = cpu_generator(value.toGenerator());
  }
  // Where no generator was given, torch takes the CPU's default one; ours must be drawn from instead.
  for (size_t i = 0; i < count; i++) {
    c10::IValue& value = (*stack)[first + i];
    bool generator = op.schema().arguments()[i].type()->str() == "Generator?";
    if (generator && value.isNone()) value = cpu_generator(default_generator());
  }
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, MPS, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back_to_cpu>()); }
TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_local_scalar_dense", &item);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("scaled_dot_product_attention", &attention);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) { m.impl("scaled_dot_product_attention", &attention); }

}  // namespace metalsim
