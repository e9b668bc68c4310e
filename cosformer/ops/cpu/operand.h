// Rows of the caller's tensors: any strides, four dtypes, the feature map and the mask applied on the way in or out.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include "tile.h"

enum Dtype : int32_t { F32, F64, BF16, F16 };
enum Map : int32_t { IDENTITY, RELU, LEAKY_RELU, ELU1, SILU };
constexpr double LEAKY_SLOPE = 0.01;

// One [B, H, T, D] tensor. `strides` count elements. Mirrored by the ctypes structure in launch.py.
struct Operand {
  char *data;
  int64_t strides[4];
  int64_t width;                            // D
  int64_t heads, length;                    // H, T: the shape of `scale` and `column`, [B, H, T] contiguous
  const void *scale;                        // each row times scale[b, h, t]; null: 1
  const void *column;                       // one more column, column[b, h, t]; null with `ones` set: 1
  const uint8_t *mask;                      // [B, T]: rows at 0 read as zeros; null: all present
  int64_t mask_strides[2];
  int32_t dtype, map, ones, unused;

  int64_t inner() const { return width + (column || ones); }
  bool masked(int64_t b, int64_t t) const { return mask && !mask[b * mask_strides[0] + t * mask_strides[1]]; }
  int64_t flat(int64_t b, int64_t h, int64_t t) const { return (b * heads + h) * length + t; }
};

struct bf16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  bf16() = default;
  explicit bf16(float x) {  // round to nearest even; a NaN stays one
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    bits = x != x ? 0x7fc0 : uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
};

template <typename real> constexpr int32_t native_dtype = sizeof(real) == 8 ? F64 : F32;

template <typename F> inline void with_dtype(int32_t dtype, F &&f) {
  switch (dtype) {
    case F32: return f(float{});
    case F64: return f(double{});
    case BF16: return f(bf16{});
    default: return f(_Float16{});
  }
}

// e^x of a whole vector, as Cephes has it, to about one unit in the last place: compilers leave std::exp a call for each
// number. 2^n comes in two factors, so that results below the smallest normal number are right as well.
inline Simd<float>::vec exp_of(Simd<float>::vec x) {
  using vec = Simd<float>::vec;
  typedef int32_t whole __attribute__((vector_size(VECTOR_BYTES)));
  vec y = x > 89.f ? vec{} + 89.f : x;  // in this order a NaN passes through
  y = y < -104.f ? vec{} - 104.f : y;
  const vec n = (y * 1.44269504f + 12582912.f) - 12582912.f;  // the nearest whole number
  vec r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  const whole exponent = __builtin_convertvector(n, whole), half = exponent >> 1;
  return p * (vec)((half + 127) << 23) * (vec)((exponent - half + 127) << 23);
}
inline Simd<double>::vec exp_of(Simd<double>::vec x) {
  for (int i = 0; i < Simd<double>::lanes; i++) x[i] = std::exp(x[i]);
  return x;
}

// to[i] = f(from[i]) vector by vector, the last one filled up; f takes and gives a vector of each.
template <typename real, typename F> inline void by_vectors(real *to, const real *from, int64_t n, F &&f) {
  using S = Simd<real>;
  int64_t i = 0;
  for (; i + S::lanes <= n; i += S::lanes) S::store(to + i, f(S::load(to + i), S::load(from + i)));
  if (i < n) {
    real kept[S::lanes] = {}, read[S::lanes] = {};
    std::memcpy(kept, to + i, (n - i) * sizeof(real));
    std::memcpy(read, from + i, (n - i) * sizeof(real));
    S::store(kept, f(S::load(kept), S::load(read)));
    std::memcpy(to + i, kept, (n - i) * sizeof(real));
  }
}

template <typename real> inline void apply_map(int32_t map, real *x, int64_t n) {
  using vec = typename Simd<real>::vec;
  switch (map) {
    case IDENTITY: return;
    case RELU:
      for (int64_t i = 0; i < n; i++) x[i] = x[i] < 0 ? real(0) : x[i];
      return;
    case LEAKY_RELU:
      for (int64_t i = 0; i < n; i++) x[i] = x[i] < 0 ? x[i] * real(LEAKY_SLOPE) : x[i];
      return;
    case ELU1:
      return by_vectors(x, x, n, [](vec, vec y) { return y > real(0) ? y + real(1) : exp_of(y); });
    default:
      return by_vectors(x, x, n, [](vec, vec y) { return y / (real(1) + exp_of(-y)); });
  }
}

// g *= map'(x)
template <typename real> inline void apply_map_gradient(int32_t map, const real *x, real *g, int64_t n) {
  using vec = typename Simd<real>::vec;
  switch (map) {
    case IDENTITY: return;
    case RELU:
      for (int64_t i = 0; i < n; i++) g[i] = x[i] <= 0 ? real(0) : g[i];
      return;
    case LEAKY_RELU:
      for (int64_t i = 0; i < n; i++) g[i] = x[i] <= 0 ? g[i] * real(LEAKY_SLOPE) : g[i];
      return;
    case ELU1:
      return by_vectors(g, x, n, [](vec d, vec y) { return y > real(0) ? d : d * exp_of(y); });
    default:
      return by_vectors(g, x, n, [](vec d, vec y) {
        const vec s = real(1) / (real(1) + exp_of(-y));
        return d * (s * (real(1) + y * (real(1) - s)));
      });
  }
}

// row[0:width] = the tensor's values as they are
template <typename real> inline void read_raw(const Operand &o, int64_t b, int64_t h, int64_t t, real *row) {
  with_dtype(o.dtype, [&](auto kind) {
    using T = decltype(kind);
    const T *from = (const T *)o.data + b * o.strides[0] + h * o.strides[1] + t * o.strides[2];
    const int64_t step = o.strides[3];
    if (step == 1)
      for (int64_t d = 0; d < o.width; d++) row[d] = real(from[d]);
    else
      for (int64_t d = 0; d < o.width; d++) row[d] = real(from[d * step]);
  });
}

// row[0:inner] = scale · map(values), then the extra column; zeros for a masked row (whatever it holds).
// With `pair`: also pair[0:inner] = row · co and pair[inner:2·inner] = row · si, in the same pass.
template <typename real>
inline void read_row(const Operand &o, int64_t b, int64_t h, int64_t t, real *row, real *pair = nullptr, real co = 0,
                     real si = 0) {
  using S = Simd<real>;
  const int64_t width = o.width, inner = o.inner();
  if (o.masked(b, t)) {
    std::memset(row, 0, inner * sizeof(real));
    if (pair) std::memset(pair, 0, 2 * inner * sizeof(real));
    return;
  }
  const real *from = row;
  if (o.dtype == native_dtype<real> && o.strides[3] == 1)
    from = (const real *)o.data + b * o.strides[0] + h * o.strides[1] + t * o.strides[2];
  else
    read_raw(o, b, h, t, row);
  const bool simple = o.map == IDENTITY || o.map == RELU;
  if (!simple) {
    if (from != row) std::memcpy(row, from, width * sizeof(real));
    apply_map(o.map, row, width);
    from = row;
  }
  const bool relu = o.map == RELU;
  const real scale = o.scale ? ((const real *)o.scale)[o.flat(b, h, t)] : real(1);
  int64_t d = 0;
  for (; d + S::lanes <= width; d += S::lanes) {
    typename S::vec x = S::load(from + d);
    if (relu) x = x < 0 ? typename S::vec{} : x;  // in this order a NaN passes through
    x *= scale;
    S::store(row + d, x);
    if (pair) S::store(pair + d, x * co), S::store(pair + inner + d, x * si);
  }
  for (; d < inner; d++) {
    real x = d < width ? from[d] : o.column ? ((const real *)o.column)[o.flat(b, h, t)] : real(1);
    if (d < width) x = (relu && x < 0 ? real(0) : x) * scale;
    row[d] = x;
    if (pair) pair[d] = x * co, pair[inner + d] = x * si;
  }
}

// the tensor's row = row · scale
template <typename real>
inline void write_row(const Operand &o, int64_t b, int64_t h, int64_t t, const real *row, real scale) {
  using S = Simd<real>;
  if (o.dtype == native_dtype<real> && o.strides[3] == 1) {
    real *to = (real *)o.data + b * o.strides[0] + h * o.strides[1] + t * o.strides[2];
    int64_t d = 0;
    for (; d + S::lanes <= o.width; d += S::lanes) S::store(to + d, S::load(row + d) * scale);
    for (; d < o.width; d++) to[d] = row[d] * scale;
    return;
  }
  with_dtype(o.dtype, [&](auto kind) {
    using T = decltype(kind);
    T *to = (T *)o.data + b * o.strides[0] + h * o.strides[1] + t * o.strides[2];
    const int64_t step = o.strides[3];
    if (step == 1)
      for (int64_t d = 0; d < o.width; d++) to[d] = T(row[d] * scale);
    else
      for (int64_t d = 0; d < o.width; d++) to[d * step] = T(row[d] * scale);
  });
}
