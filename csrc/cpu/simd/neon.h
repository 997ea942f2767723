// Arm NEON (AArch64): 16 floats are four registers of 4.
#pragma once

namespace qmm::cpu::QMM_ISA {

using Vec = float32x4_t;   // the native vector
using Bytes = uint8x16_t;  // 16 bytes
constexpr int kLanes = 4;
constexpr int kMicroTokens = 4;  // 4 tokens x 3 rows x 2 accumulators: 24 of 32 registers

QMM_INLINE Vec vec_load(const float* p) { return vld1q_f32(p); }
QMM_INLINE void vec_store(float* p, Vec v) { vst1q_f32(p, v); }
QMM_INLINE Vec vec_set1(float v) { return vdupq_n_f32(v); }
QMM_INLINE Vec vec_add(Vec a, Vec b) { return vaddq_f32(a, b); }
QMM_INLINE Vec vec_sub(Vec a, Vec b) { return vsubq_f32(a, b); }
QMM_INLINE Vec vec_mul(Vec a, Vec b) { return vmulq_f32(a, b); }
QMM_INLINE Vec vec_fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
// Keeps a loaded vector in its register: the compiler would rather repeat the load in every FMA that uses it.
QMM_INLINE Vec vec_keep(Vec v) {
  asm("" : "+w"(v));
  return v;
}

QMM_INLINE Bytes bytes_load(const uint8_t* p) { return vld1q_u8(p); }
QMM_INLINE Bytes bytes_load8(const uint8_t* p) { return vcombine_u8(vld1_u8(p), vdup_n_u8(0)); }
QMM_INLINE Bytes bytes_set1(int v) { return vdupq_n_u8(static_cast<uint8_t>(v)); }
QMM_INLINE Bytes bytes_and(Bytes a, Bytes b) { return vandq_u8(a, b); }
QMM_INLINE Bytes bytes_or(Bytes a, Bytes b) { return vorrq_u8(a, b); }
QMM_INLINE Bytes bytes_add(Bytes a, Bytes b) { return vaddq_u8(a, b); }
QMM_INLINE Bytes bytes_sub(Bytes a, Bytes b) { return vsubq_u8(a, b); }
QMM_INLINE Bytes bytes_eq(Bytes a, Bytes b) { return vceqq_u8(a, b); }
QMM_INLINE Bytes bytes_max(Bytes a, Bytes b) { return vmaxq_u8(a, b); }
QMM_INLINE Bytes bytes_lookup(Bytes table, Bytes index) { return vqtbl1q_u8(table, index); }
QMM_INLINE Bytes bytes_from_u64(uint64_t lo, uint64_t hi) {
  return vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(lo), vcreate_u64(hi)));
}
QMM_INLINE Bytes bytes_from_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return bytes_from_u64(a | uint64_t{b} << 32, c | uint64_t{d} << 32);
}
QMM_INLINE void bytes_store(void* p, Bytes b) { vst1q_u8(static_cast<uint8_t*>(p), b); }
// a0 b0 a1 b1 ... a7 b7
QMM_INLINE Bytes bytes_interleave(Bytes a, Bytes b) { return vzip1q_u8(a, b); }
// The low 8 bytes of a, then those of b.
QMM_INLINE Bytes bytes_join(Bytes a, Bytes b) { return vcombine_u8(vget_low_u8(a), vget_low_u8(b)); }

template <int kShift>
QMM_INLINE Bytes bytes_shift_right_dirty(Bytes b) {
  return vshlq_u8(b, vdupq_n_s8(-kShift));
}

// 0xff in the bytes whose bit of `bits` is set.
QMM_INLINE Bytes bytes_mask(uint32_t bits) {
  const Bytes bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const Bytes copies = vcombine_u8(vdup_n_u8(static_cast<uint8_t>(bits)), vdup_n_u8(static_cast<uint8_t>(bits >> 8)));
  return vtstq_u8(copies, bit);
}
// `value` in the bytes whose bit of `bits` is set, 0 in the others.
QMM_INLINE Bytes bytes_where(uint32_t bits, Bytes value) { return bytes_and(bytes_mask(bits), value); }
QMM_INLINE Bytes bytes_negate_where(Bytes b, uint32_t bits) {
  const Bytes mask = bytes_mask(bits);
  return vsubq_u8(veorq_u8(b, mask), mask);
}

struct Floats {
  Vec part[4];
};

QMM_INLINE Floats from_i16(int16x8_t lo, int16x8_t hi) {
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}
QMM_INLINE Floats from_i8(Bytes b) {
  const int8x16_t s = vreinterpretq_s8_u8(b);
  return from_i16(vmovl_s8(vget_low_s8(s)), vmovl_s8(vget_high_s8(s)));
}
QMM_INLINE Floats from_u8(Bytes b) {
  return from_i16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b))), vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(b))));
}

using LevelTable = Bytes;
QMM_INLINE LevelTable level_table(const Levels& levels) {
  return bytes_load(reinterpret_cast<const uint8_t*>(levels.i8));
}
QMM_INLINE Floats look_up(LevelTable table, Bytes codes) { return from_i8(bytes_lookup(table, codes)); }

QMM_INLINE float reduce(Floats v) {
  const Vec four = vaddq_f32(vaddq_f32(v.part[0], v.part[2]), vaddq_f32(v.part[1], v.part[3]));
  return vaddvq_f32(four);
}

QMM_INLINE Vec vec_load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
QMM_INLINE Vec vec_load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
QMM_INLINE Floats load_f16(const uint16_t* p) {
  return {{vec_load_f16(p), vec_load_f16(p + 4), vec_load_f16(p + 8), vec_load_f16(p + 12)}};
}
QMM_INLINE Floats load_bf16(const uint16_t* p) {
  return {{vec_load_bf16(p), vec_load_bf16(p + 4), vec_load_bf16(p + 8), vec_load_bf16(p + 12)}};
}
QMM_INLINE void store_f16(uint16_t* p, Floats v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
}
QMM_INLINE uint16x4_t bf16_bits(Vec v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}
QMM_INLINE void store_bf16(uint16_t* p, Floats v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, bf16_bits(v.part[i]));
}

QMM_INLINE float half_to_float(uint16_t bits) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}

}  // namespace qmm::cpu::QMM_ISA

#include "byte_codebook.h"
