// Barriers and the simdgroup and quadgroup functions. All work over the active lanes: those that reached the same call.
#pragma once

namespace metal {

enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_device_and_threadgroup = 3
};
METALSIM_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
METALSIM_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((int)a & (int)b); }

METALSIM_INLINE void threadgroup_barrier(mem_flags flags, const METALSIM_CONSTANT char* file = __builtin_FILE(),
                                         int line = __builtin_LINE()) {
  metalsim::metalsim_group_barrier((int)flags, file, line);
}
METALSIM_INLINE void simdgroup_barrier(mem_flags flags) {
#ifndef METALSIM_CHECKED
  // With no memory to order nothing can be observed: lanes need not meet.
  if (!(int)flags) return;
#endif
  metalsim::metalsim_simd_barrier((int)flags);
}

// What works on values that were exchanged already is kept out of line: every call of a simdgroup operation would carry
// a copy. It touches the engine's memory and its own stack only, nothing that checked mode looks at.
#define METALSIM_OUTLINE inline __attribute__((noinline, no_sanitize("thread")))

template <class T>
METALSIM_INLINE T lane_value(const metalsim::Exchange* exchange, unsigned lane) {
  T value;
  __builtin_memcpy(&value, exchange->slots[lane], sizeof(T));
  return value;
}
template <class T>
METALSIM_INLINE metalsim::Exchange* exchange_lanes(T value) {
  static_assert(sizeof(T) <= 64, "a simdgroup operation's value is too large");
  return metalsim::metalsim_simd_exchange(&value, sizeof(T));
}

// Combines the lanes first..first+count-1 in the order of a butterfly, as hardware does, so that rounding is alike.
template <class T, class F>
METALSIM_OUTLINE T combine(const metalsim::Exchange* exchange, unsigned first, unsigned count, F f) {
  T values[32];
  unsigned n = 0;
  for (unsigned i = first; i < first + count; i++)
    if (exchange->mask >> i & 1) values[n++] = lane_value<T>(exchange, i);
  for (unsigned width = 1; width < n; width *= 2)
    for (unsigned i = 0; i + width < n; i += 2 * width) values[i] = f(values[i], values[i + width]);
  return values[0];
}
// The first lane that comes back from the exchange reduces for all.
template <class T, class F>
METALSIM_INLINE T simd_reduce(T x, F f) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  T result;
  if (!exchange->reduced) {
    result = combine<T>(exchange, 0, 32, f);
    __builtin_memcpy(exchange->result, &result, sizeof(T));
    exchange->reduced = true;
  }
  __builtin_memcpy(&result, exchange->result, sizeof(T));
  return result;
}
template <class T, class F>
METALSIM_INLINE T quad_reduce(T x, F f) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  return combine<T>(exchange, metalsim::this_lane() & ~3u, 4, f);
}
#define METALSIM_REDUCTION(name, expression)                         \
  template <class T>                                                 \
  METALSIM_INLINE T simd_##name(T x) {                               \
    return simd_reduce(x, [](T a, T b) { return (T)(expression); }); \
  }                                                                  \
  template <class T>                                                 \
  METALSIM_INLINE T quad_##name(T x) {                               \
    return quad_reduce(x, [](T a, T b) { return (T)(expression); }); \
  }
METALSIM_REDUCTION(sum, a + b)
METALSIM_REDUCTION(product, a* b)
METALSIM_REDUCTION(min, min(a, b))
METALSIM_REDUCTION(max, max(a, b))
METALSIM_REDUCTION(and, a& b)
METALSIM_REDUCTION(or, a | b)
METALSIM_REDUCTION(xor, a ^ b)

// What one lane brought. A value from a lane that takes no part is undefined in Metal, so it is reported.
template <class T>
METALSIM_INLINE T from_lane(const metalsim::Exchange* exchange, unsigned lane) {
  if (!(exchange->mask >> lane & 1)) metalsim::metalsim_inactive_lane((int)lane);
  return lane_value<T>(exchange, lane);
}
// A shuffle within groups of `width` lanes: out of the group a lane keeps its own value (down, up) or its fill.
template <class T>
METALSIM_INLINE T simd_broadcast(T x, ushort lane) {
  return from_lane<T>(exchange_lanes(x), lane & 31u);
}
template <class T>
METALSIM_INLINE T simd_shuffle(T x, ushort lane) {
  return from_lane<T>(exchange_lanes(x), lane & 31u);
}
template <class T>
METALSIM_INLINE T simd_shuffle_xor(T x, ushort mask) {
  return from_lane<T>(exchange_lanes(x), (metalsim::this_lane() ^ mask) & 31u);
}
template <class T>
METALSIM_INLINE T simd_shuffle_down(T x, ushort delta) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  unsigned lane = metalsim::this_lane() + delta;
  return lane < 32 ? from_lane<T>(exchange, lane) : x;
}
template <class T>
METALSIM_INLINE T simd_shuffle_up(T x, ushort delta) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  unsigned lane = metalsim::this_lane() - delta;
  return lane < 32 ? from_lane<T>(exchange, lane) : x;
}
template <class T>
METALSIM_INLINE T simd_shuffle_rotate_down(T x, ushort delta) {
  return from_lane<T>(exchange_lanes(x), (metalsim::this_lane() + delta) & 31u);
}
template <class T>
METALSIM_INLINE T simd_shuffle_rotate_up(T x, ushort delta) {
  return from_lane<T>(exchange_lanes(x), (metalsim::this_lane() - delta) & 31u);
}
// Below the group's end a lane's value comes from `x`, above it from the beginning of the group's `fill`.
template <class T>
METALSIM_INLINE T simd_shuffle_and_fill_down(T x, T fill, ushort delta, ushort width = 32) {
  struct Pair {
    T x, fill;
  };
  metalsim::Exchange* exchange = exchange_lanes(Pair{x, fill});
  unsigned lane = metalsim::this_lane(), base = lane & ~(width - 1u), source = lane - base + delta;
  return source < width ? from_lane<Pair>(exchange, base + source).x
                        : from_lane<Pair>(exchange, base + (source & (width - 1u))).fill;
}
template <class T>
METALSIM_INLINE T simd_shuffle_and_fill_up(T x, T fill, ushort delta, ushort width = 32) {
  struct Pair {
    T x, fill;
  };
  metalsim::Exchange* exchange = exchange_lanes(Pair{x, fill});
  unsigned lane = metalsim::this_lane(), base = lane & ~(width - 1u), source = lane - base - delta;
  return source < width ? from_lane<Pair>(exchange, base + source).x
                        : from_lane<Pair>(exchange, base + (source & (width - 1u))).fill;
}
template <class T>
METALSIM_INLINE T simd_broadcast_first(T x) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  return lane_value<T>(exchange, __builtin_ctz(exchange->mask));
}
template <class T>
METALSIM_INLINE T quad_broadcast(T x, ushort lane) {
  return from_lane<T>(exchange_lanes(x), (metalsim::this_lane() & ~3u) + (lane & 3u));
}
template <class T>
METALSIM_INLINE T quad_shuffle(T x, ushort lane) {
  return quad_broadcast(x, lane);
}
template <class T>
METALSIM_INLINE T quad_shuffle_xor(T x, ushort mask) {
  return from_lane<T>(exchange_lanes(x), metalsim::this_lane() ^ (mask & 3u));
}
template <class T>
METALSIM_INLINE T quad_shuffle_down(T x, ushort delta) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  unsigned lane = metalsim::this_lane();
  return (lane & 3u) + delta < 4 ? from_lane<T>(exchange, lane + delta) : x;
}
template <class T>
METALSIM_INLINE T quad_shuffle_up(T x, ushort delta) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  unsigned lane = metalsim::this_lane();
  return (lane & 3u) >= delta ? from_lane<T>(exchange, lane - delta) : x;
}

// Prefix operations run over the active lanes below this one (and itself, where inclusive).
template <class T, class F>
METALSIM_OUTLINE T combine_below(const metalsim::Exchange* exchange, T initial, unsigned end, F f) {
  T result = initial;
  for (unsigned i = 0; i < end; i++)
    if (exchange->mask >> i & 1) result = f(result, lane_value<T>(exchange, i));
  return result;
}
template <class T, class F>
METALSIM_INLINE T simd_prefix(T x, T initial, bool inclusive, F f) {
  metalsim::Exchange* exchange = exchange_lanes(x);
  return combine_below(exchange, initial, metalsim::this_lane() + inclusive, f);
}
#define METALSIM_PREFIX(name, initial, expression)                                      \
  template <class T>                                                                    \
  METALSIM_INLINE T simd_prefix_inclusive_##name(T x) {                                 \
    return simd_prefix(x, T(initial), true, [](T a, T b) { return (T)(expression); });  \
  }                                                                                     \
  template <class T>                                                                    \
  METALSIM_INLINE T simd_prefix_exclusive_##name(T x) {                                 \
    return simd_prefix(x, T(initial), false, [](T a, T b) { return (T)(expression); }); \
  }
METALSIM_PREFIX(sum, 0, a + b)
METALSIM_PREFIX(product, 1, a* b)

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  constexpr simd_vote(vote_t v = 0) : bits(v) {}
  METALSIM_INLINE explicit constexpr operator vote_t() const { return bits; }
  METALSIM_INLINE bool all() const { return bits == 0xffffffffu; }
  METALSIM_INLINE bool any() const { return bits != 0; }
};
METALSIM_OUTLINE ulong vote_bits(const metalsim::Exchange* exchange) {
  ulong bits = 0;
  for (unsigned i = 0; i < 32; i++)
    if (exchange->mask >> i & 1) bits |= (ulong)lane_value<uchar>(exchange, i) << i;
  return bits;
}
METALSIM_INLINE ulong ballot(bool x, bool quad) {
  ulong bits = vote_bits(exchange_lanes((uchar)x));
  return quad ? bits >> (metalsim::this_lane() & ~3u) & 15 : bits;
}
METALSIM_INLINE simd_vote simd_ballot(bool x) { return simd_vote(ballot(x, false)); }
METALSIM_INLINE simd_vote simd_active_threads_mask() { return simd_vote(ballot(true, false)); }
METALSIM_INLINE bool simd_any(bool x) { return ballot(x, false) != 0; }
METALSIM_INLINE bool simd_all(bool x) { return ballot(!x, false) == 0; }
METALSIM_INLINE bool quad_any(bool x) { return ballot(x, true) != 0; }
METALSIM_INLINE bool quad_all(bool x) { return ballot(!x, true) == 0; }
METALSIM_INLINE bool simd_is_first() {
  metalsim::Exchange* exchange = exchange_lanes((uchar)0);
  return (unsigned)__builtin_ctz(exchange->mask) == metalsim::this_lane();
}

}  // namespace metal
