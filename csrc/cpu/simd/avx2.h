// AVX2 with FMA and F16C: 16 floats are two registers of 8.
#pragma once

namespace qmm::cpu::QMM_ISA {

using Vec = __m256;     // the native vector
using Bytes = __m128i;  // 16 bytes
constexpr int kLanes = 8;
constexpr int kMicroTokens = 2;  // 2 tokens x 3 rows x 2 accumulators: 12 of 16 registers

QMM_INLINE Vec vec_load(const float* p) { return _mm256_loadu_ps(p); }
QMM_INLINE void vec_store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
QMM_INLINE Vec vec_set1(float v) { return _mm256_set1_ps(v); }
QMM_INLINE Vec vec_add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
QMM_INLINE Vec vec_sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
QMM_INLINE Vec vec_mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
QMM_INLINE Vec vec_fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// Keeps a loaded vector in its register: the compiler would rather repeat the load in every FMA that uses it.
QMM_INLINE Vec vec_keep(Vec v) {
  asm("" : "+x"(v));
  return v;
}

QMM_INLINE Bytes bytes_load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
QMM_INLINE Bytes bytes_load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
QMM_INLINE Bytes bytes_set1(int v) { return _mm_set1_epi8(static_cast<char>(v)); }
QMM_INLINE Bytes bytes_and(Bytes a, Bytes b) { return _mm_and_si128(a, b); }
QMM_INLINE Bytes bytes_or(Bytes a, Bytes b) { return _mm_or_si128(a, b); }
QMM_INLINE Bytes bytes_add(Bytes a, Bytes b) { return _mm_add_epi8(a, b); }
QMM_INLINE Bytes bytes_sub(Bytes a, Bytes b) { return _mm_sub_epi8(a, b); }
QMM_INLINE Bytes bytes_eq(Bytes a, Bytes b) { return _mm_cmpeq_epi8(a, b); }
QMM_INLINE Bytes bytes_max(Bytes a, Bytes b) { return _mm_max_epu8(a, b); }
QMM_INLINE Bytes bytes_lookup(Bytes table, Bytes index) { return _mm_shuffle_epi8(table, index); }
QMM_INLINE Bytes bytes_from_u64(uint64_t lo, uint64_t hi) {
  return _mm_set_epi64x(static_cast<int64_t>(hi), static_cast<int64_t>(lo));
}
QMM_INLINE Bytes bytes_from_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return _mm_setr_epi32(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), static_cast<int>(d));
}
QMM_INLINE void bytes_store(void* p, Bytes b) { _mm_storeu_si128(static_cast<__m128i*>(p), b); }
// a0 b0 a1 b1 ... a7 b7
QMM_INLINE Bytes bytes_interleave(Bytes a, Bytes b) { return _mm_unpacklo_epi8(a, b); }
// The low 8 bytes of a, then those of b.
QMM_INLINE Bytes bytes_join(Bytes a, Bytes b) { return _mm_unpacklo_epi64(a, b); }

template <int kShift>
QMM_INLINE Bytes bytes_shift_right_dirty(Bytes b) {
  if constexpr (kShift >= 0) {
    return _mm_srli_epi16(b, kShift);
  } else {
    return _mm_slli_epi16(b, -kShift);
  }
}

// 0xff in the bytes whose bit of `bits` is set: copy the bits' byte to 8 lanes, keep each lane's own bit.
QMM_INLINE Bytes bytes_mask(uint32_t bits) {
  const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m128i bit = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m128i copies = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(bits)), spread);
  return _mm_cmpeq_epi8(_mm_and_si128(copies, bit), bit);
}
// `value` in the bytes whose bit of `bits` is set, 0 in the others.
QMM_INLINE Bytes bytes_where(uint32_t bits, Bytes value) { return bytes_and(bytes_mask(bits), value); }
QMM_INLINE Bytes bytes_negate_where(Bytes b, uint32_t bits) {
  const Bytes mask = bytes_mask(bits);
  return _mm_sub_epi8(_mm_xor_si128(b, mask), mask);
}

struct Floats {
  Vec part[2];
};

QMM_INLINE Floats from_i8(Bytes b) {
  return {
      {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))}};
}
QMM_INLINE Floats from_u8(Bytes b) {
  return {
      {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)))}};
}

using LevelTable = Bytes;
QMM_INLINE LevelTable level_table(const Levels& levels) {
  return bytes_load(reinterpret_cast<const uint8_t*>(levels.i8));
}
QMM_INLINE Floats look_up(LevelTable table, Bytes codes) { return from_i8(bytes_lookup(table, codes)); }

QMM_INLINE float reduce(Floats v) {
  const __m256 eight = _mm256_add_ps(v.part[0], v.part[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

QMM_INLINE Vec vec_load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
QMM_INLINE Vec vec_load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
QMM_INLINE Floats load_f16(const uint16_t* p) { return {{vec_load_f16(p), vec_load_f16(p + 8)}}; }
QMM_INLINE Floats load_bf16(const uint16_t* p) { return {{vec_load_bf16(p), vec_load_bf16(p + 8)}}; }

QMM_INLINE void store_f16(uint16_t* p, Floats v) {
  constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.part[0], kRound));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.part[1], kRound));
}
QMM_INLINE __m256i bf16_bits(Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
}
// packus works within 128-bit halves, so the 64-bit quarters come out as 0, 2, 1, 3.
QMM_INLINE void store_bf16(uint16_t* p, Floats v) {
  const __m256i packed = _mm256_packus_epi32(bf16_bits(v.part[0]), bf16_bits(v.part[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0b11011000));
}

QMM_INLINE float half_to_float(uint16_t bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }

}  // namespace qmm::cpu::QMM_ISA

#include "byte_codebook.h"
