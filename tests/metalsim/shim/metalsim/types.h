// Scalar types, limits and type traits of the Metal Shading Language.
#pragma once

#define METALSIM_INLINE inline __attribute__((always_inline))
// Strict mode has real address spaces, and its own definitions of these.
#ifndef METALSIM_STRICT
#define METALSIM_THREAD
#define METALSIM_CONSTANT
#endif

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#ifdef METALSIM_STRICT
#include "bfloat.h"
#else
typedef __bf16 bfloat;
typedef _Float16 half;
#endif

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF INFINITY
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H ((half)3.14159265358979323846f)
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-07f
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)6.103515625e-05f)
#define HALF_EPSILON ((half)9.765625e-04f)
#define MAXHALF HALF_MAX
#define MAXFLOAT FLT_MAX
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 0xffffffffu
#define LONG_MAX 0x7fffffffffffffffL
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 0xffffffffffffffffUL

namespace metal {

template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};
template <bool B, class A, class C>
struct conditional {
  typedef A type;
};
template <class A, class C>
struct conditional<false, A, C> {
  typedef C type;
};
template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <class T>
struct remove_reference {
  typedef T type;
};
template <class T>
struct remove_reference<T&> {
  typedef T type;
};
template <class T>
struct remove_reference<T&&> {
  typedef T type;
};
template <class T>
struct remove_const {
  typedef T type;
};
template <class T>
struct remove_const<const T> {
  typedef T type;
};
template <class T>
struct remove_volatile {
  typedef T type;
};
template <class T>
struct remove_volatile<volatile T> {
  typedef T type;
};
template <class T>
struct remove_cv {
  typedef typename remove_volatile<typename remove_const<T>::type>::type type;
};
template <class T>
struct remove_pointer {
  typedef T type;
};
template <class T>
struct remove_pointer<T*> {
  typedef T type;
};
template <class T>
struct type_identity {
  typedef T type;
};
template <bool B, class A, class C>
using conditional_t = typename conditional<B, A, C>::type;
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class T>
using type_identity_t = typename type_identity<T>::type;
template <class T>
using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class...>
using void_t = void;

template <class T>
struct is_floating_point
    : bool_constant<is_same<remove_cv_t<T>, float>::value || is_same<remove_cv_t<T>, half>::value ||
                    is_same<remove_cv_t<T>, bfloat>::value> {};
template <class T>
struct is_integral : bool_constant<__is_integral(T)> {};
template <class T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T>
struct is_scalar : bool_constant<is_arithmetic<T>::value || __is_enum(T) || __is_pointer(T)> {};
template <class T>
struct is_enum : bool_constant<__is_enum(T)> {};
template <class T>
struct is_pointer : bool_constant<__is_pointer(T)> {};
template <class T>
struct is_signed : bool_constant<is_floating_point<T>::value || (is_integral<T>::value && T(-1) < T(0))> {};
template <class T>
struct is_unsigned : bool_constant<is_integral<T>::value && !(T(-1) < T(0))> {};
template <class A, class B>
struct is_convertible : bool_constant<__is_convertible(A, B)> {};

template <class A, class B>
inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T>
inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T>
inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T>
inline constexpr bool is_scalar_v = is_scalar<T>::value;
template <class T>
inline constexpr bool is_enum_v = is_enum<T>::value;
template <class T>
inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T>
inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class A, class B>
inline constexpr bool is_convertible_v = is_convertible<A, B>::value;
template <class T>
T&& declval();

// Unsigned integer types with the same size, for tricks on bits.
template <int Size>
struct uint_of_size;
template <>
struct uint_of_size<1> {
  typedef uchar type;
};
template <>
struct uint_of_size<2> {
  typedef ushort type;
};
template <>
struct uint_of_size<4> {
  typedef uint type;
};
template <>
struct uint_of_size<8> {
  typedef ulong type;
};
template <class T>
struct make_unsigned : uint_of_size<sizeof(T)> {};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;

// A scalar cast with the detour through float that bfloat needs: clang has no cast between bfloat and half.
template <class To, class From>
METALSIM_INLINE constexpr To scalar_cast(From x) {
  if constexpr (is_same_v<To, From>)
    return x;
  else if constexpr (is_same_v<From, bfloat> || is_same_v<To, bfloat>)
    return (To)(float)x;
  else
    return (To)x;
}

// What the source pass makes of static_cast to half, bfloat, or a type that may turn out to be one.
template <class To, class From>
METALSIM_INLINE constexpr To cast(From&& x) {
  typedef decay_t<From> Plain;
  if constexpr ((is_same_v<To, bfloat> && is_same_v<Plain, half>) || (is_same_v<To, half> && is_same_v<Plain, bfloat>))
    return (To)(float)x;
  else
    return static_cast<To>(static_cast<From&&>(x));
}

template <class T>
struct numeric_limits {
  static_assert(is_integral_v<T>, "numeric_limits of an unknown type");
  static constexpr bool is_signed = is_signed_v<T>;
  static constexpr bool is_integer = true;
  static constexpr int digits = sizeof(T) * 8 - is_signed;
  static constexpr T min() { return is_signed ? (T)((make_unsigned_t<T>)1 << (sizeof(T) * 8 - 1)) : (T)0; }
  static constexpr T lowest() { return min(); }
  static constexpr T max() { return (T)~min(); }
  static constexpr T infinity() { return 0; }
  static constexpr T quiet_NaN() { return 0; }
};
template <>
struct numeric_limits<bool> {
  static constexpr bool min() { return false; }
  static constexpr bool lowest() { return false; }
  static constexpr bool max() { return true; }
};
#define METALSIM_FLOAT_LIMITS(T, Digits, Max, Min, Epsilon)              \
  template <>                                                            \
  struct numeric_limits<T> {                                             \
    static constexpr bool is_signed = true;                              \
    static constexpr bool is_integer = false;                            \
    static constexpr int digits = Digits;                                \
    static constexpr T max() { return (T)Max; }                          \
    static constexpr T lowest() { return (T) - Max; }                    \
    static constexpr T min() { return (T)Min; }                          \
    static constexpr T epsilon() { return (T)Epsilon; }                  \
    static constexpr T infinity() { return (T)__builtin_inff(); }        \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }     \
    static constexpr T signaling_NaN() { return (T)__builtin_nanf(""); } \
  };
METALSIM_FLOAT_LIMITS(float, 24, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f)
METALSIM_FLOAT_LIMITS(half, 11, 65504.0f, 0x1p-14f, 0x1p-10f)
METALSIM_FLOAT_LIMITS(bfloat, 8, 0x1.fep127f, 0x1p-126f, 0x1p-7f)

}  // namespace metal
