// Any processor: the compiler's own 16-byte vectors, which it lowers to whatever the target has.
#pragma once

namespace qmm::cpu::QMM_ISA {

typedef float Vec __attribute__((vector_size(16)));      // the native vector
typedef uint8_t Bytes __attribute__((vector_size(16)));  // 16 bytes
typedef uint64_t Longs __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));
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

// Elements of a and b by compile-time index, those of b counted on from a's.
#if defined(__clang__)
#define QMM_SHUFFLE(Type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define QMM_SHUFFLE(Type, a, b, ...) __builtin_shuffle(a, b, Type{__VA_ARGS__})
#endif

QMM_INLINE Bytes bytes_from_u64(uint64_t lo, uint64_t hi) { return reinterpret_cast<Bytes>(Longs{lo, hi}); }
QMM_INLINE Bytes bytes_load8(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return bytes_from_u64(word, 0);
}
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
  return bytes_from_u64(words[0], words[1]);
}
QMM_INLINE Bytes bytes_from_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return bytes_from_u64(a | uint64_t{b} << 32, c | uint64_t{d} << 32);
}
QMM_INLINE void bytes_store(void* p, Bytes b) { std::memcpy(p, &b, sizeof(b)); }
// a0 b0 a1 b1 ... a7 b7
QMM_INLINE Bytes bytes_interleave(Bytes a, Bytes b) {
  return QMM_SHUFFLE(Bytes, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
QMM_INLINE Bytes bytes_interleave_high(Bytes a, Bytes b) {
  return QMM_SHUFFLE(Bytes, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
QMM_INLINE Halves halves_interleave(Halves a, Halves b) { return QMM_SHUFFLE(Halves, a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
QMM_INLINE Halves halves_interleave_high(Halves a, Halves b) {
  return QMM_SHUFFLE(Halves, a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
// The low 8 bytes of a, then those of b.
QMM_INLINE Bytes bytes_join(Bytes a, Bytes b) {
  return reinterpret_cast<Bytes>(QMM_SHUFFLE(Longs, reinterpret_cast<Longs>(a), reinterpret_cast<Longs>(b), 0, 2));
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
  constexpr uint64_t kOnes = 0x0101010101010101;  // times a byte: eight copies of it
  const Bytes copies = bytes_from_u64((bits & 0xff) * kOnes, (bits >> 8 & 0xff) * kOnes);
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

// Each byte is copied to all four of its lane, in two doublings that every target has an instruction for; a shift
// of the lane then extends it with zeros or with its sign.
template <class Lanes>
QMM_INLINE Floats from_bytes(Bytes b) {
  const Halves lo = reinterpret_cast<Halves>(bytes_interleave(b, b));
  const Halves hi = reinterpret_cast<Halves>(bytes_interleave_high(b, b));
  const Halves quads[4] = {halves_interleave(lo, lo), halves_interleave_high(lo, lo), halves_interleave(hi, hi),
                           halves_interleave_high(hi, hi)};
  Floats out;
  for (int i = 0; i < 4; ++i) {
    out.part[i] = __builtin_convertvector(reinterpret_cast<Ints>(reinterpret_cast<Lanes>(quads[i]) >> 24), Vec);
  }
  return out;
}
QMM_INLINE Floats from_i8(Bytes b) { return from_bytes<Ints>(b); }
QMM_INLINE Floats from_u8(Bytes b) { return from_bytes<Words>(b); }

// No byte permutation can be relied on, so the levels are fetched from memory, as floats already.
using LevelTable = const float*;
QMM_INLINE LevelTable level_table(const Levels& levels) { return levels.f32; }
QMM_INLINE Floats look_up(LevelTable table, Bytes codes) {
  uint8_t at[16];
  bytes_store(at, codes);
  keep_in_memory(at);
  Floats out;
  for (int i = 0; i < 4; ++i) {
    out.part[i] = Vec{table[at[4 * i]], table[at[4 * i + 1]], table[at[4 * i + 2]], table[at[4 * i + 3]]};
  }
  return out;
}

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

// Halves in the low 16 bits of each lane. Read as a float32 with the exponent in place, a half is too small by
// 2^112, subnormals too; multiplying makes it right, and infinity and NaN get the exponent they should have.
QMM_INLINE Vec halves_to_floats(Words halves) {
  const Words magnitude = (halves & 0x7fff) << 13;
  const Words special = reinterpret_cast<Words>(magnitude >= 0x0f800000) & 0x7f800000;
  const Words scaled = reinterpret_cast<Words>(reinterpret_cast<Vec>(magnitude) * 0x1p112f);
  return reinterpret_cast<Vec>(scaled | special | (halves & 0x8000) << 16);
}
QMM_INLINE float half_to_float(uint16_t half) { return halves_to_floats(Words{half, half, half, half})[0]; }

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

struct WideHalves {
  Words part[4];
};
QMM_INLINE WideHalves load_halves(const uint16_t* p) {
  Halves lo, hi;
  std::memcpy(&lo, p, sizeof(lo));
  std::memcpy(&hi, p + 8, sizeof(hi));
  const Halves zero = {};
  return {{reinterpret_cast<Words>(halves_interleave(lo, zero)),
           reinterpret_cast<Words>(halves_interleave_high(lo, zero)),
           reinterpret_cast<Words>(halves_interleave(hi, zero)),
           reinterpret_cast<Words>(halves_interleave_high(hi, zero))}};
}
QMM_INLINE Floats load_f16(const uint16_t* p) {
  const WideHalves halves = load_halves(p);
  Floats out;
  for (int i = 0; i < 4; ++i) out.part[i] = halves_to_floats(halves.part[i]);
  return out;
}
QMM_INLINE Floats load_bf16(const uint16_t* p) {
  const WideHalves halves = load_halves(p);
  Floats out;
  for (int i = 0; i < 4; ++i) out.part[i] = reinterpret_cast<Vec>(halves.part[i] << 16);
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
