// The IQ formats below 4 bits: an index picks 4 or 8 weights at once from a grid (qmm_iq_grids.h, generated),
// signs and a sub-block scale are applied to them. Grid entries are signed bytes in one word, so that a lookup
// is one scalar load; signs are applied to the bytes, 16 in one operation: (d * g) * -1 and d * -g are the same
// float.
#pragma once

#include "../simd.h"
#include "k_quants.h"
#include "qmm_iq_grids.h"
#include "spread.h"

namespace qmm::cpu {

// Entry s: (s + 1/2) * factor, the scale of IQ2 and IQ3_XXS but for d. The factor is a power of two, so folding
// it in here rounds as multiplying with it last does.
struct HalfStepScales {
  float of[16];
};
constexpr HalfStepScales make_half_step_scales(float factor) {
  HalfStepScales scales{};
  for (int s = 0; s < 16; ++s) scales.of[s] = (0.5f + static_cast<float>(s)) * factor;
  return scales;
}
inline constexpr HalfStepScales kIq2Scales = make_half_step_scales(0.25f);
inline constexpr HalfStepScales kIq3Scales = make_half_step_scales(0.5f);

// Entry s: (2 s + 1) / 8, the scale of IQ1 but for d; the grid's bytes are 8 times the levels.
inline constexpr float kIq1Scales[8] = {0.125f, 0.375f, 0.625f, 0.875f, 1.125f, 1.375f, 1.625f, 1.875f};

}  // namespace qmm::cpu

namespace qmm::cpu::QMM_ISA {

// 16 weights: grid bytes, a sign bit each, and their scale.
QMM_INLINE Floats signed_weights(float d, Bytes grid, uint32_t signs) {
  return mul(set1(d), from_i8(bytes_negate_where(grid, signs)));
}


// Half d; for each sub-block of 32: 4 index bytes, and a word of four 7-bit sign fields and a 4-bit scale.
struct IQ2_XXS {
  static constexpr int kWeights = 256, kBytes = 66;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* sub = block + 2 + 8 * i;
      const uint32_t word = load_word<uint32_t>(sub + 4), signs = spread_signs(word);
      const float scale = d * kIq2Scales.of[word >> 28];
      sink(signed_weights(scale, bytes_from_u64(kIq2XxsGrid[sub[0]], kIq2XxsGrid[sub[1]]), signs & 0xffff),
           signed_weights(scale, bytes_from_u64(kIq2XxsGrid[sub[2]], kIq2XxsGrid[sub[3]]), signs >> 16), 32 * i);
    }
  }
};

// Half d; 32 words of a 9-bit index and a 7-bit sign field; 8 bytes of two 4-bit scales, one for 16 weights.
struct IQ2_XS {
  static constexpr int kWeights = 256, kBytes = 74;

  static QMM_INLINE Floats sixteen(float scale, uint32_t words) {
    const uint32_t signs = even_parity((words >> 9 & 0x7f) | (words >> 17 & 0x7f00));
    return signed_weights(scale, bytes_from_u64(kIq2XsGrid[words & 511], kIq2XsGrid[words >> 16 & 511]), signs);
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* words = block + 2 + 8 * i;
      const uint32_t scales = block[66 + i];
      sink(sixteen(d * kIq2Scales.of[scales & 15], load_word<uint32_t>(words)),
           sixteen(d * kIq2Scales.of[scales >> 4], load_word<uint32_t>(words + 4)), 32 * i);
    }
  }
};

// Half d; 32 bytes of low 8 index bits; 32 bytes of signs; 8 bytes of four 2-bit index tops; 8 bytes of two 4-bit
// scales, one for 16 weights.
struct IQ2_S {
  static constexpr int kWeights = 256, kBytes = 82;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* low = block + 2 + 4 * i;
      const uint32_t signs = load_word<uint32_t>(block + 34 + 4 * i), top = block[66 + i], scales = block[74 + i];
      const Bytes a = bytes_from_u64(kIq2SGrid[low[0] | (top << 8 & 0x300)], kIq2SGrid[low[1] | (top << 6 & 0x300)]);
      const Bytes b = bytes_from_u64(kIq2SGrid[low[2] | (top << 4 & 0x300)], kIq2SGrid[low[3] | (top << 2 & 0x300)]);
      sink(signed_weights(d * kIq2Scales.of[scales & 15], a, signs & 0xffff),
           signed_weights(d * kIq2Scales.of[scales >> 4], b, signs >> 16), 32 * i);
    }
  }
};

// Half d; 64 index bytes, one for 4 weights; for each sub-block of 32 a word as in IQ2_XXS.
struct IQ3_XXS {
  static constexpr int kWeights = 256, kBytes = 98;

  static QMM_INLINE Bytes sixteen(const uint8_t* index) {
    return bytes_from_u32(kIq3XxsGrid[index[0]], kIq3XxsGrid[index[1]], kIq3XxsGrid[index[2]], kIq3XxsGrid[index[3]]);
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* index = block + 2 + 8 * i;
      const uint32_t word = load_word<uint32_t>(block + 66 + 4 * i), signs = spread_signs(word);
      const float scale = d * kIq3Scales.of[word >> 28];
      sink(signed_weights(scale, sixteen(index), signs & 0xffff), signed_weights(scale, sixteen(index + 4), signs >> 16),
           32 * i);
    }
  }
};

// Half d; 64 bytes of low 8 index bits; 8 bytes of ninth index bits; 32 bytes of signs; 4 bytes of two 4-bit
// scales, one for 32 weights.
struct IQ3_S {
  static constexpr int kWeights = 256, kBytes = 110;

  // `top` holds the ninth bits of these four indices in bits 0-3.
  static QMM_INLINE Bytes sixteen(const uint8_t* low, uint32_t top) {
    return bytes_from_u32(kIq3SGrid[low[0] | (top << 8 & 256)], kIq3SGrid[low[1] | (top << 7 & 256)],
                          kIq3SGrid[low[2] | (top << 6 & 256)], kIq3SGrid[low[3] | (top << 5 & 256)]);
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* low = block + 2 + 8 * i;
      const uint32_t top = block[66 + i], signs = load_word<uint32_t>(block + 74 + 4 * i);
      const uint32_t factor = block[106 + i / 2] >> (i % 2 * 4) & 15;
      const float scale = d * static_cast<float>(2 * factor + 1);
      sink(signed_weights(scale, sixteen(low, top), signs & 0xffff),
           signed_weights(scale, sixteen(low + 4, top >> 4), signs >> 16), 32 * i);
    }
  }
};

// Half d; 32 bytes of low 8 index bits; for each sub-block of 32 a word: four 3-bit index tops, a 3-bit scale,
// and the sign of the shift (set: minus) that all its weights get.
struct IQ1_S {
  static constexpr int kWeights = 256, kBytes = 50;
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint8_t* low = block + 2 + 4 * i;
      const uint32_t word = load_word<uint16_t>(block + 34 + 2 * i);
      const Bytes a = bytes_from_u64(kIq1Grid[low[0] | (word << 8 & 0x700)], kIq1Grid[low[1] | (word << 5 & 0x700)]);
      const Bytes b = bytes_from_u64(kIq1Grid[low[2] | (word << 2 & 0x700)], kIq1Grid[low[3] | (word >> 1 & 0x700)]);
      const Bytes shift = bytes_set1(1 - 2 * static_cast<int>(word >> 15));
      const Floats scale = set1(d * kIq1Scales[word >> 12 & 7]);
      sink(mul(scale, from_i8(bytes_add(a, shift))), mul(scale, from_i8(bytes_add(b, shift))), 32 * i);
    }
  }
};

// 32 bytes of low 8 index bits; 16 bytes of two 4-bit fields, one for 8 weights: 3 index tops and the sign of the
// shift; four 16-bit words of four 3-bit scales, one for 16 weights, whose top 4 bits together are half d.
struct IQ1_M {
  static constexpr int kWeights = 256, kBytes = 56;

  static QMM_INLINE Bytes sixteen(const uint8_t* low, uint32_t tops) {
    const Bytes grid = bytes_from_u64(kIq1Grid[low[0] | (tops << 8 & 0x700)], kIq1Grid[low[1] | (tops << 4 & 0x700)]);
    // A byte is 1 or, where the field's top bit is set, -1.
    constexpr uint64_t kOnes = 0x0101010101010101;
    const uint64_t minus_a = tops & 0x08 ? ~uint64_t{0} : kOnes, minus_b = tops & 0x80 ? ~uint64_t{0} : kOnes;
    return bytes_add(grid, bytes_from_u64(minus_a, minus_b));
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const uint64_t words = load_word<uint64_t>(block + 48);
    const float d = half_to_float(static_cast<uint16_t>((words >> 12 & 0xf) | (words >> 24 & 0xf0) |
                                                        (words >> 36 & 0xf00) | (words >> 48 & 0xf000)));
    for (int i = 0; i < 8; ++i) {
      const uint32_t scales = static_cast<uint32_t>(words >> (16 * (i / 2) + 6 * (i % 2)));
      const uint8_t *low = block + 4 * i, *tops = block + 32 + 2 * i;
      sink(mul(set1(d * kIq1Scales[scales & 7]), from_i8(sixteen(low, tops[0]))),
           mul(set1(d * kIq1Scales[scales >> 3 & 7]), from_i8(sixteen(low + 2, tops[1]))), 32 * i);
    }
  }
};

}  // namespace qmm::cpu::QMM_ISA
