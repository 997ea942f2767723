// The C++ view of the table of weight formats in torch_qmm/formats.py (tests/test_formats.py holds the two
// against each other): name, id, weights per block, bytes per block.
#pragma once

#include <cstdint>

// clang-format off
#define QMM_FORMATS(X)       \
  X(F32, 0, 1, 4)            \
  X(F16, 1, 1, 2)            \
  X(Q4_0, 2, 32, 18)         \
  X(Q4_1, 3, 32, 20)         \
  X(Q5_0, 6, 32, 22)         \
  X(Q5_1, 7, 32, 24)         \
  X(Q8_0, 8, 32, 34)         \
  X(Q2_K, 10, 256, 84)       \
  X(Q3_K, 11, 256, 110)      \
  X(Q4_K, 12, 256, 144)      \
  X(Q5_K, 13, 256, 176)      \
  X(Q6_K, 14, 256, 210)      \
  X(IQ2_XXS, 16, 256, 66)    \
  X(IQ2_XS, 17, 256, 74)     \
  X(IQ3_XXS, 18, 256, 98)    \
  X(IQ1_S, 19, 256, 50)      \
  X(IQ4_NL, 20, 32, 18)      \
  X(IQ3_S, 21, 256, 110)     \
  X(IQ2_S, 22, 256, 82)      \
  X(IQ4_XS, 23, 256, 136)    \
  X(IQ1_M, 29, 256, 56)      \
  X(BF16, 30, 1, 2)          \
  X(TQ1_0, 34, 256, 54)      \
  X(TQ2_0, 35, 256, 66)      \
  X(MXFP4, 39, 32, 17)       \
  X(NVFP4, 40, 64, 36)       \
  X(Q1_0, 41, 128, 18)
// clang-format on

namespace qmm {

enum class Format : int64_t {
#define QMM_ENUM(name, id, weights, bytes) name = id,
  QMM_FORMATS(QMM_ENUM)
#undef QMM_ENUM
};

struct FormatInfo {
  const char* name;
  int64_t id;
  int64_t block_weights;
  int64_t block_bytes;

  int64_t row_bytes(int64_t K) const { return K / block_weights * block_bytes; }
  int64_t row_weights(int64_t bytes) const { return bytes / block_bytes * block_weights; }
};

inline constexpr FormatInfo kFormats[] = {
#define QMM_ROW(name, id, weights, bytes) {#name, id, weights, bytes},
    QMM_FORMATS(QMM_ROW)
#undef QMM_ROW
};

// The row of the table with this id, or nullptr.
inline const FormatInfo* find_format(int64_t id) {
  for (const FormatInfo& info : kFormats) {
    if (info.id == id) return &info;
  }
  return nullptr;
}

}  // namespace qmm
