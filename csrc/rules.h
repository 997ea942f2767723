// Every decision about how a product is carried out, as pure functions.
#pragma once

#include <cstdint>

namespace qmm {

// Tokens up to which `linear` takes the vector kernel on the CPU; from there on the matrix kernel, which unpacks a
// panel of rows once for all tokens and lets the processor's GEMM do the rest.
inline constexpr int64_t kCpuVectorTokens = 8;

inline bool cpu_prefers_vector(int64_t tokens) { return tokens <= kCpuVectorTokens; }

// Rows of the panel that the CPU's matrix kernel unpacks at a time: as many as fit `kCpuPanelBytes`, at least 16, so
// that the extra memory stays bounded whatever the weight's size, and the GEMM still has work for every thread.
inline constexpr int64_t kCpuPanelBytes = 4 << 20;

inline int64_t cpu_panel_rows(int64_t rows, int64_t K, int64_t element_bytes) {
  const int64_t fitting = K > 0 ? kCpuPanelBytes / (K * element_bytes) : rows;
  const int64_t panel = fitting < 16 ? 16 : fitting / 16 * 16;
  return panel < rows ? panel : rows;
}

}  // namespace qmm
