// What several families of formats share: scale arrays, unrolled steps, bit fields spread to bytes.
#pragma once

#include "../simd.h"

namespace qmm::cpu::QMM_ISA {

// The scales of a superblock's sub-blocks, computed all at once and stored; from there the processor broadcasts
// one in the load itself.
struct alignas(64) Scales {
  float of[16];
};

QMM_INLINE Scales scale_array(float d, Floats factors) {
  Scales scales;
  store(scales.of, mul(set1(d), factors));
  keep_in_memory(scales.of);
  return scales;
}

// Calls body.step<i>() for i = 0 .. kCount - 1: shifts by a compile-time count are cheaper, and bit_field checks
// its mask at compile time.
template <int kCount, int kFirst = 0, class Body>
QMM_INLINE void unroll(Body& body) {
  if constexpr (kFirst < kCount) {
    body.template step<kFirst>();
    unroll<kCount, kFirst + 1>(body);
  }
}

// Eight 4-bit fields -> eight bytes, by halving the distance three times.
QMM_INLINE uint64_t spread_4_bits(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}

// Eight 2-bit fields -> eight bytes.
QMM_INLINE uint64_t spread_2_bits(uint16_t word) {
  uint64_t x = word;
  x = (x | x << 24) & 0x000000ff000000ff;
  x = (x | x << 12) & 0x000f000f000f000f;
  return (x | x << 6) & 0x0303030303030303;
}

// Four 7-bit fields -> four bytes whose eighth bit makes the number of set bits even. IQ2_XXS, IQ2_XS and
// IQ3_XXS store the signs of 8 weights so.
QMM_INLINE uint32_t even_parity(uint32_t seven) {
  uint32_t fold = seven ^ (seven >> 4 & 0x07070707);
  fold ^= fold >> 2;
  fold ^= fold >> 1;
  return seven | (fold & 0x01010101) << 7;
}
QMM_INLINE uint32_t spread_signs(uint32_t word) {
  return even_parity((word & 0x7f) | (word << 1 & 0x7f00) | (word << 2 & 0x7f0000) | (word << 3 & 0x7f000000));
}

}  // namespace qmm::cpu::QMM_ISA
