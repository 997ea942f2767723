// TQ1_0 and TQ2_0: weights -d, 0, +d in superblocks of 256.
#pragma once

#include "../simd.h"
#include "common.h"

namespace qmm::cpu::QMM_ISA {

// 48 bytes of five base-3 digits each, 4 bytes of four, half d. A byte is a fraction of 256: its first digit is
// the integer part of byte * 3 / 256, and tripling it (mod 256) brings the next digit to the front. Digit n of
// the first 32 bytes are weights 32 * n on, of the next 16 bytes weights 160 + 16 * n on, of the last 4 bytes
// weights 240 + 4 * n on.
struct TQ1_0 {
  static constexpr int kWeights = 256, kBytes = 54;

  static QMM_INLINE Bytes triple(Bytes b) { return bytes_add(bytes_add(b, b), b); }
  static QMM_INLINE uint32_t triple(uint32_t four) {
    return ((four & 0x00ff00ff) * 3 & 0x00ff00ff) | ((four >> 8 & 0x00ff00ff) * 3 & 0x00ff00ff) << 8;
  }
  // The first digit minus 1: one comparison for each of the two steps, at 256 / 3 and 512 / 3.
  static QMM_INLINE Floats digit(Bytes b) {
    const Bytes one_up = bytes_eq(bytes_max(b, bytes_set1(86)), b);
    const Bytes two_up = bytes_eq(bytes_max(b, bytes_set1(171)), b);
    return from_i8(bytes_sub(bytes_sub(bytes_set1(-1), one_up), two_up));
  }

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block + 52));
    Bytes a = bytes_load(block), b = bytes_load(block + 16), c = bytes_load(block + 32);
    for (int n = 0; n < 5; ++n) {
      sink(mul(d, digit(a)), mul(d, digit(b)), 32 * n);
      a = triple(a);
      b = triple(b);
    }
    for (int n = 0; n < 2; ++n) {
      const Bytes next = triple(c);
      sink(mul(d, digit(c)), mul(d, digit(next)), 160 + 32 * n);
      c = triple(next);
    }
    const uint32_t q0 = load_word<uint32_t>(block + 48), q1 = triple(q0), q2 = triple(q1);
    sink(mul(d, digit(c)), mul(d, digit(bytes_from_u32(q0, q1, q2, triple(q2)))), 224);
  }
};

// 64 bytes of 2-bit codes, each byte one weight of each of four runs of 32; half d.
struct TQ2_0 {
  static constexpr int kWeights = 256, kBytes = 66;

  template <class Sink>
  struct Half {
    Floats d;
    Bytes lo, hi;
    int offset;
    Sink& sink;

    template <int i>
    QMM_INLINE Floats weights(Bytes codes) {
      return mul(d, from_i8(bytes_sub(bit_field<2 * i, 3>(codes), bytes_set1(1))));
    }
    template <int i>
    QMM_INLINE void step() {
      sink(weights<i>(lo), weights<i>(hi), offset + 32 * i);
    }
  };

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats d = set1(load_half(block + 64));
    for (int half = 0; half < 2; ++half) {
      const uint8_t* codes = block + 32 * half;
      Half<Sink> body{d, bytes_load(codes), bytes_load(codes + 16), 128 * half, sink};
      unroll<4>(body);
    }
  }
};

}  // namespace qmm::cpu::QMM_ISA
