// AVX-512 (F, BW, DQ, VL): 16 floats are one register.
//
// Bytes are unpacked in 128-bit registers, where an operation costs half or a quarter of a 512-bit one on the
// processors that split 512-bit operations, and widened to floats last.
#pragma once

namespace qmm::cpu::QMM_ISA {

using Vec = __m512;     // the native vector
using Bytes = __m128i;  // 16 bytes
constexpr int kLanes = 16;
constexpr int kMicroTokens = 4;  // 4 tokens x 3 rows x 2 accumulators: 24 of 32 registers

QMM_INLINE Vec vec_load(const float* p) { return _mm512_loadu_ps(p); }
QMM_INLINE void vec_store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
QMM_INLINE Vec vec_set1(float v) { return _mm512_set1_ps(v); }
QMM_INLINE Vec vec_add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
QMM_INLINE Vec vec_sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
QMM_INLINE Vec vec_mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
QMM_INLINE Vec vec_fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// Keeps a loaded vector in its register: the compiler would rather repeat the load in every FMA that uses it.
QMM_INLINE Vec vec_keep(Vec v) {
  asm("" : "+v"(v));
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

// `value` in the bytes whose bit of `bits` is set, 0 in the others.
QMM_INLINE Bytes bytes_where(uint32_t bits, Bytes value) {
  return _mm_maskz_mov_epi8(static_cast<__mmask16>(bits), value);
}
QMM_INLINE Bytes bytes_negate_where(Bytes b, uint32_t bits) {
  return _mm_mask_sub_epi8(b, static_cast<__mmask16>(bits), _mm_setzero_si128(), b);
}

struct Floats {
  Vec part[1];
};

QMM_INLINE Floats from_i8(Bytes b) { return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))}}; }
QMM_INLINE Floats from_u8(Bytes b) { return {{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b))}}; }

// 16 packed bytes of 4-bit codes, already widened to the 32-bit indices of a permutation.
using Nibbles = __m512i;
QMM_INLINE Nibbles nibbles_load(const uint8_t* p) { return _mm512_cvtepu8_epi32(bytes_load(p)); }

// A codebook is the 16 finished weights of a sub-block in one register: a permutation picks by the low 4 bits
// of each index, so codes need neither masking nor a conversion nor a multiplication each.
struct Codebook {
  __m512 weights;
};
QMM_INLINE Codebook codebook_levels(const Levels& levels, float d) {
  return {_mm512_mul_ps(_mm512_load_ps(levels.f32), _mm512_set1_ps(d))};
}
QMM_INLINE Codebook codebook_affine(float d, float m) {
  const __m512 codes = _mm512_load_ps(kCodes.f32);
  return {_mm512_sub_ps(_mm512_mul_ps(codes, _mm512_set1_ps(d)), _mm512_set1_ps(m))};
}
QMM_INLINE Floats pick_low(Codebook c, Nibbles n) { return {{_mm512_permutexvar_ps(n, c.weights)}}; }
QMM_INLINE Floats pick_high(Codebook c, Nibbles n) { return pick_low(c, _mm512_srli_epi32(n, 4)); }
QMM_INLINE Floats pick(Codebook c, Bytes codes) { return pick_low(c, _mm512_cvtepu8_epi32(codes)); }
using LevelCodebook = Codebook;
using AffineCodebook = Codebook;

QMM_INLINE float reduce(Floats v) { return _mm512_reduce_add_ps(v.part[0]); }

QMM_INLINE Floats load_f16(const uint16_t* p) {
  return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}};
}
QMM_INLINE Floats load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))}};
}
QMM_INLINE void store_f16(uint16_t* p, Floats v) {
  const __m256i half = _mm512_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
// Not vcvtneps2bf16: it flushes subnormals to zero.
QMM_INLINE void store_bf16(uint16_t* p, Floats v) {
  const __m512i bits = _mm512_castps_si512(v.part[0]);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v.part[0], v.part[0], _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

QMM_INLINE float half_to_float(uint16_t bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }

}  // namespace qmm::cpu::QMM_ISA
