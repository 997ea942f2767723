// Argument checks that every device's operators share. A failed check throws std::runtime_error, which torch
// shows as RuntimeError: "qmm::OP: ARGUMENT: got ..., want ...". All checks run before any work starts.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "formats.h"

namespace qmm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Args>
[[noreturn]] void fail(const char* op, const Args&... args) {
  std::ostringstream message;
  message << "qmm::" << op << ": ";
  (message << ... << args);
  throw std::runtime_error(message.str());
}

// Evaluates the message's arguments only when the check fails.
#define QMM_CHECK(condition, op, ...)                 \
  do {                                                \
    if (!(condition)) ::qmm::fail((op), __VA_ARGS__); \
  } while (false)

// As Python spells it, without "torch.".
inline const char* dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Double:
      return "float64";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(dtype);
  }
}

inline std::string shape_text(const Tensor& t) {
  std::string text = "[";
  for (int64_t d = 0; d < t.dim(); ++d) text += (d ? ", " : "") + std::to_string(t.size(d));
  return text + "]";
}

inline const char* device_name(const Tensor& t) {
  switch (t.device().type()) {
    case torch::headeronly::DeviceType::CPU:
      return "cpu";
    case torch::headeronly::DeviceType::MPS:
      return "mps";
    case torch::headeronly::DeviceType::CUDA:
      return "cuda";
    default:
      return "another device";
  }
}

inline bool is_activation_dtype(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

// Bytes of which a packed row's address must be a multiple, so that a block's halves can be loaded whole.
inline int64_t weight_alignment(const FormatInfo& format) {
  if (format.block_weights == 1) return format.block_bytes;
  return format.block_bytes % 2 == 0 ? 2 : 1;
}

inline const FormatInfo& check_format(const char* op, int64_t format) {
  const FormatInfo* info = find_format(format);
  QMM_CHECK(info != nullptr, op, "format: got id ", format, ", want one of torch_qmm.Format");
  return *info;
}

// GGUF formats keep their scales inside the block; formats with scales of their own have another family.
inline void check_no_scales(const char* op, const FormatInfo& format, const std::optional<Tensor>& scales,
                            const std::optional<Tensor>& biases) {
  QMM_CHECK(!scales.has_value(), op, "scales: got a tensor, want None: format ", format.name,
            " holds its scales in the packed blocks");
  QMM_CHECK(!biases.has_value(), op, "biases: got a tensor, want None: format ", format.name,
            " holds its offsets in the packed blocks");
}

// A packed weight [..., row bytes] of at least `min_dim` dimensions.
inline void check_weight(const char* op, const Tensor& weight, const FormatInfo& format, int64_t min_dim,
                         int64_t max_dim) {
  QMM_CHECK(weight.scalar_type() == ScalarType::Byte, op, "weight: got dtype ", dtype_name(weight.scalar_type()),
            ", want packed uint8 bytes");
  QMM_CHECK(weight.dim() >= min_dim && weight.dim() <= max_dim, op, "weight: got shape ", shape_text(weight),
            ", want [", (min_dim == max_dim ? "" : "..., "), "N, bytes per row]");
  QMM_CHECK(weight.size(weight.dim() - 1) % format.block_bytes == 0, op, "weight: got rows of ",
            weight.size(weight.dim() - 1), " bytes, want a multiple of ", format.block_bytes, ", the block of format ",
            format.name);
  QMM_CHECK(weight.is_contiguous(), op, "weight: got a non-contiguous tensor of shape ", shape_text(weight),
            ", want contiguous packed rows");
  const auto address = reinterpret_cast<uintptr_t>(weight.const_data_ptr());
  QMM_CHECK(address % weight_alignment(format) == 0, op, "weight: got data at an address that is not a multiple of ",
            weight_alignment(format), " bytes, want it aligned for format ", format.name);
}

inline void check_same_device(const char* op, const char* name, const Tensor& t, const char* other_name,
                              const Tensor& other) {
  QMM_CHECK(t.device() == other.device(), op, name, ": got device ", device_name(t), ", want that of ", other_name,
            ", ", device_name(other));
}

// x [..., width] against a checked weight. `name` is the argument's name, `axis` what its last axis stands for.
inline void check_activation(const char* op, const char* name, const Tensor& x, const char* axis, int64_t width,
                             const FormatInfo& format) {
  QMM_CHECK(is_activation_dtype(x.scalar_type()), op, name, ": got dtype ", dtype_name(x.scalar_type()),
            ", want float32, float16 or bfloat16");
  QMM_CHECK(x.dim() >= 1, op, name, ": got a 0-d tensor, want [..., ", axis, "] with ", axis, " = ", width);
  QMM_CHECK(x.size(x.dim() - 1) == width, op, name, ": got shape ", shape_text(x), ", want [..., ", axis, "] with ",
            axis, " = ", width, ", from the weight's rows of format ", format.name);
}

inline void check_bias(const char* op, const Tensor& bias, const Tensor& x, int64_t N) {
  QMM_CHECK(bias.dim() == 1 && bias.size(0) == N, op, "bias: got shape ", shape_text(bias), ", want [", N, "]");
  QMM_CHECK(bias.scalar_type() == x.scalar_type(), op, "bias: got dtype ", dtype_name(bias.scalar_type()),
            ", want that of x, ", dtype_name(x.scalar_type()));
  check_same_device(op, "bias", bias, "x", x);
}

inline void check_tile(const char* op, std::optional<int64_t> tile) {
  QMM_CHECK(!tile.has_value() || *tile == 32 || *tile == 64, op, "tile: got ", tile.value_or(0),
            ", want 32, 64 or None");
}

inline void check_output_dtype(const char* op, ScalarType dtype) {
  QMM_CHECK(is_activation_dtype(dtype), op, "dtype: got ", dtype_name(dtype), ", want float32, float16 or bfloat16");
}

inline void check_ids(const char* op, const Tensor& ids) {
  switch (ids.scalar_type()) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::UInt16:
    case ScalarType::UInt32:
    case ScalarType::UInt64:
      return;
    default:
      fail(op, "ids: got dtype ", dtype_name(ids.scalar_type()), ", want an integer dtype");
  }
}

}  // namespace qmm
