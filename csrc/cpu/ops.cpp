// The operators on the CPU: argument checks, memory, threads. The arithmetic is in kernels.h (packed rows) and in
// torch's own GEMM.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "../checks.h"
#include "../rules.h"
#include "kernels.h"

namespace qmm::cpu {
namespace {

using OptTensor = std::optional<Tensor>;

// Weights below which a second thread costs more than it saves.
constexpr int64_t kGrainWeights = 1 << 15;

int64_t grain(int64_t weights_per_item) {
  return std::max<int64_t>(1, kGrainWeights / std::max<int64_t>(1, weights_per_item));
}

const FormatKernels& kernels_of(const FormatInfo& format) { return format_kernels(static_cast<Format>(format.id)); }

const uint8_t* bytes_of(const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); }

std::vector<int64_t> with_last(const Tensor& t, int64_t last) {
  std::vector<int64_t> shape(t.sizes().begin(), t.sizes().end());
  shape.back() = last;
  return shape;
}

int64_t rows_before_last(const Tensor& t) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) rows *= t.size(d);
  return rows;
}

Tensor new_tensor(const std::vector<int64_t>& shape, ScalarType dtype) {
  return torch::stable::empty(shape, dtype, std::nullopt, torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

// The same values as a contiguous matrix [rows, columns] of `dtype`; shares memory where nothing has to change.
// float32 sits on one side of every conversion made here, the other two dtypes never meet.
Tensor as_matrix(const Tensor& t, int64_t rows, int64_t columns, ScalarType dtype) {
  Tensor source = torch::stable::contiguous(t);
  if (t.scalar_type() == dtype) return torch::stable::view(source, {rows, columns});
  Tensor result = new_tensor({rows, columns}, dtype);
  const ConvertKernels& convert = convert_kernels();
  const auto wide = [&](void (*f)(const uint16_t*, int64_t, float*)) {
    const auto* in = static_cast<const uint16_t*>(source.const_data_ptr());
    auto* out = static_cast<float*>(result.mutable_data_ptr());
    torch::stable::parallel_for(0, rows * columns, kGrainWeights,
                                [&](int64_t begin, int64_t end) { f(in + begin, end - begin, out + begin); });
  };
  const auto narrow = [&](void (*f)(const float*, int64_t, uint16_t*)) {
    const auto* in = static_cast<const float*>(source.const_data_ptr());
    auto* out = static_cast<uint16_t*>(result.mutable_data_ptr());
    torch::stable::parallel_for(0, rows * columns, kGrainWeights,
                                [&](int64_t begin, int64_t end) { f(in + begin, end - begin, out + begin); });
  };
  if (t.scalar_type() == ScalarType::Half)
    wide(convert.f16_to_f32);
  else if (t.scalar_type() == ScalarType::BFloat16)
    wide(convert.bf16_to_f32);
  else if (dtype == ScalarType::Half)
    narrow(convert.f32_to_f16);
  else
    narrow(convert.f32_to_bf16);
  return result;
}

void unpack(const FormatInfo& format, const uint8_t* packed, int64_t blocks, void* out, ScalarType dtype) {
  const FormatKernels& kernels = kernels_of(format);
  if (dtype == ScalarType::Float)
    kernels.dequantize_f32(packed, blocks, static_cast<float*>(out));
  else if (dtype == ScalarType::Half)
    kernels.dequantize_f16(packed, blocks, static_cast<uint16_t*>(out));
  else
    kernels.dequantize_bf16(packed, blocks, static_cast<uint16_t*>(out));
}

int64_t dtype_bytes(ScalarType dtype) { return dtype == ScalarType::Float ? 4 : 2; }

void unpack_parallel(const FormatInfo& format, const uint8_t* packed, int64_t blocks, void* out, ScalarType dtype) {
  const int64_t block_out = format.block_weights * dtype_bytes(dtype);
  torch::stable::parallel_for(0, blocks, grain(format.block_weights), [&](int64_t begin, int64_t end) {
    unpack(format, packed + begin * format.block_bytes, end - begin, static_cast<char*>(out) + begin * block_out,
           dtype);
  });
}

// A checked product of M tokens with the N x K weight.
struct Product {
  const FormatInfo& format;
  int64_t M, N, K;
};

Product check_product(const char* op, const Tensor& x, const Tensor& weight, int64_t format_id, const OptTensor& scales,
                      const OptTensor& biases) {
  const FormatInfo& format = check_format(op, format_id);
  check_no_scales(op, format, scales, biases);
  check_weight(op, weight, format, 2, 2);
  const int64_t K = format.row_weights(weight.size(1));
  check_activation(op, "x", x, "K", K, format);
  check_same_device(op, "weight", weight, "x", x);
  return {format, rows_before_last(x), weight.size(0), K};
}

// y [M, N] = x W^T + bias with each packed row read once per group of tokens.
Tensor vector_product(const Product& p, const Tensor& x, const Tensor& weight, const OptTensor& bias) {
  const Tensor x32 = as_matrix(x, p.M, p.K, ScalarType::Float);
  Tensor y = new_tensor({p.M, p.N}, ScalarType::Float);
  const int64_t row_bytes = weight.size(1);
  const MulMvArgs whole{bytes_of(weight),
                        row_bytes,
                        p.N,
                        static_cast<const float*>(x32.const_data_ptr()),
                        p.K,
                        p.M,
                        static_cast<float*>(y.mutable_data_ptr()),
                        p.N,
                        p.K};
  const auto mul_mv = kernels_of(p.format).mul_mv;
  OptTensor bias32;
  if (bias.has_value()) bias32 = as_matrix(*bias, 1, p.N, ScalarType::Float);
  const float* b = bias32.has_value() ? static_cast<const float*>(bias32->const_data_ptr()) : nullptr;

  torch::stable::parallel_for(0, p.N, grain(p.K * std::max<int64_t>(1, p.M)), [&](int64_t begin, int64_t end) {
    MulMvArgs part = whole;
    part.weight += begin * row_bytes;
    part.rows = end - begin;
    part.y += begin;
    mul_mv(part);
    if (b == nullptr) return;
    for (int64_t m = 0; m < p.M; ++m) {
      float* row = whole.y + m * p.N;
      for (int64_t n = begin; n < end; ++n) row[n] += b[n];
    }
  });
  return as_matrix(y, p.M, p.N, x.scalar_type());
}

// Memory for one panel, kept for the thread's next call: panels are as large as what the C library hands back to the
// system at once, and faulting 4 MiB in anew took longer than the whole product of 48 tokens (4096 x 2560, bfloat16).
void* panel_memory(int64_t bytes) {
  thread_local std::unique_ptr<std::byte[]> memory;
  thread_local int64_t capacity = 0;
  if (capacity < bytes) {
    memory.reset(new std::byte[bytes]);
    capacity = bytes;
  }
  return memory.get();
}

// A view of plain memory. Made by hand and not by slicing a tensor, because it is needed in worker threads, which do
// not inherit torch's modes (inference mode, say) from the caller.
Tensor matrix_view(void* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride,
                   ScalarType dtype) {
  return torch::stable::from_blob(data, {rows, columns}, {row_stride, column_stride},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), dtype);
}

// `rows` rows of the weight from row `first` on, as values of `dtype`: unpacked into this thread's panel, or the
// weight's own memory where it already holds plain values of that dtype.
void* unpack_rows(const Product& p, const Tensor& weight, int64_t first, int64_t rows, ScalarType dtype) {
  auto* packed = const_cast<uint8_t*>(bytes_of(weight)) + first * weight.size(1);
  const bool plain = (p.format.id == static_cast<int64_t>(Format::F32) && dtype == ScalarType::Float) ||
                     (p.format.id == static_cast<int64_t>(Format::BF16) && dtype == ScalarType::BFloat16);
  if (plain) return packed;
  void* panel = panel_memory(rows * p.K * dtype_bytes(dtype));
  unpack(p.format, packed, rows * (p.K / p.format.block_weights), panel, dtype);
  return panel;
}

char* column_of(const Tensor& matrix, int64_t column) {
  return static_cast<char*>(matrix.mutable_data_ptr()) + column * dtype_bytes(matrix.scalar_type());
}

// y[:, first : first + rows] = x (those rows of W)^T + bias, on this thread: inside parallel_for torch's GEMM is
// serial.
void multiply_panel(const Product& p, const Tensor& x, const Tensor& weight, const OptTensor& bias, const Tensor& y,
                    int64_t first, int64_t rows) {
  const ScalarType dtype = x.scalar_type();
  const Tensor panel = matrix_view(unpack_rows(p, weight, first, rows, dtype), p.K, rows, 1, p.K, dtype);  // transposed
  const Tensor x_view = matrix_view(x.mutable_data_ptr(), p.M, p.K, p.K, 1, dtype);
  const Tensor out = matrix_view(column_of(y, first), p.M, rows, p.N, 1, dtype);
  if (bias.has_value()) {
    const Tensor bias_part = matrix_view(column_of(*bias, first), 1, rows, rows, 1, dtype);
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(out.get(), bias_part.get(), x_view.get(), panel.get(), 1.0, 1.0));
  } else {
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(out.get(), x_view.get(), panel.get()));
  }
}

// y [M, N] = x W^T + bias: each thread unpacks a panel of rows at a time and multiplies it by torch's GEMM, in bfloat16
// where x is bfloat16, else in float32 (float16 has no fast GEMM on most processors and would round the weights).
// Threads do not share panels: where cores do not share a cache, passing each panel from the one that unpacked it to
// the other cost up to as much again as the GEMM.
Tensor matrix_product(const Product& p, const Tensor& x, const Tensor& weight, const OptTensor& bias) {
  const ScalarType dtype = x.scalar_type() == ScalarType::BFloat16 ? ScalarType::BFloat16 : ScalarType::Float;
  const Tensor xm = as_matrix(x, p.M, p.K, dtype);
  const Tensor y = new_tensor({p.M, p.N}, dtype);
  OptTensor bias_row;
  if (bias.has_value()) bias_row = as_matrix(*bias, 1, p.N, dtype);
  const int64_t panel_rows = cpu_panel_rows(p.N, p.K, dtype_bytes(dtype), torch::stable::get_num_threads());
  const int64_t panels = (p.N + panel_rows - 1) / panel_rows;
  torch::stable::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * panel_rows;
      multiply_panel(p, xm, weight, bias_row, y, first, std::min(panel_rows, p.N - first));
    }
  });
  return as_matrix(y, p.M, p.N, x.scalar_type());
}

Tensor run_product(const Product& p, const Tensor& x, const Tensor& weight, const OptTensor& bias, bool vector) {
  if (p.M == 0 || p.N == 0) return new_tensor(with_last(x, p.N), x.scalar_type());
  const Tensor y = vector || p.K == 0 ? vector_product(p, x, weight, bias) : matrix_product(p, x, weight, bias);
  return torch::stable::view(y, with_last(x, p.N));
}

Tensor mul_mv(const Tensor& x, const Tensor& weight, int64_t format, const OptTensor& scales, const OptTensor& biases) {
  const Product p = check_product("mul_mv", x, weight, format, scales, biases);
  return run_product(p, x, weight, std::nullopt, true);
}

// The tile belongs to the GPU kernel: here it is only checked, so that a program behaves alike on every device.
Tensor mul_mm(const Tensor& x, const Tensor& weight, int64_t format, const OptTensor& scales, const OptTensor& biases,
              std::optional<int64_t> tile) {
  const Product p = check_product("mul_mm", x, weight, format, scales, biases);
  check_tile("mul_mm", tile);
  return run_product(p, x, weight, std::nullopt, false);
}

Tensor linear(const Tensor& x, const Tensor& weight, int64_t format, const OptTensor& scales, const OptTensor& biases,
              const OptTensor& bias) {
  const Product p = check_product("linear", x, weight, format, scales, biases);
  if (bias.has_value()) check_bias("linear", *bias, x, p.N);
  const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
  return run_product(p, x, weight, bias, cpu_prefers_vector(static_cast<Format>(format), p.M, bfloat16));
}

// grad [..., N] -> grad W [..., K], accumulated in float32 over the panels.
Tensor mul_mm_t(const Tensor& grad, const Tensor& weight, int64_t format_id, const OptTensor& scales,
                const OptTensor& biases) {
  const char* op = "mul_mm_t";
  const FormatInfo& format = check_format(op, format_id);
  check_no_scales(op, format, scales, biases);
  check_weight(op, weight, format, 2, 2);
  const Product p{format, rows_before_last(grad), weight.size(0), format.row_weights(weight.size(1))};
  check_activation(op, "grad", grad, "N", p.N, format);
  check_same_device(op, "weight", weight, "grad", grad);

  const Tensor g = as_matrix(grad, p.M, p.N, ScalarType::Float);
  Tensor sum = new_tensor({p.M, p.K}, ScalarType::Float);
  torch::stable::zero_(sum);
  const int64_t panel_rows = cpu_panel_rows(p.N, p.K, dtype_bytes(ScalarType::Float), 1);
  for (int64_t first = 0; first < p.N && p.M > 0 && p.K > 0; first += panel_rows) {
    const int64_t rows = std::min(panel_rows, p.N - first);
    const Tensor panel =
        matrix_view(unpack_rows(p, weight, first, rows, ScalarType::Float), rows, p.K, p.K, 1, ScalarType::Float);
    const Tensor g_part = matrix_view(column_of(g, first), p.M, rows, p.N, 1, ScalarType::Float);
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(sum.get(), sum.get(), g_part.get(), panel.get(), 1.0, 1.0));
  }
  return torch::stable::view(as_matrix(sum, p.M, p.K, grad.scalar_type()), with_last(grad, p.K));
}

Tensor embedding(const Tensor& ids, const Tensor& weight, int64_t format_id, const OptTensor& scales,
                 const OptTensor& biases, ScalarType dtype) {
  const char* op = "embedding";
  const FormatInfo& format = check_format(op, format_id);
  check_no_scales(op, format, scales, biases);
  check_ids(op, ids);
  check_weight(op, weight, format, 2, 2);
  check_same_device(op, "weight", weight, "ids", ids);
  check_output_dtype(op, dtype);

  const int64_t N = weight.size(0), row_bytes = weight.size(1), K = format.row_weights(row_bytes);
  const Tensor wide = torch::stable::contiguous(torch::stable::to(ids, ScalarType::Long));
  const auto* id = static_cast<const int64_t*>(wide.const_data_ptr());
  const int64_t count = wide.numel();
  for (int64_t i = 0; i < count; ++i) {
    QMM_CHECK(id[i] >= 0 && id[i] < N, op, "ids: got ", id[i], " at position ", i, ", want 0 <= id < ", N,
              ", the rows of the weight");
  }
  std::vector<int64_t> shape(ids.sizes().begin(), ids.sizes().end());
  shape.push_back(K);
  Tensor out = new_tensor(shape, dtype);
  char* rows = static_cast<char*>(out.mutable_data_ptr());
  torch::stable::parallel_for(0, count, grain(K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      unpack(format, bytes_of(weight) + id[i] * row_bytes, K / format.block_weights, rows + i * K * dtype_bytes(dtype),
             dtype);
    }
  });
  return out;
}

Tensor dequantize(const Tensor& weight, int64_t format_id, const OptTensor& scales, const OptTensor& biases,
                  ScalarType dtype) {
  const char* op = "dequantize";
  const FormatInfo& format = check_format(op, format_id);
  check_no_scales(op, format, scales, biases);
  check_weight(op, weight, format, 1, 64);
  check_output_dtype(op, dtype);
  Tensor out = new_tensor(with_last(weight, format.row_weights(weight.size(weight.dim() - 1))), dtype);
  unpack_parallel(format, bytes_of(weight), weight.numel() / format.block_bytes, out.mutable_data_ptr(), dtype);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(qmm, CPU, m) {
  m.impl("mul_mv", TORCH_BOX(&mul_mv));
  m.impl("mul_mm", TORCH_BOX(&mul_mm));
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("mul_mm_t", TORCH_BOX(&mul_mm_t));
  m.impl("embedding", TORCH_BOX(&embedding));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}

}  // namespace qmm::cpu
