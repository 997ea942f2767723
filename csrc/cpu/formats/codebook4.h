// Four bits a weight that index a fixed table of 16 levels: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
#pragma once

#include "../simd.h"
#include "common.h"
#include "legacy.h"

namespace qmm::cpu {

inline constexpr Levels kIq4Levels =
    make_levels({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});

// The values of e2m1, doubled so that they are whole; the scales below carry the factor 1/2.
inline constexpr Levels kFp4Levels = make_levels({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});

struct ScaleTable {
  float of[256];
};

// NVFP4's scale byte: unsigned e4m3 with bias 7, the top bit ignored, times 1/2. 0x7f (NaN) reads as 0.
consteval ScaleTable make_ue4m3_scales() {
  ScaleTable table{};
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    float value = exponent == 0 ? mantissa * 0x1p-9f : (1.0f + mantissa / 8.0f) * 0x1p-7f;
    for (int i = 0; i < exponent; ++i) value *= 2.0f;
    table.of[byte] = byte == 0 || byte == 0x7f ? 0.0f : value * 0.5f;
  }
  return table;
}
inline constexpr ScaleTable kUe4m3Scales = make_ue4m3_scales();

}  // namespace qmm::cpu

namespace qmm::cpu::QMM_ISA {

struct IQ4_NL {  // half d, 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 18;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    decode_32_nibbles(codebook_levels(kIq4Levels, load_half(block)), block + 2, sink, 0);
  }
};

// Half d, word of high 2 bits and 4 bytes of low 4 bits of 8 scales, 128 bytes of codes. Each 16 bytes of codes
// are a sub-block of 32.
struct IQ4_XS {
  static constexpr int kWeights = 256, kBytes = 136;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const uint64_t six_bits =
        spread_4_bits(load_word<uint32_t>(block + 4)) | spread_2_bits(load_word<uint16_t>(block + 2)) << 4;
    const Bytes factors = bytes_sub(bytes_from_u64(six_bits, 0), bytes_set1(32));
    const Scales scale = scale_array(load_half(block), from_i8(factors));
    for (int i = 0; i < 8; ++i) {
      decode_32_nibbles(codebook_levels(kIq4Levels, scale.of[i]), block + 8 + 16 * i, sink, 32 * i);
    }
  }
};

struct MXFP4 {  // a power of two (e8m0), 16 bytes of codes
  static constexpr int kWeights = 32, kBytes = 17;

  // 2^(e - 127) / 2: the exponent field is e - 1, and a subnormal for e = 0 and 1.
  static QMM_INLINE float scale(uint32_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    decode_32_nibbles(codebook_levels(kFp4Levels, scale(block[0])), block + 1, sink, 0);
  }
};

// 4 scale bytes, then 8 bytes of codes for each sub-block of 16: its first 8 weights in the low halves.
struct NVFP4 {
  static constexpr int kWeights = 64, kBytes = 36;

  static QMM_INLINE Floats sub_block(const uint8_t* block, int i) {
    const Bytes packed = bytes_load8(block + 4 + 8 * i);
    const Bytes codes = bytes_join(packed, bytes_shift_right_dirty<4>(packed));
    return pick(codebook_levels(kFp4Levels, kUe4m3Scales.of[block[i]]), codes);
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    sink(sub_block(block, 0), sub_block(block, 1), 0);
    sink(sub_block(block, 2), sub_block(block, 3), 32);
  }
};

}  // namespace qmm::cpu::QMM_ISA
