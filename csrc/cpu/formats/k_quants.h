// The K-quants: superblocks of 256 weights, each sub-block of 16 or 32 with a small integer scale that a half
// of the superblock multiplies.
#pragma once

#include "../simd.h"
#include "common.h"

namespace qmm::cpu::QMM_ISA {

// Scale 4 bits and minimum 4 bits for 16 sub-blocks of 16; 64 bytes of 2-bit codes; half d, half dmin.
// A code byte holds one weight of each of four runs of 32.
struct Q2_K {
  static constexpr int kWeights = 256, kBytes = 84;

  template <class Sink>
  struct Half {
    const Scales &scale, &min;
    Bytes lo, hi;
    int half;
    Sink& sink;

    template <int i>
    QMM_INLINE void step() {
      const int index = half * 8 + i * 2;
      sink(weights(index, bit_field<2 * i, 3>(lo)), weights(index + 1, bit_field<2 * i, 3>(hi)), half * 128 + i * 32);
    }
    QMM_INLINE Floats weights(int index, Bytes codes) {
      return sub(mul(set1(scale.of[index]), from_u8(codes)), set1(min.of[index]));
    }
  };

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Bytes packed = bytes_load(block);
    const Scales scale = scale_array(load_half(block + 80), from_u8(bit_field<0, 15>(packed)));
    const Scales min = scale_array(load_half(block + 82), from_u8(bit_field<4, 15>(packed)));
    for (int half = 0; half < 2; ++half) {
      const uint8_t* codes = block + 16 + 32 * half;
      Half<Sink> body{scale, min, bytes_load(codes), bytes_load(codes + 16), half, sink};
      unroll<4>(body);
    }
  }
};

// 32 bytes of third bits (bit r of byte j: run r of 32, weight j); 64 bytes of 2-bit codes as in Q2_K; 12 bytes
// of 6-bit scales for 16 sub-blocks; half d. A clear third bit means minus 4.
struct Q3_K {
  static constexpr int kWeights = 256, kBytes = 110;

  // Scale i's low 4 bits are in byte i % 8 (high half for i >= 8), its high 2 bits in byte 8 + i % 4.
  static QMM_INLINE Bytes unpack_scales(const uint8_t* p) {
    const uint32_t a = load_word<uint32_t>(p), b = load_word<uint32_t>(p + 4), c = load_word<uint32_t>(p + 8);
    constexpr uint32_t kLow4 = 0x0f0f0f0f, kHigh2 = 0x30303030;
    const Bytes scales = bytes_from_u32((a & kLow4) | (c << 4 & kHigh2), (b & kLow4) | (c << 2 & kHigh2),
                                        (a >> 4 & kLow4) | (c & kHigh2), (b >> 4 & kLow4) | (c >> 2 & kHigh2));
    return bytes_sub(scales, bytes_set1(32));
  }

  template <int kHalf, class Sink>
  struct Half {
    const Scales& scale;
    Bytes lo, hi, third_lo, third_hi;
    Sink& sink;

    template <int i>
    static QMM_INLINE Floats codes(Bytes low2, Bytes third) {
      constexpr int kShift = kHalf * 4 + i - 2;  // brings this run's third bit to bit 2
      const Bytes q = bytes_or(bit_field<2 * i, 3>(low2), bit_field<kShift, 4>(third));
      return from_i8(bytes_sub(q, bytes_set1(4)));
    }
    template <int i>
    QMM_INLINE void step() {
      constexpr int kSub = kHalf * 8 + i * 2;
      sink(mul(set1(scale.of[kSub]), codes<i>(lo, third_lo)), mul(set1(scale.of[kSub + 1]), codes<i>(hi, third_hi)),
           kHalf * 128 + i * 32);
    }
  };

  template <int kHalf, class Sink>
  static QMM_INLINE void decode_half(const uint8_t* block, const Scales& scale, Sink& sink) {
    const uint8_t* codes = block + 32 + 32 * kHalf;
    Half<kHalf, Sink> body{scale, bytes_load(codes), bytes_load(codes + 16), bytes_load(block), bytes_load(block + 16),
                           sink};
    unroll<4>(body);
  }

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Scales scale = scale_array(load_half(block + 108), from_i8(unpack_scales(block + 96)));
    decode_half<0>(block, scale, sink);
    decode_half<1>(block, scale, sink);
  }
};

// The 12 bytes of Q4_K and Q5_K: 6-bit scales and minima of 8 sub-blocks of 32, as 8 and 8 bytes.
// Sub-blocks 0-3 are the low 6 bits of bytes 0-3 (scale) and 4-7 (minimum); 4-7 have their low 4 bits in bytes
// 8-11 (scale low half, minimum high half) and their high 2 bits above the first.
QMM_INLINE Floats unpack_scales_and_minima(const uint8_t* p) {
  const uint32_t a = load_word<uint32_t>(p), b = load_word<uint32_t>(p + 4), c = load_word<uint32_t>(p + 8);
  constexpr uint32_t kLow6 = 0x3f3f3f3f, kLow4 = 0x0f0f0f0f, kHigh2 = 0x30303030;
  return from_u8(bytes_from_u32(a & kLow6, (c & kLow4) | (a >> 2 & kHigh2),  //
                                b & kLow6, (c >> 4 & kLow4) | (b >> 2 & kHigh2)));
}

// Half d, half dmin, 12 bytes of scales, 128 bytes of codes: 32 bytes hold 32 weights in their low halves and
// the next 32 in their high ones.
struct Q4_K {
  static constexpr int kWeights = 256, kBytes = 144;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats factors = unpack_scales_and_minima(block + 4);
    const Scales scale = scale_array(load_half(block), factors);
    const Scales min = scale_array(load_half(block + 2), factors);  // elements 8-15
    for (int i = 0; i < 4; ++i) {
      const Nibbles lo = nibbles_load(block + 16 + 32 * i), hi = nibbles_load(block + 32 + 32 * i);
      const AffineCodebook first = codebook_affine(scale.of[2 * i], min.of[8 + 2 * i]);
      sink(pick_low(first, lo), pick_low(first, hi), 64 * i);
      const AffineCodebook second = codebook_affine(scale.of[2 * i + 1], min.of[8 + 2 * i + 1]);
      sink(pick_high(second, lo), pick_high(second, hi), 64 * i + 32);
    }
  }
};

// As Q4_K, with 32 bytes of fifth bits before the codes: bit r of byte j for run r of 32, weight j.
struct Q5_K {
  static constexpr int kWeights = 256, kBytes = 176;

  template <class Sink>
  struct Body {
    const uint8_t* block;
    const Scales &scale, &min;
    Bytes fifth_lo, fifth_hi;
    Sink& sink;

    template <int kRun>
    QMM_INLINE Floats weights(const uint8_t* codes, Bytes fifth) {
      const Bytes low4 = bit_field<kRun % 2 * 4, 15>(bytes_load(codes));
      const Bytes q = bytes_or(low4, bit_field<kRun - 4, 16>(fifth));
      return sub(mul(set1(scale.of[kRun]), from_u8(q)), set1(min.of[8 + kRun]));
    }
    template <int kRun>
    QMM_INLINE void step() {
      const uint8_t* codes = block + 48 + 32 * (kRun / 2);
      sink(weights<kRun>(codes, fifth_lo), weights<kRun>(codes + 16, fifth_hi), 32 * kRun);
    }
  };

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Floats factors = unpack_scales_and_minima(block + 4);
    const Scales scale = scale_array(load_half(block), factors);
    const Scales min = scale_array(load_half(block + 2), factors);
    Body<Sink> body{block, scale, min, bytes_load(block + 16), bytes_load(block + 32), sink};
    unroll<8>(body);
  }
};

// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales for sub-blocks of 16, half d. Each half of
// the superblock is four runs of 32: run r's low bits are in bytes 32 * (r % 2) on, low halves for r < 2; its
// high bits are field r of 32 bytes.
struct Q6_K {
  static constexpr int kWeights = 256, kBytes = 210;

  template <class Sink>
  struct Half {
    const uint8_t *low, *high;
    const float* scale;
    int offset;
    Sink& sink;

    template <int kRun, int kSide>
    QMM_INLINE Floats weights() {
      const Bytes low4 = bit_field<kRun / 2 * 4, 15>(bytes_load(low + kRun % 2 * 32 + kSide * 16));
      const Bytes q = bytes_or(low4, bit_field<2 * kRun - 4, 0x30>(bytes_load(high + kSide * 16)));
      return mul(set1(scale[2 * kRun + kSide]), from_i8(bytes_sub(q, bytes_set1(32))));
    }
    template <int kRun>
    QMM_INLINE void step() {
      sink(weights<kRun, 0>(), weights<kRun, 1>(), offset + 32 * kRun);
    }
  };

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Scales scale = scale_array(load_half(block + 208), from_i8(bytes_load(block + 192)));
    for (int half = 0; half < 2; ++half) {
      Half<Sink> body{block + 64 * half, block + 128 + 32 * half, scale.of + 8 * half, 128 * half, sink};
      unroll<4>(body);
    }
  }
};

}  // namespace qmm::cpu::QMM_ISA
