// Vectors of 2, 3 and 4 elements, packed vectors, arrays and as_type.
#pragma once

namespace metal {

template <class T, int N>
struct vec;

// A vector's storage has Metal's size and alignment (three elements take the room of four). clang packs vectors of bool
// into bits, which Metal does not: they're an array. So are vectors of more than 16 bytes, whose loads clang's
// instrumentation would leave out.
template <class T, int N>
inline constexpr bool is_array_storage = is_same_v<T, bool> || (sizeof(T) == 8 && N > 2) || __is_class(T);
template <class T, int N, bool Array = is_array_storage<T, N>>
struct vec_storage {
  typedef T type __attribute__((ext_vector_type(N)));
};
template <class T, int N>
struct vec_storage<T, N, true> {
  struct alignas((N == 2 ? 2 : 4) * sizeof(T)) type {
    T e[N == 3 ? 4 : N];
    METALSIM_INLINE constexpr T& operator[](int i) { return e[i]; }
    METALSIM_INLINE constexpr T operator[](int i) const { return e[i]; }
  };
};

template <class T>
struct element_count : integral_constant<int, is_arithmetic_v<T> || __is_enum(T) ? 1 : -100> {};
template <class T, int N>
struct element_count<vec<T, N>> : integral_constant<int, N> {};
template <class... A>
inline constexpr int total_elements = (0 + ... + element_count<A>::value);
template <class... A>
inline constexpr bool all_scalars = (true && ... && (element_count<A>::value == 1));

// Objects in the constant address space need methods of their own, which only strict mode tells from others. They're
// declared only, since strict mode runs nothing.
#ifdef METALSIM_STRICT
#define METALSIM_CONSTANT_METHOD(...) __VA_ARGS__ const __constant;
#define METALSIM_CONSTANT_COPY(Type)      \
  Type(const Type&) = default;            \
  Type& operator=(const Type&) = default; \
  Type(const __constant Type&);
#define METALSIM_CONSTANT_CONSTRUCTOR(...) __VA_ARGS__
#else
#define METALSIM_CONSTANT_CONSTRUCTOR(...)
#define METALSIM_CONSTANT_METHOD(...)
#define METALSIM_CONSTANT_COPY(Type)
#endif

// Integers divide element by element, so that clang's check for a zero divisor sees each.
#define METALSIM_ARITHMETIC(op)                                                                           \
  friend METALSIM_INLINE constexpr vec operator op(vec a, vec b) {                                        \
    vec r{};                                                                                              \
    if constexpr (is_same_v<T, bfloat> || is_array_storage<T, N_> || (is_integral_v<T> && #op[0] == '/')) \
      for (int i = 0; i < N_; i++) r.v[i] = (T)(a.v[i] op b.v[i]);                                        \
    else                                                                                                  \
      r.v = a.v op b.v;                                                                                   \
    return r;                                                                                             \
  }                                                                                                       \
  friend METALSIM_INLINE constexpr vec operator op(vec a, T b) { return a op vec(b); }                    \
  friend METALSIM_INLINE constexpr vec operator op(T a, vec b) { return vec(a) op b; }                    \
  METALSIM_INLINE vec& operator op##=(vec b) { return *this = *this op b; }

// Operators on integers only: element by element, so that a class template over float stays well-formed.
#define METALSIM_INTEGER_OP(op)                                              \
  friend METALSIM_INLINE vec operator op(vec a, vec b) {                     \
    vec r;                                                                   \
    for (int i = 0; i < N_; i++) r.v[i] = (T)(a.v[i] op b.v[i]);             \
    return r;                                                                \
  }                                                                          \
  friend METALSIM_INLINE vec operator op(vec a, T b) { return a op vec(b); } \
  friend METALSIM_INLINE vec operator op(T a, vec b) { return vec(a) op b; } \
  METALSIM_INLINE vec& operator op##=(vec b) { return *this = *this op b; }

#define METALSIM_COMPARE(op)                                                           \
  friend METALSIM_INLINE vec<bool, N_> operator op(vec a, vec b) {                     \
    vec<bool, N_> r;                                                                   \
    for (int i = 0; i < N_; i++) r.v[i] = a.v[i] op b.v[i];                            \
    return r;                                                                          \
  }                                                                                    \
  friend METALSIM_INLINE vec<bool, N_> operator op(vec a, T b) { return a op vec(b); } \
  friend METALSIM_INLINE vec<bool, N_> operator op(T a, vec b) { return vec(a) op b; }

// clang-format off: it never comes to rest over operators as macro arguments
#define METALSIM_VECTOR_BODY(N)                                                                                        \
  enum { N_ = N };                                                                                                     \
  typedef typename vec_storage<T, N>::type storage;                                                                    \
  storage v;                                                                                                           \
  vec() = default;                                                                                                     \
  METALSIM_CONSTANT_COPY(vec)                                                                                          \
  METALSIM_CONSTANT_METHOD(const METALSIM_CONSTANT T& operator[](int i))                                               \
  METALSIM_CONSTANT_METHOD(T at(int i))                                                                                \
  METALSIM_INLINE T& operator[](int i) { return ((T*)&v)[i]; }                                                         \
  METALSIM_INLINE const T& operator[](int i) const { return ((const T*)&v)[i]; }                                       \
  template <class S, class = enable_if_t<is_arithmetic_v<S> || __is_enum(S)>>                                          \
  METALSIM_INLINE constexpr vec(S s) : vec(splat, scalar_cast<T>(s)) {}                                                \
  template <class S, class = enable_if_t<!is_same_v<S, T>>>                                                            \
  METALSIM_INLINE constexpr explicit vec(vec<S, N> o) : v{} {                                                          \
    for (int i = 0; i < N; i++) v[i] = scalar_cast<T>((S)o.v[i]);                                                      \
  }                                                                                                                    \
  template <class... A, enable_if_t<sizeof...(A) == N && all_scalars<A...>, int> = 0>                                  \
  METALSIM_INLINE constexpr vec(A... a) : v{scalar_cast<T>(a)...} {}                                                   \
  METALSIM_CONSTANT_CONSTRUCTOR(                                                                                       \
      template <class... A, enable_if_t<sizeof...(A) == N && all_scalars<A...>, int> = 0> constexpr vec(A... a)        \
          __constant : v{scalar_cast<T>(a)...} {} constexpr vec(T s) __constant : v{s} {})                             \
  template <class... A, enable_if_t<(sizeof...(A) > 1) && total_elements<A...> == N && !all_scalars<A...>, int> = 0>   \
  METALSIM_INLINE vec(A... a) {                                                                                        \
    int at = 0;                                                                                                        \
    (append(at, a), ...);                                                                                              \
  }                                                                                                                    \
  METALSIM_ARITHMETIC(+)                                                                                               \
  METALSIM_ARITHMETIC(-)                                                                                               \
  METALSIM_ARITHMETIC(*)                                                                                               \
  METALSIM_ARITHMETIC(/)                                                                                               \
  METALSIM_INTEGER_OP(%)                                                                                               \
  METALSIM_INTEGER_OP(&) METALSIM_INTEGER_OP(|) METALSIM_INTEGER_OP(^) METALSIM_INTEGER_OP(<<) METALSIM_INTEGER_OP(>>) \
      METALSIM_COMPARE(<) METALSIM_COMPARE(>) METALSIM_COMPARE(<=) METALSIM_COMPARE(>=) METALSIM_COMPARE(==)           \
          METALSIM_COMPARE(!=) METALSIM_COMPARE(&&) METALSIM_COMPARE(||) friend METALSIM_INLINE vec                    \
          operator+(vec a) {                                                                                           \
    return a;                                                                                                          \
  }                                                                                                                    \
  friend METALSIM_INLINE vec operator-(vec a) {                                                                        \
    for (int i = 0; i < N; i++) a.v[i] = (T) - a.v[i];                                                                 \
    return a;                                                                                                          \
  }                                                                                                                    \
  friend METALSIM_INLINE vec operator~(vec a) {                                                                        \
    for (int i = 0; i < N; i++) a.v[i] = (T)~a.v[i];                                                                   \
    return a;                                                                                                          \
  }                                                                                                                    \
  friend METALSIM_INLINE vec<bool, N> operator!(vec a) {                                                               \
    vec<bool, N> r;                                                                                                    \
    for (int i = 0; i < N; i++) r.v[i] = !a.v[i];                                                                      \
    return r;                                                                                                          \
  }                                                                                                                    \
  METALSIM_INLINE vec& operator++() { return *this += vec((T)1); }                                                     \
  METALSIM_INLINE vec& operator--() { return *this -= vec((T)1); }                                                     \
  METALSIM_INLINE vec operator++(int) {                                                                                \
    vec before = *this;                                                                                                \
    *this += vec((T)1);                                                                                                \
    return before;                                                                                                     \
  }                                                                                                                    \
                                                                                                                       \
 private:                                                                                                              \
  template <class A>                                                                                                   \
  METALSIM_INLINE void append(int& at, A a) {                                                                          \
    if constexpr (element_count<A>::value == 1)                                                                        \
      v[at++] = scalar_cast<T>(a);                                                                                     \
    else                                                                                                               \
      for (int i = 0; i < element_count<A>::value; i++) v[at++] = scalar_cast<T>(a.at(i));                             \
  }                                                                                                                    \
                                                                                                                       \
 public:                                                                                                               \
  METALSIM_INLINE constexpr T at(int i) const { return v[i]; }

// clang-format on
struct splat_tag {};
inline constexpr splat_tag splat{};

template <class T>
struct vec<T, 2> {
  METALSIM_VECTOR_BODY(2)
  METALSIM_INLINE constexpr vec(splat_tag, T s) : v{s, s} {}
#define METALSIM_SWIZZLE_2
#include "metalsim/swizzle.inc"
#undef METALSIM_SWIZZLE_2
};
template <class T>
struct vec<T, 3> {
  METALSIM_VECTOR_BODY(3)
  METALSIM_INLINE constexpr vec(splat_tag, T s) : v{s, s, s} {}
#define METALSIM_SWIZZLE_3
#include "metalsim/swizzle.inc"
#undef METALSIM_SWIZZLE_3
};
template <class T>
struct vec<T, 4> {
  METALSIM_VECTOR_BODY(4)
  METALSIM_INLINE constexpr vec(splat_tag, T s) : v{s, s, s, s} {}
#define METALSIM_SWIZZLE_4
#include "metalsim/swizzle.inc"
#undef METALSIM_SWIZZLE_4
};

// Packed vectors lie at any multiple of their element's size.
template <class T, int N>
struct packed_vec {
  T e[N];
  packed_vec() = default;
  METALSIM_CONSTANT_COPY(packed_vec)
  METALSIM_CONSTANT_METHOD(operator vec<T, N>())
  METALSIM_CONSTANT_METHOD(const METALSIM_CONSTANT T& operator[](int i))
  METALSIM_INLINE packed_vec(vec<T, N> o) {
    for (int i = 0; i < N; i++) e[i] = o.v[i];
  }
  template <class... A, enable_if_t<(sizeof...(A) > 1) && total_elements<A...> == N, int> = 0>
  METALSIM_INLINE packed_vec(A... a) : packed_vec(vec<T, N>(a...)) {}
  METALSIM_INLINE operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.v[i] = e[i];
    return r;
  }
  template <class S, class = enable_if_t<!is_same_v<S, T>>>
  METALSIM_INLINE explicit operator vec<S, N>() const {
    return vec<S, N>((vec<T, N>)*this);
  }
  METALSIM_INLINE T& operator[](int i) { return e[i]; }
  METALSIM_INLINE const T& operator[](int i) const { return e[i]; }
  // clang-format off
#define METALSIM_PACKED_OP(op)                                                                                      \
  friend METALSIM_INLINE vec<T, N> operator op(packed_vec a, packed_vec b) { return (vec<T, N>)a op(vec<T, N>) b; } \
  friend METALSIM_INLINE vec<T, N> operator op(packed_vec a, T b) { return (vec<T, N>)a op b; }                     \
  friend METALSIM_INLINE vec<T, N> operator op(T a, packed_vec b) { return a op(vec<T, N>) b; }                     \
  METALSIM_INLINE packed_vec& operator op##=(vec<T, N> b) { return *this = (vec<T, N>)*this op b; }
  METALSIM_PACKED_OP(+)
  METALSIM_PACKED_OP(-)
  METALSIM_PACKED_OP(*)
  METALSIM_PACKED_OP(/)
// clang-format on
#define METALSIM_PACKED_ELEMENT(name, index)                       \
  __declspec(property(get = get_##name, put = put_##name)) T name; \
  METALSIM_INLINE T get_##name() const { return e[index]; }        \
  METALSIM_CONSTANT_METHOD(T get_##name())                         \
  METALSIM_INLINE void put_##name(T s) { e[index] = s; }
  METALSIM_PACKED_ELEMENT(x, 0)
  METALSIM_PACKED_ELEMENT(y, 1) METALSIM_PACKED_ELEMENT(z, 2) METALSIM_PACKED_ELEMENT(w, 3)
};

template <class T, size_t N>
struct array {
  T e[N];
  METALSIM_CONSTANT_METHOD(const METALSIM_CONSTANT T& operator[](size_t i))
  METALSIM_CONSTANT_METHOD(size_t size())
  METALSIM_INLINE constexpr T& operator[](size_t i) { return e[i]; }
  METALSIM_INLINE constexpr const T& operator[](size_t i) const { return e[i]; }
  METALSIM_INLINE constexpr size_t size() const { return N; }
};

}  // namespace metal

// memcpy, because clang 19's __builtin_bit_cast of a vector's element reads element 0.
template <class To, class From>
METALSIM_INLINE To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between types of different sizes");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
namespace metal {
using ::as_type;
}

#define METALSIM_VECTOR_TYPES(name)                    \
  typedef metal::vec<name, 2> name##2;                 \
  typedef metal::vec<name, 3> name##3;                 \
  typedef metal::vec<name, 4> name##4;                 \
  typedef metal::packed_vec<name, 2> packed_##name##2; \
  typedef metal::packed_vec<name, 3> packed_##name##3; \
  typedef metal::packed_vec<name, 4> packed_##name##4; \
  namespace metal {                                    \
  using ::name##2;                                     \
  using ::name##3;                                     \
  using ::name##4;                                     \
  using ::packed_##name##2;                            \
  using ::packed_##name##3;                            \
  using ::packed_##name##4;                            \
  }
METALSIM_VECTOR_TYPES(float)
METALSIM_VECTOR_TYPES(half)
METALSIM_VECTOR_TYPES(bfloat)
METALSIM_VECTOR_TYPES(bool)
METALSIM_VECTOR_TYPES(char)
METALSIM_VECTOR_TYPES(uchar)
METALSIM_VECTOR_TYPES(short)
METALSIM_VECTOR_TYPES(ushort)
METALSIM_VECTOR_TYPES(int)
METALSIM_VECTOR_TYPES(uint)
METALSIM_VECTOR_TYPES(long)
METALSIM_VECTOR_TYPES(ulong)
