// F32, F16, BF16: plain values. A block is one value, so the kernels take 32 at a time and a tail.
#pragma once

#include "../simd.h"

namespace qmm::cpu::QMM_ISA {

struct F32 {
  static constexpr int kWeights = 1, kBytes = 4;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float* values = reinterpret_cast<const float*>(block);
    sink(load(values), load(values + 16), 0);
  }
};

struct F16 {
  static constexpr int kWeights = 1, kBytes = 2;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(block);
    sink(load_f16(values), load_f16(values + 16), 0);
  }
};

struct BF16 {
  static constexpr int kWeights = 1, kBytes = 2;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(block);
    sink(load_bf16(values), load_bf16(values + 16), 0);
  }
};

}  // namespace qmm::cpu::QMM_ISA
