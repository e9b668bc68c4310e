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

template <typename real> static void step_head(const Step &s, int64_t b, int64_t h, real *scratch) {
  const int64_t K = s.k.width, V = s.v.width, G = s.group;
  // e^{iθ} − 1 instead of e^{iθ}: near 1 a float cannot hold the turn, and a million steps would drift
  const real lost = real(2 * std::sin(s.theta / 2) * std::sin(s.theta / 2)), turned = real(std::sin(s.theta));
  real *k = scratch, *v = k + K, *q = v + V, *sums = q + G * K, *z = sums + G * V;
  read_row(s.k, b, h, 0, k);
  read_row(s.v, b, h, 0, v);
  for (int64_t g = 0; g < G; g++) read_row(s.q, b, h * G + g, 0, q + g * K);
  std::memset(sums, 0, G * (V + 1) * sizeof(real));

  real *__restrict re = (real *)s.state + (b * s.heads + h) * 2 * K * V, *__restrict im = re + K * V;
  real *zre = (real *)s.norm + (b * s.heads + h) * 2 * K, *zim = zre + K;
  for (int64_t d = 0; d < K; d++, re += V, im += V) {
    const real key = k[d];
    for (int64_t j = 0; j < V; j++) {
      const real x = re[j], y = im[j];
      re[j] = x - (lost * x + turned * y) + key * v[j];
      im[j] = y + (turned * x - lost * y);
    }
    const real x = zre[d], y = zim[d];
    zre[d] = x - (lost * x + turned * y) + key;
    zim[d] = y + (turned * x - lost * y);
    for (int64_t g = 0; g < G; g++) {
      const real query = q[g * K + d];
      real *__restrict sum = sums + g * V;
      for (int64_t j = 0; j < V; j++) sum[j] += query * re[j];
      z[g] += query * zre[d];
    }
  }
  for (int64_t g = 0; g < G; g++) {
    const real norm = std::abs(z[g]) < real(s.eps) ? real(s.eps) : z[g];
    write_row(s.o, b, h * G + g, 0, sums + g * V, s.normalize ? 1 / norm : real(1));
  }
}

template <typename real> static void run_step(const Step &s) {
  const int64_t tasks = s.batch * s.heads, K = s.k.width, V = s.v.width;
  const bool wide = tasks > 1 && tasks * K * V >= 16384;  // below that, waking threads costs more than the step
#pragma omp parallel num_threads(s.threads) if (wide && s.threads > 1)
  {
    std::vector<real> scratch(K + V + s.group * (K + V + 1));
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; task++) step_head<real>(s, task / s.heads, task % s.heads, scratch.data());
  }
}
