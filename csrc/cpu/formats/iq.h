// The IQ formats below 4 bits: an index picks 4 or 8 weights at once from a grid (qmm_iq_grids.h, generated),
// signs and a sub-block scale are applied to them. Grid entries are signed bytes in one word, so that a lookup
// is one scalar load; signs are applied to the bytes, 16 in one operation: (d * g) * -1 and d * -g are the same
// float.
#pragma once

#include "../simd.h"
#include "common.h"
#include "qmm_iq_grids.h"

namespace qmm::cpu {

// Entry s: (s + 1/2) * factor, the scale of IQ2 and IQ3_XXS but for d. The factor is a power of two, so folding
// it in here rounds as multiplying with it last does.
struct HalfStepScales {
  float of[16];
};
consteval HalfStepScales make_half_step_scales(float factor) {
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

  static QMM_INLINE Bytes sixteen(uint64_t words) {
    return bytes_from_u64(kIq2XsGrid[words & 511], kIq2XsGrid[words >> 16 & 511]);
  }
  // The four 7-bit fields, moved together into the low half.
  static QMM_INLINE uint32_t signs(uint64_t words) {
    uint64_t x = words >> 9 & 0x007f007f007f007f;
    x = (x | x >> 8) & 0x0000ffff0000ffff;
    return even_parity(static_cast<uint32_t>(x | x >> 16));
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const float d = load_half(block);
    for (int i = 0; i < 8; ++i) {
      const uint64_t words = load_word<uint64_t>(block + 2 + 8 * i);
      const uint32_t bits = signs(words), scales = block[66 + i];
      sink(signed_weights(d * kIq2Scales.of[scales & 15], sixteen(words), bits & 0xffff),
           signed_weights(d * kIq2Scales.of[scales >> 4], sixteen(words >> 32), bits >> 16), 32 * i);
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
      sink(signed_weights(scale, sixteen(index), signs & 0xffff),
           signed_weights(scale, sixteen(index + 4), signs >> 16), 32 * i);
    }
  }
};

// Half d; 64 bytes of low 8 index bits; 8 bytes of ninth index bits; 32 bytes of signs; 4 bytes of two 4-bit
// scales, one for 32 weights.
struct IQ3_S {
  static constexpr int kWeights = 256, kBytes = 110;

  struct Indices {
    alignas(64) uint16_t of[64];
  };
  // The 9-bit indices, put together as bytes 8 at once: the ninth bits one by one would take three operations
  // each.
  static QMM_INLINE Indices unpack_indices(const uint8_t* low, const uint8_t* top) {
    Indices indices;
    for (int i = 0; i < 8; ++i) {
      const Bytes ninth = bytes_where(top[i], bytes_set1(1));
      bytes_store(indices.of + 8 * i, bytes_interleave(bytes_load8(low + 8 * i), ninth));
    }
    keep_in_memory(indices.of);
    return indices;
  }
  static QMM_INLINE Bytes sixteen(const uint16_t* index) {
    return bytes_from_u32(kIq3SGrid[index[0]], kIq3SGrid[index[1]], kIq3SGrid[index[2]], kIq3SGrid[index[3]]);
  }
  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Indices indices = unpack_indices(block + 2, block + 66);
    const Floats factors = from_u8(bytes_from_u64(spread_4_bits(load_word<uint32_t>(block + 106)), 0));
    const Scales scale = scale_array(load_half(block), add(add(factors, factors), set1(1.0f)));
    for (int i = 0; i < 8; ++i) {
      const uint16_t* index = indices.of + 8 * i;
      const uint32_t signs = load_word<uint32_t>(block + 74 + 4 * i);
      sink(signed_weights(scale.of[i], sixteen(index), signs & 0xffff),
           signed_weights(scale.of[i], sixteen(index + 4), signs >> 16), 32 * i);
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

  // Each 16-bit word holds scales 4 q to 4 q + 3 in bits 0, 3, 6 and 9: even ones and odd ones, as bytes.
  static QMM_INLINE Scales unpack_scales(uint64_t words) {
    constexpr uint64_t kLow = 0x0007000700070007, kHigh = kLow << 8;
    const uint64_t even = (words & kLow) | (words << 2 & kHigh), odd = (words >> 3 & kLow) | (words >> 1 & kHigh);
    const Floats factors = from_u8(bytes_interleave(bytes_from_u64(even, 0), bytes_from_u64(odd, 0)));
    const uint64_t d = (words >> 12 & 0xf) | (words >> 24 & 0xf0) | (words >> 36 & 0xf00) | (words >> 48 & 0xf000);
    // (2 s + 1) / 8, as in kIq1Scales.
    return scale_array(half_to_float(static_cast<uint16_t>(d)), add(mul(factors, set1(0.25f)), set1(0.125f)));
  }

  // Indices and shifts of 64 weights.
  struct Groups {
    alignas(16) uint16_t index[8];
    Bytes shift;  // 1 or -1 for each of 8 groups of 8 weights
  };
  static QMM_INLINE Groups unpack_groups(const uint8_t* low, const uint8_t* tops) {
    const Bytes packed = bytes_from_u32(load_word<uint32_t>(tops), 0, 0, 0);
    const Bytes fields = bytes_interleave(bit_field<0, 15>(packed), bit_field<4, 15>(packed));
    Groups groups;
    bytes_store(groups.index, bytes_interleave(bytes_load8(low), bit_field<0, 7>(fields)));
    keep_in_memory(groups.index);
    groups.shift = bytes_sub(bytes_set1(1), bit_field<2, 2>(fields));
    return groups;
  }

  // Weights 16 * pair on of the 64.
  static QMM_INLINE Floats sixteen(float scale, const Groups& groups, int pair) {
    const uint16_t* index = groups.index + 2 * pair;
    const uint64_t group = 0x0202020202020202u * static_cast<unsigned>(pair);
    const Bytes shift = bytes_lookup(groups.shift, bytes_from_u64(group, group + 0x0101010101010101u));
    const Bytes grid = bytes_from_u64(kIq1Grid[index[0]], kIq1Grid[index[1]]);
    return mul(set1(scale), from_i8(bytes_add(grid, shift)));
  }

  template <class Sink>
  static QMM_INLINE void decode(const uint8_t* block, Sink& sink) {
    const Scales scale = unpack_scales(load_word<uint64_t>(block + 48));
    for (int i = 0; i < 4; ++i) {
      const Groups groups = unpack_groups(block + 8 * i, block + 32 + 4 * i);
      const float* of = scale.of + 4 * i;
      sink(sixteen(of[0], groups, 0), sixteen(of[1], groups, 1), 64 * i);
      sink(sixteen(of[2], groups, 2), sixteen(of[3], groups, 3), 64 * i + 32);
    }
  }
};

}  // namespace qmm::cpu::QMM_ISA
