// Every decision about how a product is carried out, as pure functions.
#pragma once

#include <cstdint>

#include "formats.h"

namespace qmm {

// Formats that look 4 or 8 weights at a time up in a grid: the dearest to unpack.
inline bool is_grid_format(Format format) {
  switch (format) {
    case Format::IQ1_S:
    case Format::IQ1_M:
    case Format::IQ2_XXS:
    case Format::IQ2_XS:
    case Format::IQ2_S:
    case Format::IQ3_XXS:
    case Format::IQ3_S:
      return true;
    default:
      return false;
  }
}

// Whether `linear` takes the vector kernel on the CPU. It unpacks a weight once for 8 tokens, in registers or L1; the
// matrix kernel once for all tokens, into a panel in L2 for torch's GEMM. Time of the vector over that of the matrix
// kernel (AMD EPYC, AVX-512, 2 threads, N x K = 4096 x 2560):
//
//   tokens            8     9     12    16    20    24    28    32
//   Q4_K, float32    0.62  0.63  0.81  0.83  0.93  0.94  1.03  1.02
//   IQ3_XXS, float32 0.67  0.79  0.95  0.93  1.11  1.08  1.20  1.18
//   Q4_K, bfloat16   0.68  0.98  1.02  1.09  1.35  1.38  1.57  1.61     (the GEMM has bfloat16 instructions)
inline bool cpu_prefers_vector(Format format, int64_t tokens, bool bfloat16) {
  if (bfloat16) return tokens <= 8;
  return tokens <= (is_grid_format(format) ? 16 : 24);
}

// Rows of the panel that a thread of the CPU's matrix kernel unpacks at a time: what fits `kCpuPanelBytes`, a core's L2
// cache; but 64, since the GEMM reads all of x for each panel (16 rows of K = 9728 at 512 tokens took 1.3 times the
// time of 64), as far as `kCpuPanelMostBytes` go; but one. So the extra memory stays bounded, whatever the weight's
// size. Then evened out, so that all threads get as many.
inline constexpr int64_t kCpuPanelBytes = 1 << 20;
inline constexpr int64_t kCpuPanelMostBytes = 8 << 20;
inline constexpr int64_t kCpuPanelRows = 64;

inline int64_t cpu_panel_rows(int64_t rows, int64_t K, int64_t element_bytes, int64_t threads) {
  const int64_t row_bytes = K > 0 ? K * element_bytes : 1;
  const int64_t in_cache = kCpuPanelBytes / row_bytes, at_most = kCpuPanelMostBytes / row_bytes;
  int64_t most = in_cache >= kCpuPanelRows ? in_cache : at_most < kCpuPanelRows ? at_most : kCpuPanelRows;
  if (most < 1) most = 1;
  const int64_t rounds = rows > 0 ? (rows + most * threads - 1) / (most * threads) : 1;
  const int64_t even = (rows + rounds * threads - 1) / (rounds * threads);
  const int64_t step = most < 16 ? 1 : 16;  // the GEMM's own blocks are of 16 or less
  return even > step ? (even + step - 1) / step * step : step;
}

}  // namespace qmm
