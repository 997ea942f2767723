// The CPU kernels, written once over simd.h and compiled once for each instruction set by kernels_*.cpp.
//
// A format is a trait in formats/*.h: `decode(block, sink)` unpacks one block in registers and hands the weights
// to the sink, 32 at a time, in order. Storing sinks make dequantize; a multiplying sink makes the vector kernel
// of up to kDirectTokens tokens, where unpacking is the cost. With more tokens the multiplications are: a tile of
// rows is unpacked once into the L1 cache, and a register-blocked loop multiplies it with all tokens of a group.
//
// Both ways add up in the same order, so a token's result does not depend on the tokens beside it:
//   lanes    element k goes to lane k % 16 of accumulator k / 16 % 2: two chains hide the latency of the FMA;
//   tiles    every kTile elements the two accumulators are added and go to a total: with two levels the
//            rounding error of a long row stays that of a short one;
//   row      reduce() adds the 16 lanes of the total in a fixed order.
#pragma once

#include "formats/codebook4.h"
#include "formats/iq.h"
#include "formats/k_quants.h"
#include "formats/legacy.h"
#include "formats/plain.h"
#include "formats/ternary.h"
#include "simd.h"

namespace qmm::cpu::QMM_ISA {

constexpr int kStep = 32;                    // elements that one sink call takes
constexpr int64_t kTile = 1024;              // elements of a row unpacked at a time: 3 rows are 12 KiB, a third of L1
constexpr int64_t kTileStride = kTile + 16;  // a stride of 4 KiB would put the rows in the same cache sets
constexpr int kTileRows = 3;
constexpr int kTokenGroup = 8;    // tokens that share one unpacking
constexpr int kDirectTokens = 3;  // up to so many tokens, multiply in the sink: x of more no longer fits L1

// Not std::min: a template of the standard library, compiled here, could be linked into code for any processor.
QMM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// How a kernel walks over a format: quantized formats by blocks, plain ones by 32 values and a tail.
template <class Trait>
struct Walk {
  static constexpr bool kPlain = Trait::kWeights == 1;
  static constexpr int kWeights = kPlain ? kStep : Trait::kWeights;
  static constexpr int kBytes = kPlain ? kStep * Trait::kBytes : Trait::kBytes;
};

// The elements after the last whole step of a plain row, padded with zeros.
template <class Trait>
struct Tail {
  alignas(64) uint8_t bytes[kStep * 4] = {};

  Tail(const uint8_t* packed, int64_t count) { std::memcpy(bytes, packed, static_cast<size_t>(count * Trait::kBytes)); }
};

// ---- dequantize

struct StoreF32 {
  float* out;
  QMM_INLINE void operator()(Floats lo, Floats hi, int offset) {
    store(out + offset, lo);
    store(out + offset + 16, hi);
  }
};
struct StoreF16 {
  uint16_t* out;
  QMM_INLINE void operator()(Floats lo, Floats hi, int offset) {
    store_f16(out + offset, lo);
    store_f16(out + offset + 16, hi);
  }
};
struct StoreBf16 {
  uint16_t* out;
  QMM_INLINE void operator()(Floats lo, Floats hi, int offset) {
    store_bf16(out + offset, lo);
    store_bf16(out + offset + 16, hi);
  }
};

template <class Trait, class Store, class Out>
void dequantize(const uint8_t* packed, int64_t blocks, Out* out) {
  using W = Walk<Trait>;
  Store sink{out};
  const int64_t steps = W::kPlain ? blocks / kStep : blocks;
  for (int64_t i = 0; i < steps; ++i) {
    Trait::decode(packed + i * W::kBytes, sink);
    sink.out += W::kWeights;
  }
  if constexpr (W::kPlain) {
    if (const int64_t count = blocks % kStep) {
      const Tail<Trait> tail(packed + steps * W::kBytes, count);
      Out padded[kStep];
      Store tail_sink{padded};
      Trait::decode(tail.bytes, tail_sink);
      std::memcpy(sink.out, padded, static_cast<size_t>(count) * sizeof(Out));
    }
  }
}

// ---- vector kernel, few tokens

template <int kTokens>
struct MultiplyAdd {
  const float* x;
  int64_t x_stride;
  Floats sum[kTokens][2];

  QMM_INLINE MultiplyAdd(const float* x_start, int64_t stride) : x(x_start), x_stride(stride) {
    for (auto& pair : sum) pair[0] = pair[1] = set1(0.0f);
  }
  QMM_INLINE void operator()(Floats lo, Floats hi, int offset) {
    for (int m = 0; m < kTokens; ++m) {
      const float* values = x + m * x_stride + offset;
      sum[m][0] = fma(lo, load(values), sum[m][0]);
      sum[m][1] = fma(hi, load(values + 16), sum[m][1]);
    }
  }
  QMM_INLINE void add_to(Floats* total) const {
    for (int m = 0; m < kTokens; ++m) total[m] = add(total[m], add(sum[m][0], sum[m][1]));
  }
};

// The last K % 32 elements of each token of a plain format, padded with zeros: zero weights meet zero x, so an
// infinity in x makes no NaN.
struct TailX {
  alignas(64) float values[kTokenGroup][kStep] = {};

  TailX(const float* x, int64_t x_stride, int64_t tokens, int64_t K) {
    for (int64_t m = 0; m < tokens; ++m) {
      std::memcpy(values[m], x + m * x_stride + K / kStep * kStep, static_cast<size_t>(K % kStep) * sizeof(float));
    }
  }
};

template <class Trait, int kTokens>
QMM_INLINE void multiply_row(const uint8_t* row, const MulMvArgs& a, const TailX* tail_x, Floats* total) {
  using W = Walk<Trait>;
  const int64_t whole = a.K / W::kWeights * W::kWeights;
  for (int m = 0; m < kTokens; ++m) total[m] = set1(0.0f);
  for (int64_t k0 = 0; k0 < whole; k0 += kTile) {
    MultiplyAdd<kTokens> sink(a.x + k0, a.x_stride);
    const int64_t blocks = smaller(kTile, whole - k0) / W::kWeights;
    for (int64_t i = 0; i < blocks; ++i) {
      Trait::decode(row, sink);
      row += W::kBytes;
      sink.x += W::kWeights;
    }
    sink.add_to(total);
  }
  if constexpr (W::kPlain) {
    if (a.K % kStep) {
      const Tail<Trait> tail(row, a.K % kStep);
      MultiplyAdd<kTokens> sink(tail_x->values[0], kStep);
      Trait::decode(tail.bytes, sink);
      sink.add_to(total);
    }
  }
}

template <class Trait, int kTokens>
void multiply_direct(const MulMvArgs& a) {
  const TailX tail_x(a.x, a.x_stride, Walk<Trait>::kPlain ? kTokens : 0, a.K);
  for (int64_t r = 0; r < a.rows; ++r) {
    Floats total[kTokens];
    multiply_row<Trait, kTokens>(a.weight + r * a.row_bytes, a, &tail_x, total);
    for (int m = 0; m < kTokens; ++m) a.y[m * a.y_stride + r] = reduce(total[m]);
  }
}

using MultiplyDirect = void (*)(const MulMvArgs&);

template <class Trait, int kTokens>
MultiplyDirect find_multiply_direct(int64_t tokens) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return find_multiply_direct<Trait, kTokens - 1>(tokens);
  }
  return multiply_direct<Trait, kTokens>;
}

// ---- vector kernel, many tokens

using DecodeTile = void (*)(const uint8_t* packed, int64_t blocks, float* out);

struct TileTotals {
  alignas(64) float of[kTileRows][kTokenGroup][16];
};

// totals[r][m] += tile[r] . x[m] over `count` elements (a multiple of 32), all kRows * kTokens * 2 accumulators
// in registers. Native vectors narrower than 16 floats take the lanes a vector at a time.
template <int kRows, int kTokens>
void multiply_tile(const float (*tile)[kTileStride], const float* x, int64_t x_stride, int64_t count, int first_token,
                   TileTotals& totals) {
  for (int lane = 0; lane < 16; lane += kLanes) {
    Vec sum[2][kRows][kTokens];
    for (auto& half : sum) {
      for (auto& row : half) {
        for (Vec& v : row) v = vec_set1(0.0f);
      }
    }
    for (int64_t k = lane; k < count; k += kStep) {
      for (int half = 0; half < 2; ++half) {
        Vec w[kRows];
        for (int r = 0; r < kRows; ++r) w[r] = vec_load(tile[r] + k + 16 * half);
        for (int m = 0; m < kTokens; ++m) {
          const Vec values = vec_keep(vec_load(x + m * x_stride + k + 16 * half));
          for (int r = 0; r < kRows; ++r) sum[half][r][m] = vec_fma(w[r], values, sum[half][r][m]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int m = 0; m < kTokens; ++m) {
        float* total = totals.of[r][first_token + m] + lane;
        vec_store(total, vec_add(vec_load(total), vec_add(sum[0][r][m], sum[1][r][m])));
      }
    }
  }
}

using MultiplyTile = void (*)(const float (*)[kTileStride], const float*, int64_t, int64_t, int, TileTotals&);

template <int kRows, int kTokens>
MultiplyTile find_multiply_tile(int64_t tokens) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return find_multiply_tile<kRows, kTokens - 1>(tokens);
  }
  return multiply_tile<kRows, kTokens>;
}

inline void multiply_tile_all_tokens(const float (*tile)[kTileStride], int64_t rows, const float* x, int64_t x_stride,
                                     int64_t tokens, int64_t count, TileTotals& totals) {
  for (int64_t m = 0; m < tokens; m += kMicroTokens) {
    const auto multiply = rows == 3   ? find_multiply_tile<3, kMicroTokens>(tokens - m)
                          : rows == 2 ? find_multiply_tile<2, kMicroTokens>(tokens - m)
                                      : find_multiply_tile<1, kMicroTokens>(tokens - m);
    multiply(tile, x + m * x_stride, x_stride, count, static_cast<int>(m), totals);
  }
}

struct TiledFormat {
  DecodeTile decode;
  int64_t block_weights, block_bytes;  // those of the format
};

// Rows are read a tile at a time in turn, bursts too short for the processor's own prefetching. Large tiles go to
// L2, where they do not displace those at work. An address past the end is harmless.
QMM_INLINE void prefetch(const uint8_t* packed, int64_t bytes) {
  if (bytes < 2048) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(packed + i, 0, 3);
  } else {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(packed + i, 0, 2);
  }
}

// Rows [first_row, first_row + rows) for a.tokens <= kTokenGroup tokens.
inline void multiply_row_group(const MulMvArgs& a, const TiledFormat& format, int64_t first_row, int64_t rows,
                               const TailX& tail_x) {
  alignas(64) float tile[kTileRows][kTileStride];
  TileTotals totals{};
  const int64_t whole = a.K / kStep * kStep;
  const auto decode_rows = [&](int64_t k0, int64_t blocks) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t start = k0 / format.block_weights * format.block_bytes, bytes = blocks * format.block_bytes;
      const uint8_t* row = a.weight + (first_row + r) * a.row_bytes;
      const bool last = k0 + kTile >= whole;
      prefetch(last ? row + kTileRows * a.row_bytes : row + start + bytes, bytes);
      format.decode(row + start, blocks, tile[r]);
    }
  };
  for (int64_t k0 = 0; k0 < whole; k0 += kTile) {
    const int64_t count = smaller(kTile, whole - k0);
    decode_rows(k0, count / format.block_weights);
    multiply_tile_all_tokens(tile, rows, a.x + k0, a.x_stride, a.tokens, count, totals);
  }
  if (a.K > whole) {
    for (int64_t r = 0; r < rows; ++r) std::memset(tile[r], 0, kStep * sizeof(float));
    decode_rows(whole, a.K - whole);
    multiply_tile_all_tokens(tile, rows, tail_x.values[0], kStep, a.tokens, kStep, totals);
  }
  for (int64_t m = 0; m < a.tokens; ++m) {
    for (int64_t r = 0; r < rows; ++r) a.y[m * a.y_stride + first_row + r] = reduce(load(totals.of[r][m]));
  }
}

inline void multiply_tiled(const MulMvArgs& a, const TiledFormat& format) {
  const TailX tail_x(a.x, a.x_stride, a.tokens, a.K);
  for (int64_t r = 0; r < a.rows; r += kTileRows) {
    multiply_row_group(a, format, r, smaller(kTileRows, a.rows - r), tail_x);
  }
}

template <class Trait>
void mul_mv(const MulMvArgs& args) {
  static_assert(kTile % Walk<Trait>::kWeights == 0, "a tile must be whole blocks");
  constexpr TiledFormat kFormat{dequantize<Trait, StoreF32, float>, Trait::kWeights, Trait::kBytes};
  MulMvArgs group = args;
  for (int64_t m = 0; m < args.tokens; m += kTokenGroup) {
    group.x = args.x + m * args.x_stride;
    group.y = args.y + m * args.y_stride;
    group.tokens = smaller(kTokenGroup, args.tokens - m);
    if (group.tokens <= kDirectTokens) {
      find_multiply_direct<Trait, kDirectTokens>(group.tokens)(group);
    } else {
      multiply_tiled(group, kFormat);
    }
  }
}

// ---- conversions

template <class In, class Out, class Convert>
QMM_INLINE void convert(const In* in, int64_t n, Out* out, Convert convert16) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) convert16(in + i, out + i);
  if (i < n) {
    In padded_in[16] = {};
    Out padded_out[16];
    const size_t count = static_cast<size_t>(n - i);
    std::memcpy(padded_in, in + i, count * sizeof(In));
    convert16(padded_in, padded_out);
    std::memcpy(out + i, padded_out, count * sizeof(Out));
  }
}

inline void f16_to_f32(const uint16_t* in, int64_t n, float* out) {
  convert(in, n, out, [](const uint16_t* from, float* to) { store(to, load_f16(from)); });
}
inline void bf16_to_f32(const uint16_t* in, int64_t n, float* out) {
  convert(in, n, out, [](const uint16_t* from, float* to) { store(to, load_bf16(from)); });
}
inline void f32_to_f16(const float* in, int64_t n, uint16_t* out) {
  convert(in, n, out, [](const float* from, uint16_t* to) { store_f16(to, load(from)); });
}
inline void f32_to_bf16(const float* in, int64_t n, uint16_t* out) {
  convert(in, n, out, [](const float* from, uint16_t* to) { store_bf16(to, load(from)); });
}

// ---- the table

template <class Trait, int kWeights, int kBytes>
constexpr FormatKernels kernels_of() {
  static_assert(Trait::kWeights == kWeights && Trait::kBytes == kBytes, "the trait disagrees with formats.h");
  return {dequantize<Trait, StoreF32, float>, dequantize<Trait, StoreF16, uint16_t>,
          dequantize<Trait, StoreBf16, uint16_t>, mul_mv<Trait>};
}

#define QMM_KERNELS(name, id, weights, bytes) kernels_of<name, weights, bytes>(),
constexpr IsaKernels make_kernels(const char* name) {
  return {name, {QMM_FORMATS(QMM_KERNELS)}, {f16_to_f32, bf16_to_f32, f32_to_f16, f32_to_bf16}};
}
#undef QMM_KERNELS

}  // namespace qmm::cpu::QMM_ISA
