// A register tile of MR x (NR*W) sums, the one inner loop every product of the walk goes through.
//
// Left operand: scalars broadcast from memory, addressed as L[r*row + p*step].
// Right operand: rows of a packed matrix, R[p*ld + column], loaded as whole vectors.
// The shapes below keep MR*NR sums, NR loaded vectors and one broadcast within the registers of each instruction set.
#pragma once
#include <cstdint>
#include <utility>

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_ROWS = 6, TILE_VECTORS = 4;  // 24 sums of 32 registers
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_VECTORS = 2;  // 12 of 16
#else
constexpr int VECTOR_BYTES = 16, TILE_ROWS = 6, TILE_VECTORS = 4;  // 24 of 32 (NEON)
#endif

template <typename real> struct Simd {
  typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
  typedef real loose __attribute__((vector_size(VECTOR_BYTES), aligned(alignof(real)), may_alias));
  static constexpr int lanes = VECTOR_BYTES / sizeof(real);
  static inline vec load(const real *p) { return *(const loose *)p; }
  static inline void store(real *p, vec x) { *(loose *)p = x; }
};

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <typename real, int MR, int NR> struct Tile {
  using S = Simd<real>;
  typename S::vec sum[MR][NR];

  inline __attribute__((always_inline)) void zero() {
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) sum[r][n] = typename S::vec{};
  }

  // sum[r] += Σ_p L[r*row + p*step] · R[p*ld : ]
  inline __attribute__((always_inline)) void add(const real *L, int64_t row, int64_t step, const real *R, int64_t ld,
                                                 int64_t count) {
    for (int64_t p = 0; p < count; p++, L += step, R += ld) {
      typename S::vec right[NR];
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) right[n] = S::load(R + n * S::lanes);
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) {
        const real left = L[r * row];
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) sum[r][n] += left * right[n];
      }
    }
  }

  // The same for the MR rows on the diagonal: row r takes p <= r only, so that a NaN ahead of a row never meets it.
  inline __attribute__((always_inline)) void add_triangle(const real *L, int64_t row, const real *R, int64_t ld) {
#pragma GCC unroll 8
    for (int p = 0; p < MR; p++) {
      typename S::vec right[NR];
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) right[n] = S::load(R + p * ld + n * S::lanes);
#pragma GCC unroll 8
      for (int r = p; r < MR; r++) {
        const real left = L[r * row + p];
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) sum[r][n] += left * right[n];
      }
    }
  }

  // sum[r] *= factors[r]
  inline __attribute__((always_inline)) void scale_rows(const real *factors) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) sum[r][n] *= factors[r];
  }

  // sum[r][j] *= factors[j − r]: a Toeplitz tile held as one row
  inline __attribute__((always_inline)) void scale_toeplitz(const real *factors) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) sum[r][n] *= S::load(factors - r + n * S::lanes);
  }

  // out = (out if accumulate else 0) + sum
  inline __attribute__((always_inline)) void store(real *out, int64_t ld, bool accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) {
        real *at = out + r * ld + n * S::lanes;
        S::store(at, accumulate ? S::load(at) + sum[r][n] : sum[r][n]);
      }
  }
};

// Calls f(rows, vectors) with compile-time counts: `rows` <= TILE_ROWS, `vectors` <= TILE_VECTORS.
template <int MR, int NR, typename F> inline void with_tile_shape(int rows, int vectors, F &&f) {
  if constexpr (MR > 1)
    if (rows < MR) return with_tile_shape<MR - 1, NR>(rows, vectors, f);
  if constexpr (NR > 1)
    if (vectors < NR) return with_tile_shape<MR, NR - 1>(rows, vectors, f);
  f(std::integral_constant<int, MR>{}, std::integral_constant<int, NR>{});
}

// One step of the butterfly that transposes `lanes` vectors: swap the off-diagonal blocks of size B of rows a and b.
template <typename real, int B, std::size_t... I>
inline void swap_blocks(typename Simd<real>::vec &a, typename Simd<real>::vec &b, std::index_sequence<I...>) {
  constexpr int W = Simd<real>::lanes;
  auto low = __builtin_shufflevector(a, b, ((int(I) & B) ? W + int(I) - B : int(I))...);
  auto high = __builtin_shufflevector(a, b, ((int(I) & B) ? W + int(I) : int(I) + B)...);
  a = low, b = high;
}

template <typename real, int B = 1> inline void butterfly(typename Simd<real>::vec *rows) {
  constexpr int W = Simd<real>::lanes;
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    if (!(i & B)) swap_blocks<real, B>(rows[i], rows[i + B], std::make_index_sequence<W>{});
  if constexpr (2 * B < W) butterfly<real, 2 * B>(rows);
}

// to[c][r] = from[r][c]; rows and columns are multiples of the vector length.
template <typename real>
inline void transpose(const real *from, int64_t ld_from, real *to, int64_t ld_to, int64_t rows, int64_t columns) {
  using S = Simd<real>;
  for (int64_t r = 0; r < rows; r += S::lanes)
    for (int64_t c = 0; c < columns; c += S::lanes) {
      typename S::vec block[S::lanes];
#pragma GCC unroll 16
      for (int i = 0; i < S::lanes; i++) block[i] = S::load(from + (r + i) * ld_from + c);
      butterfly<real>(block);
#pragma GCC unroll 16
      for (int i = 0; i < S::lanes; i++) S::store(to + (c + i) * ld_to + r, block[i]);
    }
}

// sums[i] = Σ_lane parts[i][lane] for `count` vectors, a multiple of the vector length.
template <typename real> inline void sum_lanes(const real *parts, real *sums, int64_t count) {
  using S = Simd<real>;
  for (int64_t i = 0; i < count; i += S::lanes) {
    typename S::vec block[S::lanes], sum{};
#pragma GCC unroll 16
    for (int j = 0; j < S::lanes; j++) block[j] = S::load(parts + (i + j) * S::lanes);
    butterfly<real>(block);
#pragma GCC unroll 16
    for (int j = 0; j < S::lanes; j++) sum += block[j];
    S::store(sums + i, sum);
  }
}
