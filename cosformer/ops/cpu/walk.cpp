// The one sum behind forward and backward, walked once along time with a state of fixed size:
//
//     out[t] = Σ_s cos(θ(t − s)) (a[t]·b[s]) c[s]           causal: s <= t; else every s
//
// forward: a = φ(q), b = φ(k), c = v, and z = the same sum with c = 1;   the gradients use it three times more:
// dφ(q): a = g', b = v', c = φ(k);   against time  dφ(k): a = v', b = g', c = φ(q);   dv: a = φ(k), b = φ(q), c = g
// with g = do/z, g' = [g, −(do·o)/z], v' = [v, 1].
//
// Inside a chunk of CHUNK tokens the products a·b are formed once and multiplied by a Toeplitz tile of cosines. Across
// chunks the state is H = Σ_s [b cos θf, b sin θf] ⊗ c, f counted from the start of a *frame* of FRAME tokens; at the end
// of a frame the state is turned (in double) to the next, so no angle grows and a million tokens cost a thousand turns.
// Outside, a state is complex and seen from the last token it holds: Re and Im of Σ_s e^{iθ(last − s)} b[s] ⊗ [c[s], 1].
#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include "operand.h"
#include "step.h"
#include "tile.h"

constexpr int64_t CHUNK = 32, FRAME = 1024, NEVER = int64_t(1) << 62;

// Mirrored by the ctypes structure in launch.py.
struct Walk {
  Operand a, b, c, out;                     // targets and sources; their product goes to out
  Operand x;                                // gradients: out *= map'(x), masked rows become 0 (x.data null: not so)
  int64_t sequences, heads, group_a, group_b;  // a and out have heads*group_a heads; b and c have heads*group_b
  const int64_t *a_start, *a_length, *b_start, *b_length;  // per sequence, in rows
  const void *state_in;                     // [sequences, heads, 2, inner, outer], or null for zeros
  const void *norm_in;                      // [sequences, heads, 2, inner]: the column c = 1; null for zeros
  void *state_out, *norm_out, *z;           // null: not wanted. z: [B, heads*group_a, T], out is divided by it
  double theta, eps;
  int64_t threads;
  int32_t packed, causal, reverse, unused;  // packed: every sequence lies in batch row 0
};

struct Turn {  // multiplication by e^{iθn}
  double cos, sin;
  Turn(double theta, double n) : cos(std::cos(theta * n)), sin(std::sin(theta * n)) {}
};

template <typename real> struct Walker {
  using S = Simd<real>;
  // one vector more per row: rows a power of two apart would share a few sets of the cache
  static constexpr int64_t PAD = S::lanes;
  struct Scratch {
    std::vector<real> memory;
    int64_t inner = 0, outer = 0, frame = 0;
    double theta = -1;
  };
  const Walk &w;
  const bool normed;                        // also sum the column c = 1
  const int64_t inner, outer, ld_inner, ld_pair, ld_outer, ld_scores = CHUNK + PAD;
  real *a, *b, *b2, *bt, *c, *scores, *out, *H, *Z, *zs, *z_parts, *lane_masks, *cosines, *fcos, *fsin, *ftan, *x;

  // Sizes in elements of H and Z together: also the size of one stored state.
  static int64_t state_size(const Walk &w) {
    return 2 * w.a.inner() * round_up(w.c.width, S::lanes) + round_up(2 * w.a.inner(), S::lanes) + PAD;
  }

  // At least what the constructor asks for, each part rounded up.
  static int64_t scratch_size(const Walk &w) {
    const int64_t in = round_up(w.a.inner(), S::lanes) + 2 * PAD, out = round_up(w.c.width, S::lanes) + PAD;
    return CHUNK * (5 * in + 2 * out + CHUNK + 4 * S::lanes) + (2 * in + 4) * out + 4 * in + 3 * FRAME +
           S::lanes * (S::lanes + 20) + 4 * CHUNK;
  }

  Walker(const Walk &walk, int64_t longest)
      : w(walk), normed(walk.z || walk.norm_out || walk.norm_in), inner(walk.a.inner()), outer(walk.c.width),
        ld_inner(round_up(inner, S::lanes) + PAD), ld_pair(round_up(2 * inner, S::lanes) + PAD),
        ld_outer(round_up(outer, S::lanes)) {
    const int64_t frame = std::min(FRAME, round_up(longest, CHUNK));  // as much of the table as will be read
    const int64_t sizes[] = {CHUNK * ld_inner, CHUNK * ld_inner, CHUNK * ld_pair, ld_inner * CHUNK,
                             CHUNK * ld_outer, CHUNK * ld_scores, CHUNK * ld_outer, 2 * inner * ld_outer, ld_pair,
                             CHUNK, CHUNK * S::lanes, S::lanes * S::lanes, 2 * CHUNK, FRAME, FRAME, FRAME,
                             ld_outer};
    real **parts[] = {&a, &b, &b2, &bt, &c, &scores, &out, &H, &Z,
                      &zs, &z_parts, &lane_masks, &cosines, &fcos, &fsin, &ftan, &x};
    int64_t total = S::lanes;
    for (int64_t size : sizes) total += round_up(size, S::lanes);
    if (total > scratch_size(w)) std::abort();  // the two countings disagree: a bug
    static thread_local Scratch kept;  // from call to call: fresh memory costs a page fault per 4 KiB
    if (kept.inner != inner || kept.outer != outer || kept.memory.size() < size_t(total)) {
      kept.memory.assign(total, real(0));  // zeros: the padding of every row is read and never written
      kept.inner = inner, kept.outer = outer, kept.theta = -1;
    }
    real *at = (real *)round_up((int64_t)kept.memory.data(), VECTOR_BYTES);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) *parts[i] = at, at += round_up(sizes[i], S::lanes);
    if (kept.theta == w.theta && kept.frame >= frame) return;
    kept.theta = w.theta, kept.frame = frame;
    for (int64_t i = 0; i < S::lanes; i++)
      for (int64_t j = 0; j <= i; j++) lane_masks[i * S::lanes + j] = 1;
    for (int64_t d = 0; d < CHUNK; d++) cosines[CHUNK - 1 - d] = real(std::cos(w.theta * d));
    for (int64_t f = 0; f < frame; f++) {  // read for f < M only, where θf < π/2 and the tangent is finite
      const double co = std::cos(w.theta * f), si = std::sin(w.theta * f);
      fcos[f] = real(co), fsin[f] = real(si), ftan[f] = real(si / co);
    }
  }

  // --- the state ---------------------------------------------------------------------------------------------------

  template <typename F> void each_pair(F &&f) {  // f(cosine part, sine part) for every entry of H and Z
    for (int64_t i = 0; i < inner * ld_outer; i++) f(H[i], H[inner * ld_outer + i]);
    for (int64_t i = 0; i < inner; i++) f(Z[i], Z[inner + i]);
  }

  // From (Re, Im) seen from the last token to the frame whose origin lies `n` tokens later, and back.
  void enter(double n) {
    const Turn turn(w.theta, n);
    each_pair([&](real &p, real &q) {
      const double re = p, im = q;
      p = real(turn.cos * re - turn.sin * im), q = real(-turn.sin * re - turn.cos * im);
    });
  }
  void leave(double n) {
    const Turn turn(w.theta, n);
    each_pair([&](real &p, real &q) {
      const double x = p, y = q;
      p = real(turn.cos * x + turn.sin * y), q = real(turn.sin * x - turn.cos * y);
    });
  }
  void next_frame(double n) {
    const Turn turn(w.theta, n);
    each_pair([&](real &p, real &q) {
      const double x = p, y = q;
      p = real(turn.cos * x + turn.sin * y), q = real(-turn.sin * x + turn.cos * y);
    });
  }

  // (Re, Im) from and to the caller's tensors, or zeros.
  void clear_state() {
    std::memset(H, 0, 2 * inner * ld_outer * sizeof(real));
    std::memset(Z, 0, ld_pair * sizeof(real));
  }
  void get_state(int64_t index) {
    clear_state();
    if (w.state_in)
      for (int64_t i = 0; i < 2 * inner; i++)
        std::memcpy(H + i * ld_outer, (const real *)w.state_in + (index * 2 * inner + i) * outer, outer * sizeof(real));
    if (w.norm_in) std::memcpy(Z, (const real *)w.norm_in + index * 2 * inner, 2 * inner * sizeof(real));
  }
  void put_state(int64_t index) {
    if (w.state_out)
      for (int64_t i = 0; i < 2 * inner; i++)
        std::memcpy((real *)w.state_out + (index * 2 * inner + i) * outer, H + i * ld_outer, outer * sizeof(real));
    if (w.norm_out) std::memcpy((real *)w.norm_out + index * 2 * inner, Z, 2 * inner * sizeof(real));
  }
  void load_state(const real *from) {
    std::memcpy(H, from, 2 * inner * ld_outer * sizeof(real));
    std::memcpy(Z, from + 2 * inner * ld_outer, ld_pair * sizeof(real));
  }
  void save_state(real *to) const {
    std::memcpy(to, H, 2 * inner * ld_outer * sizeof(real));
    std::memcpy(to + 2 * inner * ld_outer, Z, ld_pair * sizeof(real));
  }

  // --- one chunk ---------------------------------------------------------------------------------------------------

  int64_t row_of(const int64_t *start, const int64_t *length, int64_t seq, int64_t position) const {
    return w.reverse ? start[seq] + length[seq] - 1 - position : start[seq] + position;
  }

  void load_targets(int64_t seq, int64_t batch, int64_t head, int64_t position, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
      const int64_t row = row_of(w.a_start, w.a_length, seq, position + i);
      read_row(w.a, batch, head, row, a + i * ld_inner);
    }
  }

  void load_sources(int64_t seq, int64_t batch, int64_t head, int64_t position, int64_t f, int64_t n, bool scored) {
    for (int64_t i = 0; i < n; i++) {
      const int64_t row = row_of(w.b_start, w.b_length, seq, position + i);
      read_row(w.b, batch, head, row, b + i * ld_inner, b2 + i * ld_pair, fcos[f + i], fsin[f + i]);
      read_row(w.c, batch, head, row, c + i * ld_outer);
    }
    if (scored) transpose<real>(b, ld_inner, bt, CHUNK, round_up(n, S::lanes), round_up(inner, S::lanes));
  }

  // scores[i, 0:i+1] = cos θ(i − j) a[i]·b[j] for the MR rows at i0 (past the diagonal lies rubbish that nobody reads)
  template <int MR> void score_rows(int64_t i0) {
    const int64_t columns = round_up(i0 + MR, S::lanes);
    for (int64_t j0 = 0; j0 < columns; j0 += TILE_VECTORS * S::lanes) {
      const int vectors = int(std::min<int64_t>(TILE_VECTORS, (columns - j0) / S::lanes));
      with_tile_shape<MR, TILE_VECTORS>(MR, vectors, [&](auto, auto NR) {
        Tile<real, MR, NR> tile;
        tile.zero();
        tile.add(a + i0 * ld_inner, ld_inner, 1, bt + j0, CHUNK, inner);
        tile.scale_toeplitz(cosines + CHUNK - 1 - i0 + j0);
        tile.store(scores + i0 * ld_scores + j0, ld_scores, false);
      });
    }
    if (!normed) return;
    for (int64_t i = i0; i < i0 + MR; i++) {  // z gathers the row, up to and including the diagonal
      const real *row = scores + i * ld_scores;
      typename S::vec part = S::load(z_parts + i * S::lanes);
      int64_t j = 0;
      for (; j + S::lanes <= i + 1; j += S::lanes) part += S::load(row + j);
      if (j <= i) part += S::load(lane_masks + (i - j) * S::lanes) != 0 ? S::load(row + j) : typename S::vec{};
      S::store(z_parts + i * S::lanes, part);
    }
  }

  // out[i] (+)= [a cos, a sin]·H (with_state) + scores·c (with_scores), for all n rows.
  void add_products(int64_t f, int64_t n, bool with_state, bool with_scores) {
    for (int64_t i0 = 0; i0 < n; i0 += TILE_ROWS) {
      const int rows = int(std::min<int64_t>(TILE_ROWS, n - i0));
      with_tile_shape<TILE_ROWS, 1>(rows, 1, [&](auto MR, auto) {
        if (with_scores) score_rows<MR>(i0);
        for (int64_t v0 = 0; v0 < ld_outer; v0 += TILE_VECTORS * S::lanes) {
          const int vectors = int(std::min<int64_t>(TILE_VECTORS, (ld_outer - v0) / S::lanes));
          with_tile_shape<MR, TILE_VECTORS>(MR, vectors, [&](auto, auto NR) {
            Tile<real, MR, NR> tile;
            tile.zero();
            if (with_state) {  // cos θf (a·Hcos + tan θf a·Hsin): one tile of `a` serves both halves
              tile.add(a + i0 * ld_inner, ld_inner, 1, H + inner * ld_outer + v0, ld_outer, inner);
              tile.scale_rows(ftan + f + i0);
              tile.add(a + i0 * ld_inner, ld_inner, 1, H + v0, ld_outer, inner);
              tile.scale_rows(fcos + f + i0);
            }
            if (with_scores) {
              tile.add(scores + i0 * ld_scores, ld_scores, 1, c + v0, ld_outer, i0);
              tile.add_triangle(scores + i0 * ld_scores + i0, ld_scores, c + i0 * ld_outer + v0, ld_outer);
            }
            tile.store(out + i0 * ld_outer + v0, ld_outer, !with_state);
          });
        }
      });
    }
  }

  void read_norm(int64_t f, int64_t n) {  // z_parts[i] = [a cos, a sin]·Z, lane by lane
    for (int64_t i = 0; i < n; i++) {
      typename S::vec in_phase{}, across{};
      for (int64_t d = 0; d < inner; d += S::lanes) {
        const typename S::vec x = S::load(a + i * ld_inner + d);
        in_phase += x * S::load(Z + d), across += x * S::load(Z + inner + d);
      }
      S::store(z_parts + i * S::lanes, in_phase * fcos[f + i] + across * fsin[f + i]);
    }
  }

  void update_state(int64_t n) {  // H += [b cos, b sin]ᵀ c,  Z += their sums: one rounding a chunk at the state's size
    for (int64_t d0 = 0; d0 < 2 * inner; d0 += TILE_ROWS)
      for (int64_t v0 = 0; v0 < ld_outer; v0 += TILE_VECTORS * S::lanes)
        with_tile_shape<TILE_ROWS, TILE_VECTORS>(
            int(std::min<int64_t>(TILE_ROWS, 2 * inner - d0)),
            int(std::min<int64_t>(TILE_VECTORS, (ld_outer - v0) / S::lanes)), [&](auto MR, auto NR) {
              Tile<real, MR, NR> tile;
              tile.zero();
              tile.add(b2 + d0, 1, ld_pair, c + v0, ld_outer, n);
              tile.store(H + d0 * ld_outer + v0, ld_outer, true);
            });
    if (normed)
      for (int64_t d = 0; d < ld_pair; d += S::lanes) {
        typename S::vec sum{};
        for (int64_t i = 0; i < n; i++) sum += S::load(b2 + i * ld_pair + d);
        S::store(Z + d, S::load(Z + d) + sum);
      }
  }

  void finish(int64_t seq, int64_t batch, int64_t head, int64_t position, int64_t n) {
    if (w.z) sum_lanes(z_parts, zs, round_up(n, S::lanes));
    for (int64_t i = 0; i < n; i++) {
      const int64_t t = row_of(w.a_start, w.a_length, seq, position + i);
      real *row = out + i * ld_outer;
      real scale = 1;
      if (w.z) {
        ((real *)w.z)[w.out.flat(batch, head, t)] = zs[i];
        scale = 1 / (std::abs(zs[i]) < real(w.eps) ? real(w.eps) : zs[i]);
      }
      if (w.x.data) {
        if (w.x.masked(batch, t)) {
          std::memset(row, 0, outer * sizeof(real));
        } else if (w.x.map != IDENTITY) {
          read_raw(w.x, batch, head, t, x);
          apply_map_gradient(w.x.map, x, row, outer);
        }
      }
      write_row(w.out, batch, head, t, row, scale);
    }
  }

  // --- a stretch of time -------------------------------------------------------------------------------------------

  // Walks positions [from, to): sources exist below `sources`, targets from `targets` on (position p is target p −
  // targets). The state must be in a frame that begins at `from`; returns how far into the last frame the walk ended.
  int64_t stretch(int64_t seq, int64_t head, int64_t from, int64_t to, int64_t sources, int64_t targets) {
    const int64_t batch = w.packed ? 0 : seq;
    int64_t f = 0;
    for (int64_t p = from, n; p < to; p += n, f += n) {
      const bool has_sources = p < sources, has_targets = p >= targets;
      n = std::min(CHUNK, to - p);
      if (has_sources) n = std::min(n, sources - p);
      if (!has_targets) n = std::min(n, targets - p);
      if (f + n > FRAME) next_frame(double(f)), f = 0;
      if (w.group_b == 1) {
        if (has_sources) load_sources(seq, batch, head, p, f, n, has_targets);
        for (int64_t g = 0; has_targets && g < w.group_a; g++) {
          load_targets(seq, batch, head * w.group_a + g, p - targets, n);
          if (normed) read_norm(f, n);
          add_products(f, n, true, has_sources);
          finish(seq, batch, head * w.group_a + g, p - targets, n);
        }
        if (has_sources) update_state(n);
      } else {  // several sources for one target: every group must read the state as it was before the chunk
        if (has_targets) load_targets(seq, batch, head, p - targets, n), add_products(f, n, true, false);
        for (int64_t g = 0; has_sources && g < w.group_b; g++) {
          load_sources(seq, batch, head * w.group_b + g, p, f, n, has_targets);
          if (has_targets) add_products(f, n, false, true);
          update_state(n);
        }
        if (has_targets) finish(seq, batch, head, p - targets, n);
      }
    }
    return f;
  }

  // A whole sequence of one head, from the caller's state to the caller's state.
  void whole(int64_t task) {
    const int64_t seq = task / w.heads, head = task % w.heads, sources = w.b_length[seq], length = w.a_length[seq];
    const int64_t targets = !w.causal ? NEVER : w.reverse ? 0 : sources - length, end = targets + length;
    get_state(task);
    if (w.state_in || w.norm_in) enter(1);  // zeros need no turn
    const int64_t f = stretch(seq, head, 0, sources, sources, targets);
    if (w.causal && end <= sources && !w.state_out && !w.norm_out) return;
    leave(double(f - 1));
    put_state(task);
    if (!w.causal) {  // target p stands p − (sources − 1) after the last source
      enter(double(1 - sources));
      stretch(seq, head, 0, length, 0, 0);
    } else if (end > sources) {
      enter(1);
      stretch(seq, head, sources, end, sources, targets);
    }
  }
};

// How many stretches to cut each sequence into. A cut costs a causal walk its sources twice, so only idle threads buy it.
static int64_t choose_cuts(const Walk &w, int64_t longest) {
  const int64_t tasks = w.sequences * w.heads, rounds = (tasks + w.threads - 1) / w.threads;
  const double busy = double(tasks) / double(rounds * w.threads);
  if (busy > (w.causal ? 0.7 : 0.95)) return 1;
  const int64_t wanted = w.causal ? (w.threads + tasks - 1) / tasks : (2 * w.threads + tasks - 1) / tasks;
  return std::max<int64_t>(1, std::min(wanted, longest / (4 * CHUNK)));
}

template <typename real> static void run(const Walk &w) {
  int64_t longest = 1;
  for (int64_t n = 0; n < w.sequences; n++) longest = std::max(longest, std::max(w.a_length[n], w.b_length[n]));
  const int64_t cuts = choose_cuts(w, longest), tasks = w.sequences * w.heads, size = Walker<real>::state_size(w);
  std::vector<real> states(cuts > 1 ? tasks * (cuts + 1) * size : 0);
  // an exception cannot leave a parallel region: where scratch is large, ask for all of it here, and fail here
  if (const size_t bytes = w.threads * Walker<real>::scratch_size(w) * sizeof(real); bytes > size_t(64) << 20) {
    void *volatile trial = std::malloc(bytes);
    if (!trial) throw std::bad_alloc();
    std::free(trial);
  }

#pragma omp parallel num_threads(w.threads) if (w.threads > 1 && tasks * cuts > 1)
  {
    Walker<real> walker(w, longest);
    if (cuts == 1) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < tasks; task++) walker.whole(task);
    } else {
      // 1: the state each stretch of sources adds, seen from the stretch's last source
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < tasks * cuts; i++) {
        const int64_t task = i / cuts, cut = i % cuts, seq = task / w.heads, sources = w.b_length[seq];
        const int64_t from = cut * sources / cuts, to = (cut + 1) * sources / cuts;
        walker.clear_state();
        const int64_t f = walker.stretch(seq, task % w.heads, from, to, sources, NEVER);
        walker.leave(double(f - 1));
        walker.save_state(&states[(task * (cuts + 1) + cut + 1) * size]);
      }
      // 2: running sums: slot `cut` becomes the state before stretch `cut`
#pragma omp for schedule(static)
      for (int64_t task = 0; task < tasks; task++) {
        const int64_t sources = w.b_length[task / w.heads], half = walker.inner * walker.ld_outer;
        real *slot = &states[task * (cuts + 1) * size];
        walker.get_state(task);
        walker.save_state(slot);
        for (int64_t cut = 0; cut < cuts; cut++, slot += size) {
          const Turn turn(w.theta, double((cut + 1) * sources / cuts - cut * sources / cuts));
          auto add = [&](int64_t re, int64_t im) {
            slot[size + re] += real(turn.cos * slot[re] - turn.sin * slot[im]);
            slot[size + im] += real(turn.sin * slot[re] + turn.cos * slot[im]);
          };
          for (int64_t j = 0; j < half; j++) add(j, half + j);
          for (int64_t j = 0; j < walker.inner; j++) add(2 * half + j, 2 * half + walker.inner + j);
        }
        walker.load_state(slot);
        walker.put_state(task);
      }
      // 3: the targets. Causal: stretch by stretch from the state before it. Else all of them from the last state.
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < tasks * cuts; i++) {
        const int64_t task = i / cuts, cut = i % cuts, seq = task / w.heads, head = task % w.heads;
        const int64_t sources = w.b_length[seq], length = w.a_length[seq];
        const real *slots = &states[task * (cuts + 1) * size];
        if (w.causal) {
          const int64_t targets = w.reverse ? 0 : sources - length, end = targets + length;
          const int64_t from = cut * sources / cuts, to = (cut + 1) * sources / cuts;
          if (to > targets) {
            walker.load_state(slots + cut * size);
            walker.enter(1);
            walker.stretch(seq, head, from, std::min(to, end), sources, targets);
          }
          if (end > sources) {  // targets past the last source share the last state
            const int64_t a0 = sources + cut * (end - sources) / cuts, a1 = sources + (cut + 1) * (end - sources) / cuts;
            walker.load_state(slots + cuts * size);
            walker.enter(double(a0 - sources + 1));
            walker.stretch(seq, head, a0, a1, sources, targets);
          }
        } else {
          const int64_t a0 = cut * length / cuts, a1 = (cut + 1) * length / cuts;
          walker.load_state(slots + cuts * size);
          walker.enter(double(a0 - (sources - 1)));  // target p stands p − (sources − 1) after the last source
          walker.stretch(seq, head, a0, a1, 0, 0);
        }
      }
    }
  }
}

// What the gradients need of each row: scale = 1/z and column = −(do·o)/z, 0 where z was clamped and no longer moves.
struct RowGradients {
  Operand grad, out;
  const void *z;         // [B, H, T]
  void *scale, *column;  // [B, H, T]
  int64_t batch, threads;
  double eps;
};

template <typename real> static void run_row_gradients(const RowGradients &r) {
  const int64_t heads = r.out.heads, length = r.out.length, width = r.out.width, stretch = 256;
  const int64_t parts = (length + stretch - 1) / stretch;
#pragma omp parallel num_threads(r.threads) if (r.threads > 1)
  {
    std::vector<real> row(2 * width);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < r.batch * heads * parts; task++) {
      const int64_t b = task / parts / heads, h = task / parts % heads, from = task % parts * stretch;
      for (int64_t t = from; t < std::min(from + stretch, length); t++) {
        read_row(r.grad, b, h, t, row.data());
        read_row(r.out, b, h, t, row.data() + width);
        typename Simd<real>::vec part{};
        int64_t d = 0;
        for (; d + Simd<real>::lanes <= width; d += Simd<real>::lanes)
          part += Simd<real>::load(&row[d]) * Simd<real>::load(&row[width + d]);
        real dot = 0;
        for (; d < width; d++) dot += row[d] * row[width + d];
        for (int l = 0; l < Simd<real>::lanes; l++) dot += part[l];
        const int64_t at = r.out.flat(b, h, t);
        const real z = ((const real *)r.z)[at];
        const bool clamped = std::abs(z) < real(r.eps);
        const real scale = 1 / (clamped ? real(r.eps) : z);
        ((real *)r.scale)[at] = scale, ((real *)r.column)[at] = clamped ? real(0) : -dot * scale;
      }
    }
  }
}

template <typename F> static int32_t guarded(F &&f) {
  try {
    f();
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}

extern "C" {
// Asks for large pages under a large, still untouched result: one page fault per 2 MiB instead of 512.
void cosformer_large_pages(void *data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  const int64_t page = 1 << 21, from = round_up((int64_t)data, page), to = ((int64_t)data + bytes) / page * page;
  if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);  // only advice: a refusal changes nothing
#else
  (void)data, (void)bytes;
#endif
}
// Each returns 0, or 1 where memory ran out (before any result was touched: scratch is asked for first).
int32_t cosformer_walk_f32(const Walk *w) { return guarded([&] { run<float>(*w); }); }
int32_t cosformer_walk_f64(const Walk *w) { return guarded([&] { run<double>(*w); }); }
int32_t cosformer_row_gradients_f32(const RowGradients *r) { return guarded([&] { run_row_gradients<float>(*r); }); }
int32_t cosformer_row_gradients_f64(const RowGradients *r) { return guarded([&] { run_row_gradients<double>(*r); }); }
int32_t cosformer_step_f32(const Step *s) { return guarded([&] { run_step<float>(*s); }); }
int32_t cosformer_step_f64(const Step *s) { return guarded([&] { run_step<double>(*s); }); }
int64_t cosformer_sizes(int32_t which) {
  return which == 0 ? sizeof(Operand) : which == 1 ? sizeof(Walk) : which == 2 ? sizeof(Step)
                                                          : which == 3 ? sizeof(RowGradients) : VECTOR_BYTES;
}
int32_t cosformer_has_openmp() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}
}
