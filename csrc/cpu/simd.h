// The small vector vocabulary that the kernels are written in. An instruction set's header (simd/*.h) defines:
//
//   Vec, kLanes      the native float vector; vec_load, vec_store, vec_set1, vec_add, _sub, _mul, _fma
//   Floats           16 floats: 16 / kLanes native vectors; reduce() adds the 16 up in a fixed order
//   Bytes            16 bytes: bytes_load, _and, _or, _add, _sub, _eq, _max, _where (bits to bytes), ...
//   from_i8, from_u8 16 bytes -> 16 floats
//   codebooks        16 weights picked by 4-bit codes: codebook_levels, codebook_affine, pick, pick_low/_high
//   load/store_f16, load/store_bf16, half_to_float
//
// and this file adds what follows from those. Everything lives in a namespace of its own for each instruction
// set: an inline function shared by two of them could be linked from the wrong one.
//
// Included by kernels_*.cpp after QMM_ISA and one QMM_ISA_* macro are defined and the compiler's target set.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/isa.h"

namespace qmm::cpu {

// 16 levels of a 4-bit code, as the bytes of a lookup and as floats.
struct alignas(64) Levels {
  float f32[16];
  int8_t i8[16];
};

consteval Levels make_levels(const int8_t (&values)[16]) {
  Levels levels{};
  for (int i = 0; i < 16; ++i) {
    levels.f32[i] = values[i];
    levels.i8[i] = values[i];
  }
  return levels;
}

inline constexpr Levels kCodes = make_levels({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});

}  // namespace qmm::cpu

namespace qmm::cpu::QMM_ISA {

// Keeps an array that was stored from registers in memory. Otherwise compilers take its elements back out of the
// registers, one or two shuffles each, where a load, or the broadcast in an operand, costs nothing extra.
template <class Array>
QMM_INLINE void keep_in_memory(Array& array) {
  asm("" : "+m"(array));
}

}  // namespace qmm::cpu::QMM_ISA

#if defined(QMM_ISA_AVX512)
#include "simd/avx512.h"
#elif defined(QMM_ISA_AVX2)
#include "simd/avx2.h"
#elif defined(QMM_ISA_NEON)
#include "simd/neon.h"
#else
#include "simd/generic.h"
#endif

namespace qmm::cpu::QMM_ISA {

constexpr int kParts = 16 / kLanes;

QMM_INLINE Floats load(const float* p) {
  Floats v;
  for (int i = 0; i < kParts; ++i) v.part[i] = vec_load(p + i * kLanes);
  return v;
}
QMM_INLINE void store(float* p, Floats v) {
  for (int i = 0; i < kParts; ++i) vec_store(p + i * kLanes, v.part[i]);
}
QMM_INLINE Floats set1(float value) {
  Floats v;
  for (int i = 0; i < kParts; ++i) v.part[i] = vec_set1(value);
  return v;
}
QMM_INLINE Floats add(Floats a, Floats b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = vec_add(a.part[i], b.part[i]);
  return a;
}
QMM_INLINE Floats sub(Floats a, Floats b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = vec_sub(a.part[i], b.part[i]);
  return a;
}
QMM_INLINE Floats mul(Floats a, Floats b) {
  for (int i = 0; i < kParts; ++i) a.part[i] = vec_mul(a.part[i], b.part[i]);
  return a;
}
// a * b + c
QMM_INLINE Floats fma(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kParts; ++i) c.part[i] = vec_fma(a.part[i], b.part[i], c.part[i]);
  return c;
}

// A bit field of every byte: (b >> kShift) & kMask, to the left where kShift is negative. The shift may drag
// bits in from a neighbouring byte, so kMask must keep only bits that came from the byte itself.
template <int kShift, int kMask>
QMM_INLINE Bytes bit_field(Bytes b) {
  static_assert(kShift >= 0 ? (kMask >> (8 - kShift)) == 0 : (kMask & ((1 << -kShift) - 1)) == 0);
  return bytes_and(bytes_shift_right_dirty<kShift>(b), bytes_set1(kMask));
}

template <class Word>
QMM_INLINE Word load_word(const uint8_t* p) {
  Word word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}
QMM_INLINE float load_half(const uint8_t* p) { return half_to_float(load_word<uint16_t>(p)); }

}  // namespace qmm::cpu::QMM_ISA
