// bfloat in strict mode: a class, so that what Metal refuses (float or half taken for bfloat without a cast) is
// refused. Only declared: strict mode runs nothing.
#pragma once

struct bfloat {
  ushort bits;
  bfloat() = default;
  bfloat(const bfloat&) = default;
  bfloat& operator=(const bfloat&) = default;
  constexpr bfloat(const __constant bfloat& o) : bits(o.bits) {}
  template <class S, bool Integer = __is_integral(S), int = Integer ? 1 : 0, class = char[Integer ? 1 : -1]>
  constexpr bfloat(S) : bits(0) {}
  constexpr explicit bfloat(float) : bits(0) {}
  constexpr explicit bfloat(half) : bits(0) {}
  constexpr operator float() const { return 0; }
  constexpr operator float() const __constant { return 0; }
  constexpr bfloat operator-() const { return *this; }
  constexpr bfloat operator+() const { return *this; }
#define METALSIM_BFLOAT_OPERATOR(op)                                  \
  friend constexpr bfloat operator op(bfloat a, bfloat) { return a; } \
  bfloat& operator op##=(bfloat);
  METALSIM_BFLOAT_OPERATOR(+)
  METALSIM_BFLOAT_OPERATOR(-)
  METALSIM_BFLOAT_OPERATOR(*)
  METALSIM_BFLOAT_OPERATOR(/)
#undef METALSIM_BFLOAT_OPERATOR
};
