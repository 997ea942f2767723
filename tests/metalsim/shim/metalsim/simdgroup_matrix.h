// 8x8 matrices spread over a simdgroup: each lane owns two neighbours of one row, in Apple's layout.
#pragma once

namespace metal {

METALSIM_INLINE unsigned matrix_row(unsigned lane) { return (lane / 4 & 4) + lane / 2 % 4; }
METALSIM_INLINE unsigned matrix_column(unsigned lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

// After simdgroup_load a lane also keeps the whole tile, so that a product needs no meeting of lanes (which would cost
// five times as much); once thread_elements may have changed a lane's own pair, the lanes exchange theirs.
template <class T, int C, int R>
struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "simdgroup matrices are 8x8");
  alignas(2 * sizeof(T)) T own[2];
  bool has_tile, transposed;  // the tile lies as it did in memory: transposed means by columns
  T tile[64];

  METALSIM_INLINE simdgroup_matrix() : has_tile(false), transposed(false) {}
  METALSIM_INLINE explicit simdgroup_matrix(T diagonal) : has_tile(true), transposed(false) {
    for (int i = 0; i < 64; i++) tile[i] = i % 9 == 0 ? diagonal : (T)0;
    take_own();
  }
  METALSIM_INLINE void take_own() {
    unsigned lane = metalsim::this_lane(), at = 8 * matrix_row(lane) + matrix_column(lane);
    own[0] = tile[at];
    own[1] = tile[at + 1];
  }
  METALSIM_INLINE METALSIM_THREAD vec<T, 2>& thread_elements() {
    has_tile = false;
    return *(METALSIM_THREAD vec<T, 2>*)own;
  }
  METALSIM_INLINE void need_tile() {
    if (has_tile) return;
    metalsim::Exchange* exchange = exchange_lanes(vec<T, 2>(own[0], own[1]));
    for (unsigned lane = 0; lane < 32; lane++) {
      vec<T, 2> pair = from_lane<vec<T, 2>>(exchange, lane);
      unsigned at = 8 * matrix_row(lane) + matrix_column(lane);
      tile[at] = pair[0];
      tile[at + 1] = pair[1];
    }
    has_tile = true;
    transposed = false;
  }
  // Eight elements in a row or a column, as float. Contiguous ones convert in one instruction.
  METALSIM_INLINE void line(bool by_row, unsigned index, METALSIM_THREAD float* x) const {
    if (by_row != transposed)
      for (int k = 0; k < 8; k++) x[k] = (float)tile[8 * index + k];
    else
      for (int k = 0; k < 8; k++) x[k] = (float)tile[8 * k + index];
  }
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

template <class T, int C, int R>
METALSIM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> m;
  for (int i = 0; i < 64; i++) m.tile[i] = value;
  m.own[0] = m.own[1] = value;
  m.has_tile = true;
  m.transposed = false;
  return m;
}
template <class T, int C, int R>
METALSIM_INLINE simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, C, R>(value);
}

#ifdef METALSIM_CHECKED
#define metalsim_check_tile metalsim::metalsim_check_tile
#define METALSIM_MATRIX_OPERATION(name) metalsim::metalsim_matrix_operation(metalsim::MatrixOperation::name)
#else
// Without checks one lane's call, for the counters, is enough.
#define metalsim_check_tile(first, row_bytes, size)
#define METALSIM_MATRIX_OPERATION(name) \
  if (metalsim::this_lane() == 0) metalsim::metalsim_matrix_operation(metalsim::MatrixOperation::name)
#endif
// Not instrumented: what a lane itself reads is its pair.
#define METALSIM_COPY_TILE(space)                                                                \
  template <class T>                                                                             \
  METALSIM_TILE_COPY void copy_tile(const space T* source, ulong row, METALSIM_THREAD T* tile) { \
    for (int r = 0; r < 8; r++, source += row)                                                   \
      for (int c = 0; c < 8; c++) tile[r * 8 + c] = source[c];                                   \
  }
#ifdef METALSIM_CHECKED
#define METALSIM_TILE_COPY __attribute__((noinline, no_sanitize("thread")))
#else
#define METALSIM_TILE_COPY METALSIM_INLINE
#endif
#ifdef METALSIM_STRICT
METALSIM_COPY_TILE(__global)
METALSIM_COPY_TILE(__local)
#else
METALSIM_COPY_TILE()
#endif

// Each lane reads its own pair (which is what is checked and counted) and copies the tile behind the checks' back.
#define METALSIM_MATRIX_MEMORY(space)                                                                       \
  template <class T>                                                                                        \
  METALSIM_INLINE void simdgroup_load(METALSIM_THREAD simdgroup_matrix<T, 8, 8>& d, const space T* source,  \
                                      ulong row = 8, vec<ulong, 2> origin = vec<ulong, 2>(0, 0),            \
                                      bool transposed = false) {                                            \
    source += origin[1] * row + origin[0];                                                                  \
    METALSIM_MATRIX_OPERATION(load);                                                                        \
    metalsim_check_tile((const void*)source, row * sizeof(T), sizeof(T));                                   \
    copy_tile(source, row, d.tile);                                                                         \
    unsigned lane = metalsim::this_lane(), r = matrix_row(lane), c = matrix_column(lane);                   \
    ulong along = transposed ? row : 1, across = transposed ? 1 : row;                                      \
    d.own[0] = source[r * across + c * along];                                                              \
    d.own[1] = source[r * across + (c + 1) * along];                                                        \
    d.has_tile = true;                                                                                      \
    d.transposed = transposed;                                                                              \
  }                                                                                                         \
  template <class T>                                                                                        \
  METALSIM_INLINE void simdgroup_store(const METALSIM_THREAD simdgroup_matrix<T, 8, 8>& s, space T* target, \
                                       ulong row = 8, vec<ulong, 2> origin = vec<ulong, 2>(0, 0),           \
                                       bool transposed = false) {                                           \
    target += origin[1] * row + origin[0];                                                                  \
    METALSIM_MATRIX_OPERATION(store);                                                                       \
    unsigned lane = metalsim::this_lane(), r = matrix_row(lane), c = matrix_column(lane);                   \
    ulong along = transposed ? row : 1, across = transposed ? 1 : row;                                      \
    target[r * across + c * along] = s.own[0];                                                              \
    target[r * across + (c + 1) * along] = s.own[1];                                                        \
  }
#ifdef METALSIM_STRICT
METALSIM_MATRIX_MEMORY(__global)
METALSIM_MATRIX_MEMORY(__local)
#else
METALSIM_MATRIX_MEMORY()
#endif

template <class TD, class TA, class TB, class TC>
METALSIM_INLINE void simdgroup_multiply_accumulate(METALSIM_THREAD simdgroup_matrix<TD, 8, 8>& d,
                                                   METALSIM_THREAD simdgroup_matrix<TA, 8, 8>& a,
                                                   METALSIM_THREAD simdgroup_matrix<TB, 8, 8>& b,
                                                   METALSIM_THREAD simdgroup_matrix<TC, 8, 8>& c) {
  METALSIM_MATRIX_OPERATION(multiply_accumulate);
  a.need_tile();
  b.need_tile();
  unsigned lane = metalsim::this_lane(), column = matrix_column(lane);
  float left[8], right0[8], right1[8];
  a.line(true, matrix_row(lane), left);
  b.line(false, column, right0);
  b.line(false, column + 1, right1);
  // Four sums at a time, which a processor runs side by side.
  float sums0[4], sums1[4];
  for (int k = 0; k < 4; k++) {
    sums0[k] = left[k] * right0[k] + left[k + 4] * right0[k + 4];
    sums1[k] = left[k] * right1[k] + left[k + 4] * right1[k + 4];
  }
  d.own[0] = (TD)((float)c.own[0] + ((sums0[0] + sums0[2]) + (sums0[1] + sums0[3])));
  d.own[1] = (TD)((float)c.own[1] + ((sums1[0] + sums1[2]) + (sums1[1] + sums1[3])));
  d.has_tile = false;
}
template <class TD, class TA, class TB>
METALSIM_INLINE void simdgroup_multiply(METALSIM_THREAD simdgroup_matrix<TD, 8, 8>& d,
                                        METALSIM_THREAD simdgroup_matrix<TA, 8, 8>& a,
                                        METALSIM_THREAD simdgroup_matrix<TB, 8, 8>& b) {
  simdgroup_matrix<TD, 8, 8> zero = make_filled_simdgroup_matrix<TD, 8, 8>((TD)0);
  simdgroup_multiply_accumulate(d, a, b, zero);
}

}  // namespace metal
