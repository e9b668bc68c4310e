// One token: turn the state by θ, add φ(k) ⊗ [v, 1], read it with φ(q). In place, one pass over the state.
#pragma once
#include <cmath>
#include <vector>
#include "operand.h"

// Mirrored by the ctypes structure in launch.py. q, k, v, o: [B, heads, 1, width].
struct Step {
  Operand q, k, v, o;
  int64_t batch, heads, group;  // heads of k and v; each serves `group` heads of q
  void *state, *norm;           // [batch, heads, 2, K, V] and [batch, heads, 2, K], updated
  double theta, eps;
  int64_t threads;
  int32_t normalize, unused;
};

// e^{iθ} − 1 instead of e^{iθ}: near 1 a float rounds cos θ, which over 6,400 steps of M = 6,400 adds up to 2e-4.
template <typename real> struct SmallTurn {
  real lost, turned;  // 1 − cos θ, sin θ
  explicit SmallTurn(double theta) : lost(real(2 * std::sin(theta / 2) * std::sin(theta / 2))), turned(real(std::sin(theta))) {}
  template <typename number> inline void apply(number &re, number &im) const {
    const number x = re, y = im;
    re = x - (lost * x + turned * y), im = y + (turned * x - lost * y);
  }
};

// NR vectors of columns of the state, all its rows: the sums over rows stay in registers where there is one query.
template <typename real, int NR>
static inline void step_columns(SmallTurn<real> turn, int64_t K, int64_t V, int64_t G, const real *k, const real *v,
                                const real *q, real *re, real *im, real *sums) {
  using S = Simd<real>;
  typename S::vec value[NR], sum[NR];
#pragma GCC unroll 8
  for (int n = 0; n < NR; n++) value[n] = S::load(v + n * S::lanes), sum[n] = typename S::vec{};
  for (int64_t d = 0; d < K; d++, re += V, im += V)
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) {
      typename S::vec x = S::load(re + n * S::lanes), y = S::load(im + n * S::lanes);
      turn.apply(x, y);
      x += k[d] * value[n];
      S::store(re + n * S::lanes, x), S::store(im + n * S::lanes, y);
      sum[n] += q[d] * x;
      for (int64_t g = 1; g < G; g++) {
        real *other = sums + g * V + n * S::lanes;
        S::store(other, S::load(other) + q[g * K + d] * x);
      }
    }
#pragma GCC unroll 8
  for (int n = 0; n < NR; n++) S::store(sums + n * S::lanes, sum[n]);
}

template <typename real> static void step_head(const Step &s, int64_t b, int64_t h, real *scratch) {
  constexpr int lanes = Simd<real>::lanes;
  const int64_t K = s.k.width, V = s.v.width, G = s.group;
  const SmallTurn<real> turn(s.theta);
  real *k = scratch, *v = k + K, *q = v + V, *sums = q + G * K;
  read_row(s.k, b, h, 0, k);
  read_row(s.v, b, h, 0, v);
  for (int64_t g = 0; g < G; g++) read_row(s.q, b, h * G + g, 0, q + g * K);
  std::memset(sums, 0, G * V * sizeof(real));

  real *re = (real *)s.state + (b * s.heads + h) * 2 * K * V, *im = re + K * V;
  real *zre = (real *)s.norm + (b * s.heads + h) * 2 * K, *zim = zre + K;
  int64_t j = 0;
  for (; j + 4 * lanes <= V; j += 4 * lanes) step_columns<real, 4>(turn, K, V, G, k, v + j, q, re + j, im + j, sums + j);
  for (; j + lanes <= V; j += lanes) step_columns<real, 1>(turn, K, V, G, k, v + j, q, re + j, im + j, sums + j);
  for (; j < V; j++)
    for (int64_t d = 0; d < K; d++) {
      turn.apply(re[d * V + j], im[d * V + j]);
      re[d * V + j] += k[d] * v[j];
      for (int64_t g = 0; g < G; g++) sums[g * V + j] += q[g * K + d] * re[d * V + j];
    }
  for (int64_t d = 0; d < K; d++) turn.apply(zre[d], zim[d]), zre[d] += k[d];
  for (int64_t g = 0; g < G; g++) {
    real z = 0;
    for (int64_t d = 0; d < K; d++) z += q[g * K + d] * zre[d];
    z = std::abs(z) < real(s.eps) ? real(s.eps) : z;
    write_row(s.o, b, h * G + g, 0, sums + g * V, s.normalize ? 1 / z : real(1));
  }
}

template <typename real> static void run_step(const Step &s) {
  const int64_t tasks = s.batch * s.heads, K = s.k.width, V = s.v.width;
  const bool wide = tasks > 1 && tasks * K * V >= 16384;  // below that, waking threads costs more than the step
#pragma omp parallel num_threads(s.threads) if (wide && s.threads > 1)
  {
    std::vector<real> scratch(K + V + s.group * (K + V));
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; task++) step_head<real>(s, task / s.heads, task % s.heads, scratch.data());
  }
}
