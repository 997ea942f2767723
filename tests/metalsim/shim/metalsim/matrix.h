// Matrices of C columns with R rows each, as Metal stores them.
#pragma once

namespace metal {

template <class T, int C, int R>
struct matrix {
  vec<T, R> c[C];
  typedef vec<T, R> column;
  matrix() = default;
  METALSIM_CONSTANT_COPY(matrix)
  METALSIM_CONSTANT_METHOD(const METALSIM_CONSTANT column& operator[](int i))
  template <class S, class = enable_if_t<is_arithmetic_v<S>>>
  METALSIM_INLINE explicit matrix(S s) {
    for (int i = 0; i < C; i++) {
      c[i] = vec<T, R>((T)0);
      if (i < R) c[i][i] = scalar_cast<T>(s);
    }
  }
  template <class S, class = enable_if_t<!is_same_v<S, T>>>
  METALSIM_INLINE explicit matrix(const matrix<S, C, R>& o) {
    for (int i = 0; i < C; i++) c[i] = vec<T, R>(o.c[i]);
  }
  template <class... A, enable_if_t<sizeof...(A) == C && (true && ... && is_same_v<A, vec<T, R>>), int> = 0>
  METALSIM_INLINE matrix(A... columns) : c{columns...} {}
  template <class... A, enable_if_t<(sizeof...(A) == C * R) && all_scalars<A...>, int> = 0>
  METALSIM_INLINE matrix(A... elements) {
    T flat[] = {scalar_cast<T>(elements)...};
    for (int i = 0; i < C * R; i++) c[i / R][i % R] = flat[i];
  }
  METALSIM_INLINE vec<T, R>& operator[](int i) { return c[i]; }
  METALSIM_INLINE const vec<T, R>& operator[](int i) const { return c[i]; }

  friend METALSIM_INLINE matrix operator*(matrix a, T s) {
    for (int i = 0; i < C; i++) a.c[i] *= vec<T, R>(s);
    return a;
  }
  friend METALSIM_INLINE matrix operator*(T s, matrix a) { return a * s; }
  friend METALSIM_INLINE matrix operator+(matrix a, matrix b) {
    for (int i = 0; i < C; i++) a.c[i] += b.c[i];
    return a;
  }
  friend METALSIM_INLINE matrix operator-(matrix a, matrix b) {
    for (int i = 0; i < C; i++) a.c[i] -= b.c[i];
    return a;
  }
  METALSIM_INLINE matrix& operator+=(matrix b) { return *this = *this + b; }
  METALSIM_INLINE matrix& operator-=(matrix b) { return *this = *this - b; }
  METALSIM_INLINE matrix& operator*=(T s) { return *this = *this * s; }
};

template <class T, int C, int R>
METALSIM_INLINE vec<T, R> operator*(const matrix<T, C, R>& m, vec<T, C> x) {
  vec<T, R> r = m.c[0] * x[0];
  for (int i = 1; i < C; i++) r += m.c[i] * x[i];
  return r;
}
template <class T, int C, int R>
METALSIM_INLINE vec<T, C> operator*(vec<T, R> x, const matrix<T, C, R>& m) {
  vec<T, C> r;
  for (int i = 0; i < C; i++) {
    T sum = x[0] * m.c[i][0];
    for (int j = 1; j < R; j++) sum += x[j] * m.c[i][j];
    r[i] = sum;
  }
  return r;
}
template <class T, int C, int K, int R>
METALSIM_INLINE matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> r;
  for (int i = 0; i < C; i++) r.c[i] = a * b.c[i];
  return r;
}
template <class T, int C, int R>
METALSIM_INLINE matrix<T, R, C> transpose(const matrix<T, C, R>& m) {
  matrix<T, R, C> r;
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) r[i][j] = m.c[j][i];
  return r;
}

#define METALSIM_MATRIX_TYPES(name)     \
  typedef matrix<name, 2, 2> name##2x2; \
  typedef matrix<name, 2, 3> name##2x3; \
  typedef matrix<name, 2, 4> name##2x4; \
  typedef matrix<name, 3, 2> name##3x2; \
  typedef matrix<name, 3, 3> name##3x3; \
  typedef matrix<name, 3, 4> name##3x4; \
  typedef matrix<name, 4, 2> name##4x2; \
  typedef matrix<name, 4, 3> name##4x3; \
  typedef matrix<name, 4, 4> name##4x4;
METALSIM_MATRIX_TYPES(float)
METALSIM_MATRIX_TYPES(half)

}  // namespace metal
