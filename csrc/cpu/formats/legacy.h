// The formats with blocks of 32 weights and half scales, and Q1_0 with blocks of 128.
//
// A byte of 4-bit codes holds weight j in its low and weight j + 16 in its high half; the fifth bits of Q5_0 and
// Q5_1 are a 32-bit word, bit j for weight j.
#pragma once

#include "../simd.h"

namespace qmm::cpu {

inline constexpr Levels kSigned4 = make_levels({-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7});

}  // namespace qmm::cpu

namespace qmm::cpu::QMM_ISA {

template <class Codebook, class Sink>
QMM_INLINE void decode_32_nibbles(Codebook codebook, const uint8_t* codes, Sink& sink, int offset) {
  const Nibbles nibbles = nibbles_load(codes);
  sink(pick_low(codebook, nibbles), pick_high(codebook, nibbles), offset);
}

struct Q4_0 {  // half d, 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 18;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    decode_32_nibbles(codebook_levels(kSigned4, load_half(block)), block + 2, sink, 0);
  }
};

struct Q4_1 {  // half d, half m, 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 20;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    // d * q + m, written with the codebook's subtraction: x - (-m) and x + m are the same float.
    decode_32_nibbles(codebook_affine(load_half(block), -load_half(block + 2)), block + 4, sink, 0);
  }
};

struct FiveBits {
  Bytes lo, hi;  // weights 0-15 and 16-31
};

QMM_INLINE FiveBits five_bits(const uint8_t* codes, uint32_t fifth) {
  const Bytes packed = bytes_load(codes), sixteen = bytes_set1(16);
  return {bytes_or(bit_field<0, 15>(packed), bytes_where(fifth & 0xffff, sixteen)),
          bytes_or(bit_field<4, 15>(packed), bytes_where(fifth >> 16, sixteen))};
}

struct Q5_0 {  // half d, word of fifth bits, 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 22;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block));
    const FiveBits q = five_bits(block + 6, load_word<uint32_t>(block + 2));
    const Bytes sixteen = bytes_set1(16);
    sink(mul(d, from_i8(bytes_sub(q.lo, sixteen))), mul(d, from_i8(bytes_sub(q.hi, sixteen))), 0);
  }
};

struct Q5_1 {  // half d, half m, word of fifth bits, 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 24;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block)), m = set1(load_half(block + 2));
    const FiveBits q = five_bits(block + 8, load_word<uint32_t>(block + 4));
    sink(add(mul(d, from_u8(q.lo)), m), add(mul(d, from_u8(q.hi)), m), 0);
  }
};

struct Q8_0 {  // half d, 32 signed bytes
  static constexpr int kWeights = 32, kBytes = 34;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block));
    sink(mul(from_i8(bytes_load(block + 2)), d), mul(from_i8(bytes_load(block + 18)), d), 0);
  }
};

// Half d, 128 sign bits: bit j % 8 of byte j / 8 says whether weight j is +d (set) or -d (clear), as ggml's
// block_q1_0 has it (gguf-py lists the type's size and does not dequantize it).
struct Q1_0 {
  static constexpr int kWeights = 128, kBytes = 18;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block));
    const Bytes one = bytes_set1(1);
    for (int i = 0; i < 4; ++i) {
      const uint32_t clear = ~load_word<uint32_t>(block + 2 + 4 * i);
      const Bytes lo = bytes_negate_where(one, clear & 0xffff), hi = bytes_negate_where(one, clear >> 16);
      sink(mul(d, from_i8(lo)), mul(d, from_i8(hi)), 32 * i);
    }
  }
};

}  // namespace qmm::cpu::QMM_ISA
