// Math, integer and relational functions on scalars and vectors. Half and bfloat are computed in float and rounded
// once; `precise` and `fast` are the same functions here (the C library's, within 1 ulp or so).
#pragma once

namespace metal {

// What a float function returns for an argument: itself for floating types, float for integers.
template <class T>
using float_result_t = conditional_t<is_floating_point_v<T>, T, float>;
template <class T>
using if_scalar = enable_if_t<is_arithmetic_v<T>, int>;

// Plain functions of float and half beside the templates, as Apple has them: overload resolution prefers them over
// other libraries' templates of the same name.
#define METALSIM_PLAIN_UNARY(name, T, expression) \
  METALSIM_INLINE T name(T argument) {            \
    float x = (float)argument;                    \
    return (T)(expression);                       \
  }
#define METALSIM_PLAIN_BINARY(name, T, expression) \
  METALSIM_INLINE T name(T first, T second) {      \
    float x = (float)first, y = (float)second;     \
    return (T)(expression);                        \
  }

// One argument: `x` is the float argument in `expression`.
#define METALSIM_UNARY(name, expression)                  \
  METALSIM_PLAIN_UNARY(name, float, expression)           \
  METALSIM_PLAIN_UNARY(name, half, expression)            \
  template <class T, if_scalar<T> = 0>                    \
  METALSIM_INLINE float_result_t<T> name(T argument) {    \
    float x = (float)argument;                            \
    return (float_result_t<T>)(expression);               \
  }                                                       \
  template <class T, int N>                               \
  METALSIM_INLINE vec<T, N> name(vec<T, N> a) {           \
    for (int i = 0; i < N; i++) a.v[i] = name((T)a.v[i]); \
    return a;                                             \
  }
// Two arguments: a vector may meet a scalar.
#define METALSIM_VECTOR_BINARY(name)                                          \
  template <class T, int N>                                                   \
  METALSIM_INLINE vec<T, N> name(vec<T, N> a, type_identity_t<vec<T, N>> b) { \
    for (int i = 0; i < N; i++) a.v[i] = name((T)a.v[i], (T)b.v[i]);          \
    return a;                                                                 \
  }                                                                           \
  template <class T, int N>                                                   \
  METALSIM_INLINE vec<T, N> name(T a, vec<T, N> b) {                          \
    return name(vec<T, N>(a), b);                                             \
  }
template <class A, class B>
using common_float_t = float_result_t<decltype(A(0) + B(0))>;
#define METALSIM_BINARY(name, expression)                         \
  METALSIM_PLAIN_BINARY(name, float, expression)                  \
  METALSIM_PLAIN_BINARY(name, half, expression)                   \
  template <class A, class B, if_scalar<A> = 0, if_scalar<B> = 0> \
  METALSIM_INLINE common_float_t<A, B> name(A first, B second) {  \
    float x = (float)first, y = (float)second;                    \
    return (common_float_t<A, B>)(expression);                    \
  }                                                               \
  METALSIM_VECTOR_BINARY(name)

// sin(pi x) and cos(pi x) are exact at the multiples of 1/2 because the argument is reduced before pi comes in.
METALSIM_INLINE float sinpi_reduced(float x) {
  float r = x - 2.0f * __builtin_rintf(0.5f * x);
  if (r > 0.5f) r = 1.0f - r;
  if (r < -0.5f) r = -1.0f - r;
  return r > 0.25f    ? __builtin_cosf((0.5f - r) * M_PI_F)
         : r < -0.25f ? -__builtin_cosf((0.5f + r) * M_PI_F)
                      : __builtin_sinf(r * M_PI_F);
}
METALSIM_INLINE float cospi_reduced(float x) {
  float r = __builtin_fabsf(x - 2.0f * __builtin_rintf(0.5f * x));
  return r < 0.25f   ? __builtin_cosf(r * M_PI_F)
         : r > 0.75f ? -__builtin_cosf((1.0f - r) * M_PI_F)
                     : __builtin_sinf((0.5f - r) * M_PI_F);
}

// Below 1 also where x - floor(x) would round up to it; NaN for NaN and infinity.
METALSIM_INLINE float fraction(float x) {
  float r = x - __builtin_floorf(x);
  return r >= 1 ? 0x1.fffffep-1f : r;
}

#define METALSIM_FLOAT_FUNCTIONS                                                                           \
  METALSIM_UNARY(exp, __builtin_expf(x))                                                                   \
  METALSIM_UNARY(exp2, __builtin_exp2f(x))                                                                 \
  METALSIM_UNARY(exp10, __builtin_powf(10.0f, x))                                                          \
  METALSIM_UNARY(log, __builtin_logf(x))                                                                   \
  METALSIM_UNARY(log2, __builtin_log2f(x))                                                                 \
  METALSIM_UNARY(log10, __builtin_log10f(x))                                                               \
  METALSIM_UNARY(sqrt, __builtin_sqrtf(x))                                                                 \
  METALSIM_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))                                                         \
  METALSIM_UNARY(sin, __builtin_sinf(x))                                                                   \
  METALSIM_UNARY(cos, __builtin_cosf(x))                                                                   \
  METALSIM_UNARY(tan, __builtin_tanf(x))                                                                   \
  METALSIM_UNARY(sinh, __builtin_sinhf(x))                                                                 \
  METALSIM_UNARY(cosh, __builtin_coshf(x))                                                                 \
  METALSIM_UNARY(tanh, __builtin_tanhf(x))                                                                 \
  METALSIM_UNARY(asin, __builtin_asinf(x))                                                                 \
  METALSIM_UNARY(acos, __builtin_acosf(x))                                                                 \
  METALSIM_UNARY(atan, __builtin_atanf(x))                                                                 \
  METALSIM_UNARY(asinh, __builtin_asinhf(x))                                                               \
  METALSIM_UNARY(acosh, __builtin_acoshf(x))                                                               \
  METALSIM_UNARY(atanh, __builtin_atanhf(x))                                                               \
  METALSIM_UNARY(sinpi, sinpi_reduced(x))                                                                  \
  METALSIM_UNARY(cospi, cospi_reduced(x))                                                                  \
  METALSIM_UNARY(tanpi, sinpi_reduced(x) / cospi_reduced(x))                                               \
  METALSIM_UNARY(floor, __builtin_floorf(x))                                                               \
  METALSIM_UNARY(ceil, __builtin_ceilf(x))                                                                 \
  METALSIM_UNARY(round, __builtin_roundf(x))                                                               \
  METALSIM_UNARY(rint, __builtin_rintf(x))                                                                 \
  METALSIM_UNARY(trunc, __builtin_truncf(x))                                                               \
  METALSIM_UNARY(fabs, __builtin_fabsf(x))                                                                 \
  METALSIM_UNARY(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)                                   \
  METALSIM_UNARY(fract, fraction(x))                                                                       \
  METALSIM_UNARY(saturate, x > 0 ? (x < 1 ? x : 1.0f) : 0.0f)                                              \
  METALSIM_BINARY(pow, __builtin_powf(x, y))                                                               \
  METALSIM_BINARY(powr, __builtin_powf(x, y))                                                              \
  METALSIM_BINARY(atan2, __builtin_atan2f(x, y))                                                           \
  METALSIM_BINARY(fmod, __builtin_fmodf(x, y))                                                             \
  METALSIM_BINARY(fdim, __builtin_fdimf(x, y))                                                             \
  METALSIM_BINARY(divide, x / y)                                                                           \
  METALSIM_BINARY(copysign, __builtin_copysignf(x, y))                                                     \
  METALSIM_BINARY(fmin, __builtin_fminf(x, y))                                                             \
  METALSIM_BINARY(fmax, __builtin_fmaxf(x, y))                                                             \
  METALSIM_BINARY(nextafter, __builtin_nextafterf(x, y))                                                   \
  template <class T, if_scalar<T> = 0>                                                                     \
  METALSIM_INLINE T fma(T a, type_identity_t<T> b, type_identity_t<T> c) {                                 \
    return (T)__builtin_fmaf((float)a, (float)b, (float)c);                                                \
  }                                                                                                        \
  template <class T, int N>                                                                                \
  METALSIM_INLINE vec<T, N> fma(vec<T, N> a, type_identity_t<vec<T, N>> b, type_identity_t<vec<T, N>> c) { \
    for (int i = 0; i < N; i++) a.v[i] = fma((T)a.v[i], (T)b.v[i], (T)c.v[i]);                             \
    return a;                                                                                              \
  }

METALSIM_FLOAT_FUNCTIONS
namespace precise {
METALSIM_FLOAT_FUNCTIONS
}
namespace fast {
METALSIM_FLOAT_FUNCTIONS
}

template <class T>
METALSIM_INLINE T sincos(T x, METALSIM_THREAD T& c) {
  c = cos(x);
  return sin(x);
}
template <class T>
METALSIM_INLINE T modf(T x, METALSIM_THREAD T& whole) {
  whole = trunc(x);
  return x - whole;
}
namespace precise {
using metal::modf;
using metal::sincos;
}  // namespace precise
namespace fast {
using metal::modf;
using metal::sincos;
}  // namespace fast
template <class T, if_scalar<T> = 0>
METALSIM_INLINE T ldexp(T x, int k) {
  return (T)__builtin_ldexpf((float)x, k);
}
template <class T, if_scalar<T> = 0>
METALSIM_INLINE int ilogb(T x) {
  return __builtin_ilogbf((float)x);
}
template <class T, if_scalar<T> = 0>
METALSIM_INLINE T frexp(T x, METALSIM_THREAD int& exponent) {
  int e = 0;
  T mantissa = (T)__builtin_frexpf((float)x, (int*)&e);
  exponent = e;
  return mantissa;
}

// min, max and clamp of two different types would be ambiguous in Metal; here they take the common type.
template <class A, class B, if_scalar<A> = 0, if_scalar<B> = 0>
METALSIM_INLINE constexpr auto min(A first, B second) {
  using T = conditional_t<is_same_v<A, B>, A, decltype(A(0) + B(0))>;
  T a = (T)first, b = (T)second;
  if constexpr (is_floating_point_v<T>)
    return (T)__builtin_fminf((float)a, (float)b);
  else
    return b < a ? b : a;
}
template <class A, class B, if_scalar<A> = 0, if_scalar<B> = 0>
METALSIM_INLINE constexpr auto max(A first, B second) {
  using T = conditional_t<is_same_v<A, B>, A, decltype(A(0) + B(0))>;
  T a = (T)first, b = (T)second;
  if constexpr (is_floating_point_v<T>)
    return (T)__builtin_fmaxf((float)a, (float)b);
  else
    return a < b ? b : a;
}
METALSIM_VECTOR_BINARY(min)
METALSIM_VECTOR_BINARY(max)
namespace precise {
using metal::max;
using metal::min;
}  // namespace precise
namespace fast {
using metal::max;
using metal::min;
}  // namespace fast
template <class T>
METALSIM_INLINE constexpr T clamp(T x, type_identity_t<T> low, type_identity_t<T> high) {
  return min(max(x, low), high);
}
template <class T>
METALSIM_INLINE T mix(T a, type_identity_t<T> b, type_identity_t<T> t) {
  return a + (b - a) * t;
}
template <class T>
METALSIM_INLINE T smoothstep(T low, T high, T x) {
  T t = clamp((x - low) / (high - low), (T)0, (T)1);
  return t * t * ((T)3 - (T)2 * t);
}
template <class T>
METALSIM_INLINE T median3(T a, T b, T c) {
  return max(min(a, b), min(max(a, b), c));
}
template <class T>
METALSIM_INLINE T min3(T a, T b, T c) {
  return min(a, min(b, c));
}
template <class T>
METALSIM_INLINE T max3(T a, T b, T c) {
  return max(a, max(b, c));
}

// Geometric functions.
template <class T, int N>
METALSIM_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a.v[0] * b.v[0];
  for (int i = 1; i < N; i++) sum += a.v[i] * b.v[i];
  return sum;
}
template <class T>
METALSIM_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]);
}
template <class T, int N>
METALSIM_INLINE T length_squared(vec<T, N> a) {
  return dot(a, a);
}
template <class T, int N>
METALSIM_INLINE T length(vec<T, N> a) {
  return sqrt(dot(a, a));
}
template <class T, int N>
METALSIM_INLINE T distance(vec<T, N> a, vec<T, N> b) {
  return length(a - b);
}
template <class T, int N>
METALSIM_INLINE vec<T, N> normalize(vec<T, N> a) {
  return a * rsqrt(dot(a, a));
}

// Relational functions.
template <class T, if_scalar<T> = 0>
METALSIM_INLINE constexpr T select(T a, type_identity_t<T> b, bool c) {
  return c ? b : a;
}
template <class T, int N>
METALSIM_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  for (int i = 0; i < N; i++) a.v[i] = c.v[i] ? b.v[i] : a.v[i];
  return a;
}
template <class T>
METALSIM_INLINE T step(T edge, T x) {
  return select((T)1, (T)0, x < edge);
}
template <int N>
METALSIM_INLINE bool any(vec<bool, N> a) {
  bool result = false;
  for (int i = 0; i < N; i++) result |= a.v[i];
  return result;
}
template <int N>
METALSIM_INLINE bool all(vec<bool, N> a) {
  bool result = true;
  for (int i = 0; i < N; i++) result &= a.v[i];
  return result;
}
METALSIM_INLINE bool any(bool a) { return a; }
METALSIM_INLINE bool all(bool a) { return a; }
#define METALSIM_PREDICATE(name, expression)              \
  template <class T, if_scalar<T> = 0>                    \
  METALSIM_INLINE bool name(T argument) {                 \
    float x = (float)argument;                            \
    return expression;                                    \
  }                                                       \
  template <class T, int N>                               \
  METALSIM_INLINE vec<bool, N> name(vec<T, N> a) {        \
    vec<bool, N> r;                                       \
    for (int i = 0; i < N; i++) r.v[i] = name((T)a.v[i]); \
    return r;                                             \
  }
METALSIM_PREDICATE(isnan, x != x)
METALSIM_PREDICATE(isinf, __builtin_fabsf(x) == INFINITY)
METALSIM_PREDICATE(isfinite, __builtin_fabsf(x) < INFINITY)
METALSIM_PREDICATE(isnormal, __builtin_fabsf(x) < INFINITY && __builtin_fabsf(x) >= FLT_MIN)
METALSIM_PREDICATE(signbit, (as_type<uint>(x) >> 31) != 0)
template <class T>
METALSIM_INLINE bool isunordered(T a, T b) {
  return isnan(a) || isnan(b);
}
template <class T>
METALSIM_INLINE bool isordered(T a, T b) {
  return !isunordered(a, b);
}

// Integer functions, element by element.
#define METALSIM_INTEGER_UNARY(name, expression)          \
  template <class T, if_scalar<T> = 0>                    \
  METALSIM_INLINE constexpr T name(T x) {                 \
    constexpr int bits = sizeof(T) * 8;                   \
    (void)bits;                                           \
    return (T)(expression);                               \
  }                                                       \
  template <class T, int N>                               \
  METALSIM_INLINE vec<T, N> name(vec<T, N> a) {           \
    for (int i = 0; i < N; i++) a.v[i] = name((T)a.v[i]); \
    return a;                                             \
  }
METALSIM_INTEGER_UNARY(popcount, __builtin_popcountll((make_unsigned_t<T>)x))
METALSIM_INTEGER_UNARY(clz, (make_unsigned_t<T>)x ? __builtin_clzll((make_unsigned_t<T>)x) - (64 - bits) : bits)
METALSIM_INTEGER_UNARY(ctz, (make_unsigned_t<T>)x ? __builtin_ctzll((make_unsigned_t<T>)x) : bits)
METALSIM_INTEGER_UNARY(reverse_bits, __builtin_bitreverse64((make_unsigned_t<T>)x) >> (64 - bits))
template <class T>
METALSIM_INLINE T absolute(T x) {
  if constexpr (is_floating_point_v<T>)
    return (T)__builtin_fabsf((float)x);
  else
    return x < 0 ? (T)(0 - (make_unsigned_t<T>)x) : x;
}
METALSIM_INTEGER_UNARY(abs, absolute(x))
#define METALSIM_INTEGER_BINARY(name, expression)               \
  template <class T, if_scalar<T> = 0>                          \
  METALSIM_INLINE constexpr T name(T x, type_identity_t<T> y) { \
    using U = make_unsigned_t<T>;                               \
    constexpr int bits = sizeof(T) * 8;                         \
    (void)bits;                                                 \
    (void)sizeof(U);                                            \
    return (T)(expression);                                     \
  }                                                             \
  METALSIM_VECTOR_BINARY(name)
METALSIM_INTEGER_BINARY(rotate, ((U)x << ((U)y % bits)) | ((U)x >> ((bits - (U)y % bits) % bits)))
METALSIM_INTEGER_BINARY(absdiff, x > y ? (U)x - (U)y : (U)y - (U)x)
METALSIM_INTEGER_BINARY(hadd, (x >> 1) + (y >> 1) + (x & y & 1))
METALSIM_INTEGER_BINARY(rhadd, (x >> 1) + (y >> 1) + ((x | y) & 1))
template <class T>
METALSIM_INLINE constexpr T high_product(T x, T y) {
  if constexpr (sizeof(T) == 8)
    return is_signed_v<T> ? (T)(((__int128)x * (__int128)y) >> 64)
                          : (T)(((unsigned __int128)x * (unsigned __int128)y) >> 64);
  else
    return (T)(((long)x * (long)y) >> (sizeof(T) * 8));
}
METALSIM_INTEGER_BINARY(mulhi, high_product(x, y))
template <class T>
METALSIM_INLINE constexpr T saturating_sum(T x, T y) {
  T r{};
  if (!__builtin_add_overflow(x, y, (T*)&r)) return r;
  return is_signed_v<T> && x < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <class T>
METALSIM_INLINE constexpr T saturating_difference(T x, T y) {
  T r{};
  if (!__builtin_sub_overflow(x, y, (T*)&r)) return r;
  return !is_signed_v<T> || x < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
METALSIM_INTEGER_BINARY(addsat, saturating_sum(x, y))
METALSIM_INTEGER_BINARY(subsat, saturating_difference(x, y))
template <class T>
METALSIM_INLINE constexpr T mad24(T x, T y, T z) {
  return x * y + z;
}
template <class T>
METALSIM_INLINE constexpr T mul24(T x, T y) {
  return x * y;
}
template <class T>
METALSIM_INLINE T extract_bits(T x, uint offset, uint bits) {
  if (bits == 0) return 0;
  constexpr uint width = sizeof(T) * 8;
  return (T)((T)((make_unsigned_t<T>)x << (width - bits - offset)) >> (width - bits));
}
template <class T>
METALSIM_INLINE T insert_bits(T base, T insert, uint offset, uint bits) {
  using U = make_unsigned_t<T>;
  U mask = bits >= sizeof(T) * 8 ? (U) ~(U)0 : (U)((((U)1 << bits) - 1) << offset);
  return (T)(((U)base & (U)~mask) | (((U)insert << offset) & mask));
}

// Conversions between packed formats and vectors, as quantized kernels use them.
METALSIM_INLINE vec<float, 4> unpack_unorm4x8_to_float(uint x) {
  return vec<float, 4>(x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24) / 255.0f;
}
METALSIM_INLINE vec<float, 4> unpack_snorm4x8_to_float(uint x) {
  vec<float, 4> v((char)(x & 255), (char)(x >> 8 & 255), (char)(x >> 16 & 255), (char)(x >> 24));
  return max(v / 127.0f, vec<float, 4>(-1.0f));
}

}  // namespace metal
