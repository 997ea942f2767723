// What torch's own Python module has on a Mac only: shaders compiled from Python, and a few facts about the device.
#include <ATen/mps/MPSDevice.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/extension.h>

#include "device.h"

namespace py = pybind11;
using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;

namespace {

template <typename T>
void set_number(MetalKernelFunction& kernel, unsigned index, py::handle value) {
  T number = py::cast<T>(value);
  kernel.setArg(index, &number, sizeof number);
}
template <typename T>
void set_rounded(MetalKernelFunction& kernel, unsigned index, py::handle value) {
  T number = (T)py::cast<float>(value);
  kernel.setArg(index, &number, sizeof number);
}
template <typename T>
void set_numbers(MetalKernelFunction& kernel, unsigned index, py::handle values) {
  kernel.setArg(index, py::cast<std::vector<T>>(values));
}

using Setter = void (*)(MetalKernelFunction&, unsigned, py::handle);
// The names that torch.mps.compile_shader's arg_casts takes.
Setter cast_setter(const std::string& name) {
  static const std::unordered_map<std::string, Setter> setters = {
      {"fp16", set_rounded<at::Half>},  {"bf16", set_rounded<at::BFloat16>}, {"fp32", set_number<float>},
      {"int8", set_number<int8_t>},     {"uint8", set_number<uint8_t>},      {"int16", set_number<int16_t>},
      {"uint16", set_number<uint16_t>}, {"int32", set_number<int32_t>},      {"uint32", set_number<uint32_t>},
      {"int64", set_number<int64_t>},   {"uint64", set_number<uint64_t>},
  };
  auto found = setters.find(name);
  TORCH_CHECK(found != setters.end(), "Unsupported cast instruction ", name);
  return found->second;
}

// arg_casts is nothing, one name for all numbers, or names by argument.
std::optional<std::string> cast_for(const py::object& casts, unsigned index) {
  if (casts.is_none()) return std::nullopt;
  if (py::isinstance<py::str>(casts)) return py::cast<std::string>(casts);
  TORCH_CHECK(py::isinstance<py::dict>(casts), "arg_casts must be a string or a dictionary, not ",
              py::str(py::type::of(casts)));
  py::dict names = casts;
  py::int_ key(index);
  return names.contains(key) ? std::optional(py::cast<std::string>(names[key])) : std::nullopt;
}

bool all_integers(py::handle values) {
  return std::all_of(values.begin(), values.end(), [](py::handle each) { return PyLong_Check(each.ptr()); });
}

void set_argument(MetalKernelFunction& kernel, unsigned index, py::handle value, const py::object& casts) {
  if (auto name = cast_for(casts, index)) {
    auto* setter = cast_setter(*name);
    if (!py::isinstance<py::sequence>(value)) return setter(kernel, index, value);
    TORCH_CHECK(*name == "int32" || *name == "fp32", "a list can be cast to int32 or fp32 only, not to ", *name);
    return *name == "int32" ? set_numbers<int32_t>(kernel, index, value) : set_numbers<float>(kernel, index, value);
  }
  if (PyBool_Check(value.ptr())) return set_number<bool>(kernel, index, value);
  if (PyLong_Check(value.ptr())) return set_number<int64_t>(kernel, index, value);
  if (PyFloat_Check(value.ptr())) return set_number<float>(kernel, index, value);
  bool list = py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value);
  TORCH_CHECK_TYPE(list && py::len(value) > 0, "Unexpected argument type ",
                   py::cast<std::string>(py::str(py::type::of(value))), " at ", index);
  return all_integers(value) ? set_numbers<int64_t>(kernel, index, value) : set_numbers<float>(kernel, index, value);
}

std::optional<std::vector<uint64_t>> sizes_from(const py::object& given, const char* what) {
  if (given.is_none()) return std::nullopt;
  if (PyLong_Check(given.ptr())) return std::vector<uint64_t>{py::cast<uint64_t>(given)};
  auto sizes = py::cast<std::vector<uint64_t>>(given);
  TORCH_CHECK(!sizes.empty() && sizes.size() < 4, what, " must have one to three extents, got ", sizes.size());
  return sizes;
}

void call(MetalKernelFunction& kernel, const py::args& args, const py::object& threads_given,
          const py::object& group_given, const py::object& casts, std::optional<unsigned> error_index) {
  auto threads = sizes_from(threads_given, "threads");
  auto group = sizes_from(group_given, "group_size");
  kernel.runCommandBlock([&] {
    kernel.startEncoding();
    for (unsigned index = 0; index < args.size(); index++) {
      py::object value = args[index];
      if (!THPVariable_Check(value.ptr())) {
        set_argument(kernel, index, value, casts);
        continue;
      }
      const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
      kernel.setArg(index, tensor);
      if (!threads) threads = std::vector<uint64_t>{(uint64_t)tensor.numel()};
    }
    if (error_index) kernel.setErrorBufferIndex(*error_index);
    TORCH_CHECK(threads, "Number of threads is undefined: no argument is a tensor");
    for (uint64_t extent : *threads)
      if (!extent) return;
    kernel.dispatch(*threads, group ? c10::OptionalArrayRef<uint64_t>(*group) : std::nullopt);
  });
}

py::object host_alias_storage(const py::object& storage) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage.ptr()), "expected an UntypedStorage");
  c10::Storage alias = metalsim::allocator().getHostAliasStorage(THPStorage_Unpack(storage.ptr()));
  return py::reinterpret_steal<py::object>(THPStorage_Wrap(std::move(alias)));
}

[[noreturn]] void refuse_metallib(const py::object&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "metalsim compiles Metal source; it cannot run a compiled .metallib");
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // torch's errors as torch's own functions raise them: SyntaxError, TypeError and so on.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(error);
    }
  });
  py::class_<MetalKernelFunction, std::shared_ptr<MetalKernelFunction>>(m, "_mps_MetalKernel")
      .def("__call__", &call, py::kw_only(), py::arg("threads") = py::none(), py::arg("group_size") = py::none(),
           py::arg("arg_casts") = py::none(), py::arg("error_buf_idx") = py::none())
      .def_property_readonly("max_threads_per_threadgroup", &MetalKernelFunction::getMaxThreadsPerThreadgroup)
      .def_property_readonly("thread_execution_width", &MetalKernelFunction::getThreadExecutionWidth)
      .def_property_readonly("static_thread_group_memory_length",
                             &MetalKernelFunction::getStaticThreadGroupMemoryLength);
  py::class_<DynamicMetalShaderLibrary, std::shared_ptr<DynamicMetalShaderLibrary>>(m, "_mps_ShaderLibrary")
      .def("__getattr__",
           [](DynamicMetalShaderLibrary& self, const std::string& name) {
             if (!self.hasFunction(name)) throw py::attribute_error("no kernel '" + name + "' in this library");
             return self.getKernelFunction(name);
           })
      .def("__dir__", &DynamicMetalShaderLibrary::getFunctionNames);
  m.def("_mps_compileShader",
        [](const std::string& source) { return std::make_shared<DynamicMetalShaderLibrary>(source); });
  m.def("_mps_loadMetalllib", &refuse_metallib);
  m.def("_mps_loadMetallibFromPath", &refuse_metallib);
  m.def("_mps_get_name", [] { return at::mps::MPSDevice::getInstance()->getName(); });
  m.def("_mps_get_core_count", [] { return at::mps::MPSDevice::getInstance()->getCoreCount(); });
  m.def("_mps_host_alias_storage", &host_alias_storage);
  // Captures are for Xcode.
  m.def("_mps_isCaptureEnabled", [] { return false; });
  m.def("_mps_isCapturing", [] { return false; });
}
