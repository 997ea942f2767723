// Any processor: the compiler's own 16-byte vectors, which it lowers to whatever the target has.
#pragma once

namespace qmm::cpu::QMM_ISA {

typedef float Vec __attribute__((vector_size(16)));      // the native vector
typedef uint8_t Bytes __attribute__((vector_size(16)));  // 16 bytes
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kMicroTokens = 2;  // 2 tokens x 3 rows x 2 accumulators: 12 of (at least) 16 registers

QMM_INLINE Vec vec_load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
QMM_INLINE void vec_store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
QMM_INLINE Vec vec_set1(float v) { return Vec{v, v, v, v}; }
QMM_INLINE Vec vec_add(Vec a, Vec b) { return a + b; }
QMM_INLINE Vec vec_sub(Vec a, Vec b) { return a - b; }
QMM_INLINE Vec vec_mul(Vec a, Vec b) { return a * b; }
// Two roundings: not every target can fuse, and the library's fma() is far too slow.
QMM_INLINE Vec vec_fma(Vec a, Vec b, Vec c) { return a * b + c; }
QMM_INLINE Vec vec_keep(Vec v) { return v; }

QMM_INLINE Bytes bytes_load(const uint8_t* p) {
  Bytes b;
  std::memcpy(&b, p, sizeof(b));
  return b;
}
QMM_INLINE Bytes bytes_load8(const uint8_t* p) {
  Bytes b = {};
  std::memcpy(&b, p, 8);
  return b;
}
QMM_INLINE Bytes bytes_set1(int v) { return Bytes{} + static_cast<uint8_t>(v); }
QMM_INLINE Bytes bytes_and(Bytes a, Bytes b) { return a & b; }
QMM_INLINE Bytes bytes_or(Bytes a, Bytes b) { return a | b; }
QMM_INLINE Bytes bytes_add(Bytes a, Bytes b) { return a + b; }
QMM_INLINE Bytes bytes_sub(Bytes a, Bytes b) { return a - b; }
QMM_INLINE Bytes bytes_eq(Bytes a, Bytes b) { return reinterpret_cast<Bytes>(a == b); }
QMM_INLINE Bytes bytes_max(Bytes a, Bytes b) {
  const Bytes above = reinterpret_cast<Bytes>(a > b);
  return (a & above) | (b & ~above);
}
// Bytes of a and b by compile-time index, 16 and above from b.
#if defined(__clang__)
#define QMM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define QMM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Bytes{__VA_ARGS__})
#endif

// Through words and not byte by byte: a load that spans several narrower stores has to wait for them.
QMM_INLINE Bytes bytes_lookup(Bytes table, Bytes index) {
  uint8_t levels[16], places[16];
  std::memcpy(levels, &table, 16);
  std::memcpy(places, &index, 16);
  uint64_t words[2] = {};
  for (int i = 0; i < 8; ++i) {
    words[0] |= uint64_t{levels[places[i]]} << (8 * i);
    words[1] |= uint64_t{levels[places[8 + i]]} << (8 * i);
  }
  return bytes_load(reinterpret_cast<const uint8_t*>(words));
}
QMM_INLINE Bytes bytes_from_u64(uint64_t lo, uint64_t hi) {
  const uint64_t words[2] = {lo, hi};
  return bytes_load(reinterpret_cast<const uint8_t*>(words));
}
QMM_INLINE Bytes bytes_from_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return bytes_from_u64(a | uint64_t{b} << 32, c | uint64_t{d} << 32);
}
QMM_INLINE void bytes_store(void* p, Bytes b) { std::memcpy(p, &b, sizeof(b)); }
// a0 b0 a1 b1 ... a7 b7
QMM_INLINE Bytes bytes_interleave(Bytes a, Bytes b) {
  return QMM_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
// The low 8 bytes of a, then those of b.
QMM_INLINE Bytes bytes_join(Bytes a, Bytes b) {
  return QMM_SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}

template <int kShift>
QMM_INLINE Bytes bytes_shift_right_dirty(Bytes b) {
  if constexpr (kShift >= 0) {
    return b >> static_cast<uint8_t>(kShift);
  } else {
    return b << static_cast<uint8_t>(-kShift);
  }
}

// 0xff in the bytes whose bit of `bits` is set.
QMM_INLINE Bytes bytes_mask(uint32_t bits) {
  const Bytes bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8_t lo = static_cast<uint8_t>(bits), hi = static_cast<uint8_t>(bits >> 8);
  const Bytes copies = {lo, lo, lo, lo, lo, lo, lo, lo, hi, hi, hi, hi, hi, hi, hi, hi};
  return bytes_eq(copies & bit, bit);
}
// `value` in the bytes whose bit of `bits` is set, 0 in the others.
QMM_INLINE Bytes bytes_where(uint32_t bits, Bytes value) { return bytes_and(bytes_mask(bits), value); }
QMM_INLINE Bytes bytes_negate_where(Bytes b, uint32_t bits) {
  const Bytes mask = bytes_mask(bits);
  return (b ^ mask) - mask;
}

struct Floats {
  Vec part[4];
};

// Each byte is copied to all four of its lane; a shift of the lane extends it with zeros or with its sign.
template <class Lanes>
QMM_INLINE Floats from_bytes(Bytes b) {
  const Bytes quads[4] = {QMM_SHUFFLE(b, b, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                          QMM_SHUFFLE(b, b, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7),
                          QMM_SHUFFLE(b, b, 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11),
                          QMM_SHUFFLE(b, b, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15)};
  Floats out;
  for (int i = 0; i < 4; ++i) {
    out.part[i] = __builtin_convertvector(reinterpret_cast<Ints>(reinterpret_cast<Lanes>(quads[i]) >> 24), Vec);
  }
  return out;
}
QMM_INLINE Floats from_i8(Bytes b) { return from_bytes<Ints>(b); }
QMM_INLINE Floats from_u8(Bytes b) { return from_bytes<Words>(b); }

QMM_INLINE float reduce(Floats v) {
  const Vec four = (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

QMM_INLINE float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
QMM_INLINE uint32_t bits_of_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  return bits;
}

QMM_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // subnormal: mantissa * 2^-24, exact in float32
    return float_of_bits(sign | bits_of_float(static_cast<float>(mantissa) * 0x1p-24f));
  }
  const uint32_t rebiased = exponent == 31 ? 255u : exponent + (127 - 15);
  return float_of_bits(sign | rebiased << 23 | mantissa << 13);
}

QMM_INLINE uint16_t float_to_half(float f) {
  const uint32_t bits = bits_of_float(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {  // NaN: quiet, the payload's high bits kept
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 a half is a multiple of 2^-24, the spacing of float32 near 0.5: the addition rounds.
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
  } else {
    const uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

QMM_INLINE uint16_t float_to_bf16(float f) {
  const uint32_t bits = bits_of_float(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// `p` may be at any alignment, so the 16 values are copied first.
QMM_INLINE Floats load_f16(const uint16_t* p) {
  uint16_t values[16];
  std::memcpy(values, p, sizeof(values));
  Floats out;
  for (int i = 0; i < 16; ++i) out.part[i / 4][i % 4] = half_to_float(values[i]);
  return out;
}
QMM_INLINE Floats load_bf16(const uint16_t* p) {
  uint16_t values[16];
  std::memcpy(values, p, sizeof(values));
  Floats out;
  for (int i = 0; i < 16; ++i) out.part[i / 4][i % 4] = float_of_bits(uint32_t{values[i]} << 16);
  return out;
}
QMM_INLINE void store_f16(uint16_t* p, Floats v) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(v.part[i / 4][i % 4]);
}
QMM_INLINE void store_bf16(uint16_t* p, Floats v) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_bf16(v.part[i / 4][i % 4]);
}

}  // namespace qmm::cpu::QMM_ISA

#include "byte_codebook.h"
