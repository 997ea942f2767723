// Codebooks of 16 weights for instruction sets without a 16-lane float permutation: look the level up,
// convert, multiply. The same interface as in avx512.h.
#pragma once

namespace qmm::cpu::QMM_ISA {

// 16 packed bytes of 4-bit codes.
using Nibbles = Bytes;
QMM_INLINE Nibbles nibbles_load(const uint8_t* p) { return bytes_load(p); }
QMM_INLINE Bytes low_nibbles(Bytes b) { return bytes_and(b, bytes_set1(15)); }
QMM_INLINE Bytes high_nibbles(Bytes b) { return low_nibbles(bytes_shift_right_dirty<4>(b)); }

QMM_INLINE Floats scale_floats(Floats v, Vec d) {
  for (Vec& part : v.part) part = vec_mul(part, d);
  return v;
}

struct LevelCodebook {
  LevelTable levels;
  Vec d;
};
QMM_INLINE LevelCodebook codebook_levels(const Levels& levels, float d) { return {level_table(levels), vec_set1(d)}; }
// Bits above the low 4 of a code are ignored.
QMM_INLINE Floats pick(LevelCodebook c, Bytes codes) {
  return scale_floats(look_up(c.levels, low_nibbles(codes)), c.d);
}
QMM_INLINE Floats pick_low(LevelCodebook c, Nibbles n) { return pick(c, n); }
QMM_INLINE Floats pick_high(LevelCodebook c, Nibbles n) {
  return scale_floats(look_up(c.levels, high_nibbles(n)), c.d);
}

struct AffineCodebook {
  Vec d;
  Vec m;
};
QMM_INLINE AffineCodebook codebook_affine(float d, float m) { return {vec_set1(d), vec_set1(m)}; }
QMM_INLINE Floats affine_floats(AffineCodebook c, Bytes codes) {
  Floats v = scale_floats(from_u8(codes), c.d);
  for (Vec& part : v.part) part = vec_sub(part, c.m);
  return v;
}
QMM_INLINE Floats pick_low(AffineCodebook c, Nibbles n) { return affine_floats(c, low_nibbles(n)); }
QMM_INLINE Floats pick_high(AffineCodebook c, Nibbles n) { return affine_floats(c, high_nibbles(n)); }

}  // namespace qmm::cpu::QMM_ISA
