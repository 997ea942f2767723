// The CPU kernels' interface: plain functions over packed rows, one set a format and instruction set.
// No torch here: the kernels are compiled once an instruction set (kernels_*.cpp) and chosen at run time.
#pragma once

#include <cstdint>

#include "../formats.h"

namespace qmm::cpu {

// One call of a vector kernel: y[m * y_stride + r] = sum over k of w[r][k] * x[m * x_stride + k]
// for rows r in [0, rows) and tokens m in [0, tokens). All accumulation is float32.
struct MulMvArgs {
  const uint8_t* weight;  // first packed row, aligned as checks.h wants it
  int64_t row_bytes;      // bytes from one packed row to the next
  int64_t rows;
  const float* x;
  int64_t x_stride;  // elements from one token to the next
  int64_t tokens;
  float* y;
  int64_t y_stride;
  int64_t K;
};

// What one format can do on one instruction set. `out` arrays hold `blocks * block_weights` values.
struct FormatKernels {
  void (*dequantize_f32)(const uint8_t* packed, int64_t blocks, float* out);
  void (*dequantize_f16)(const uint8_t* packed, int64_t blocks, uint16_t* out);
  void (*dequantize_bf16)(const uint8_t* packed, int64_t blocks, uint16_t* out);
  void (*mul_mv)(const MulMvArgs& args);
};

// Element conversions, round to nearest even, on one instruction set.
struct ConvertKernels {
  void (*f16_to_f32)(const uint16_t* in, int64_t n, float* out);
  void (*bf16_to_f32)(const uint16_t* in, int64_t n, float* out);
  void (*f32_to_f16)(const float* in, int64_t n, uint16_t* out);
  void (*f32_to_bf16)(const float* in, int64_t n, uint16_t* out);
};

// The kernels of the instruction set in force: the best the processor has, unless set_isa() chose another.
const FormatKernels& format_kernels(Format format);
const ConvertKernels& convert_kernels();

// Names of the instruction sets that this processor can run, best first: "avx512", "avx2", "neon", "generic".
// Fills at most `capacity` entries and returns how many there are.
int available_isas(const char** names, int capacity);
const char* current_isa();
// Returns false, and changes nothing, if this processor cannot run `name`.
bool set_isa(const char* name);

}  // namespace qmm::cpu
