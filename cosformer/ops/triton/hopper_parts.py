"""What the Hopper kernels of both widths are made of: maps, phases, places, copies, states.

A chunk is C positions, a tile W columns wide. feature_map and its derivative stand in kernels.py too: Gluon and Triton
do not call each other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import PropagateNan

# Numbers that no kernel is compiled for anew
SIZES = (
    "o_sb", "o_sh", "o_st", "x_sb", "x_sh", "x_st", "dk_sh", "dk_st", "dv_sh", "dv_st", "m_sb", "m_st", "heads",
    "length_q", "length_k", "stretch", "stretches",
)  # fmt: skip
barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7
SPREADS = gl.constexpr(PropagateNan.ALL)
C = gl.constexpr(64)  # positions of a chunk, and the width of a tile
ONES = gl.constexpr(16)
BF16 = gl.constexpr(gl.bfloat16)
F32 = gl.constexpr(gl.float32)
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
ROWS = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=4))
NARROW = gl.constexpr(gl.NVMMASharedLayout(32, 16, rank=2))


@gluon.jit
def feature_map(x, MAP: gl.constexpr):
    if MAP == "relu":
        x = gl.maximum(x, 0.0, propagate_nan=SPREADS)
    elif MAP == "leaky_relu":
        x = gl.where(x < 0, 0.01 * x, x)
    elif MAP == "elu1":
        x = gl.where(x > 0, x + 1, gl.exp(gl.minimum(x, 0.0)))
    elif MAP == "silu":
        x = x / (1 + gl.exp(-x))
    return x


@gluon.jit
def feature_map_gradient(g, x, MAP: gl.constexpr):
    """g · φ'(x)"""
    if MAP == "relu":
        g = gl.where(x > 0, g, 0.0)
    elif MAP == "leaky_relu":
        g = gl.where(x > 0, g, 0.01 * g)
    elif MAP == "elu1":
        g = g * gl.exp(gl.minimum(x, 0.0))
    elif MAP == "silu":
        s = 1 / (1 + gl.exp(-x))
        g = g * s * (1 + x * (1 - s))
    return g


@gluon.jit
def cos_sin(x):
    """For |x| ≤ π/2, to a rounding of fp32; no range to reduce, so no branch."""
    y = x * x
    cos = 4.1666667e-2 + y * (-1.3888889e-3 + y * (2.4801587e-5 + y * (-2.7557319e-7 + y * 2.0876757e-9)))
    sin = 8.3333333e-3 + y * (-1.9841270e-4 + y * (2.7557319e-6 + y * (-2.5052108e-8 + y * 1.6059044e-10)))
    return 1 + y * (-0.5 + y * cos), x + x * (y * (-1.6666667e-1 + y * sin))


@gluon.jit
def clock(LAYOUT: gl.constexpr, theta):
    """cos and sin of the positions inside a chunk."""
    return cos_sin(theta * gl.arange(0, C, gl.SliceLayout(1, LAYOUT)).to(F32))


@gluon.jit
def phases(cos, sin, chunk, theta):
    """… and of the positions of the chunk that starts at `chunk`."""
    c, s = cos_sin(theta * chunk.to(F32))
    return (cos * c - sin * s)[:, None], (sin * c + cos * s)[:, None]


@gluon.jit
def turned(x, cos, sin):
    """Φ of mapped rows, in two halves."""
    return (x * cos).to(BF16), (x * sin).to(BF16)


@gluon.jit
def mapped(x, keep, LAYOUT: gl.constexpr, K: gl.constexpr, MAP: gl.constexpr, EDGED: gl.constexpr):
    """φ(x) in fp32; rows that do not count are 0, and columns beyond K stay 0."""
    x = feature_map(x.to(F32), MAP)
    if EDGED:
        x = gl.where(keep[:, None], x, 0.0)
    if MAP == "elu1":
        x = gl.where((gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT)) < K)[None, :], x, 0.0)
    return x


@gluon.jit
def where_is(i, heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED: gl.constexpr):
    """Program i: its head, batch row, slot of states, first rows of queries and keys, lengths, and first position."""
    zero = gl.to_tensor(0)
    if PACKED:
        i_head, slot = i % heads, i // heads
        i_seq, first = gl.load(p_slots + 2 * slot), gl.load(p_slots + 2 * slot + 1)
        at_q, at_k = gl.load(p_cu_q + i_seq), gl.load(p_cu_k + i_seq)
        len_q, len_k = gl.load(p_cu_q + i_seq + 1) - at_q, gl.load(p_cu_k + i_seq + 1) - at_k
        return i_head, zero, i_seq, slot, at_q, at_k, len_q, len_k, first
    i_head, i_seq = (i // stretches) % heads, i // (stretches * heads)
    slot = i_seq * stretches + i % stretches
    return i_head, i_seq, i_seq, slot, zero, zero, length_q, length_k, (i % stretches) * stretch


@gluon.jit
def fetch(d_x, s_x, bars, slot, i_b, i_head, row, wanted):
    tma.async_copy_global_to_shared(d_x, [i_b, i_head, row, 0], bars.index(slot), s_x.index(slot), pred=wanted)


@gluon.jit
def barriers(COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    return bars


@gluon.jit
def clamped(z, eps):
    return gl.where(gl.abs(z) < eps, eps, z)


@gluon.jit
def kept(p_mask, row, low, left, m_st, LAYOUT: gl.constexpr, MASKED: gl.constexpr, COUNT: gl.constexpr = C):
    """Which rows of a chunk count: those from `low` up to `left`, and not masked; `row` is the mask's first."""
    o_c = gl.arange(0, COUNT, gl.SliceLayout(1, LAYOUT))
    keep = (o_c >= low) & (o_c < left)
    if MASKED:
        keep = keep & (gl.load(p_mask + (row + o_c).to(gl.int64) * m_st, mask=keep, other=0) != 0)
    return keep


@gluon.jit
def write_rows(
    s_x, d_x, p_x, x_sb, x_sh, x_st, i_b, i_head, row, low, left, LAYOUT: gl.constexpr, D: gl.constexpr,
    BY_HAND: gl.constexpr,
):  # fmt: skip
    """A chunk of results from shared memory, after a fence and a barrier: by the copy engine, which leaves out rows
    behind the tensor's last; by hand where the next row belongs to another sequence, or a chunk begins before the
    first row, which the copy engine forbids."""
    if BY_HAND:
        if (low > 0) | (left < C):
            b_x = s_x.reshape([C, s_x.shape[3]]).load(LAYOUT)
            o_c = gl.arange(0, C, gl.SliceLayout(1, LAYOUT))
            o_d = gl.arange(0, s_x.shape[3], gl.SliceLayout(0, LAYOUT))
            # strides come as multiples of 8, so the compiler sees that 16 bytes can be stored at once
            x_st = x_st * 8
            p_x += (i_b.to(gl.int64) * x_sb + i_head.to(gl.int64) * x_sh) * 8 + row.to(gl.int64) * x_st
            m = ((o_c >= low) & (o_c < left))[:, None] & (o_d < D)[None, :]
            gl.store(p_x + (o_c[:, None] * x_st + o_d[None, :]), b_x, mask=m)
        else:
            tma.async_copy_shared_to_global(d_x, [i_b, i_head, row, 0], s_x)
    else:
        tma.async_copy_shared_to_global(d_x, [i_b, i_head, row, 0], s_x)


@gluon.jit
def unknown_zero(i):
    """0 that the compiler cannot foresee: tiles indexed with it have their addresses reckoned where they are used, not
    once before the loop, which would fill the registers with them."""
    return i >> 30


@gluon.jit
def in_two(x, LAYOUT: gl.constexpr):
    """[C, ONES] in bf16 whose rows add up to x, in two parts so that nearly all its digits survive."""
    high = x.to(BF16).to(F32)
    o_1 = gl.arange(0, ONES, gl.SliceLayout(0, LAYOUT))
    return (gl.where((o_1 < ONES // 2)[None, :], high[:, None], (x - high)[:, None]) * (2 / ONES)).to(BF16)


@gluon.jit
def row_numbers(p_x, rows_x, row, length, LAYOUT: gl.constexpr, other, COUNT: gl.constexpr = C):
    """One number for each row of a chunk, `other` for rows that do not exist."""
    o_c = row + gl.arange(0, COUNT, gl.SliceLayout(1, LAYOUT))
    return gl.load(p_x + rows_x + o_c, mask=(o_c >= 0) & (o_c < length), other=other)


@gluon.jit
def buffer(COUNT: gl.constexpr, W: gl.constexpr):
    return gl.allocate_shared_memory(BF16, [COUNT, 1, 1, C, W], ROWS)


@gluon.jit
def rows(s, slot):
    return s.index(slot).reshape([C, s.shape[4]])


@gluon.jit
def tile(COUNT: gl.constexpr, W: gl.constexpr):
    return gl.allocate_shared_memory(BF16, [1, COUNT, W], TILE)


@gluon.jit
def narrow(COUNT: gl.constexpr, value, SUMS1: gl.constexpr):
    made = gl.allocate_shared_memory(BF16, [1, COUNT, ONES], NARROW)
    made.index(0).store(gl.full([COUNT, ONES], value, BF16, SUMS1))
    return made


@gluon.jit
def state_offsets(W: gl.constexpr, SUMS: gl.constexpr, K: gl.constexpr, V: gl.constexpr):
    o_k, o_v = gl.arange(0, W, gl.SliceLayout(1, SUMS)), gl.arange(0, W, gl.SliceLayout(0, SUMS))
    return o_k[:, None] * V + o_v[None, :], (o_k < K)[:, None] & (o_v < V)[None, :]


@gluon.jit
def load_state(
    p_h, at, W: gl.constexpr, SUMS: gl.constexpr, SUMS1: gl.constexpr, K: gl.constexpr, V: gl.constexpr,
    GIVEN: gl.constexpr, NORMED: gl.constexpr, COLUMNS: gl.constexpr = ONES,
):  # fmt: skip
    """The four parts of state `at`: sums of cos and sin [K, V], and of the column of ones, [K] in memory and here
    [K, COLUMNS] of equal columns."""
    b_hc, b_hs = gl.zeros([W, W], F32, SUMS), gl.zeros([W, W], F32, SUMS)
    b_nc, b_ns = gl.zeros([W, COLUMNS], F32, SUMS1), gl.zeros([W, COLUMNS], F32, SUMS1)
    if GIVEN:
        o_h, m_h = state_offsets(W, SUMS, K, V)
        p_h += at.to(gl.int64) * (2 * K * (V + 1))
        b_hc, b_hs = gl.load(p_h + o_h, mask=m_h, other=0.0), gl.load(p_h + K * V + o_h, mask=m_h, other=0.0)
        if NORMED:
            o_k = gl.arange(0, W, gl.SliceLayout(1, SUMS1))
            p_n = p_h + 2 * K * V
            b_nc = b_nc + gl.load(p_n + o_k, mask=o_k < K, other=0.0)[:, None]
            b_ns = b_ns + gl.load(p_n + K + o_k, mask=o_k < K, other=0.0)[:, None]
    return b_hc, b_hs, b_nc, b_ns


@gluon.jit
def store_state(
    b_hc, b_hs, b_nc, b_ns, p_h, at, W: gl.constexpr, SUMS: gl.constexpr, SUMS1: gl.constexpr, K: gl.constexpr,
    V: gl.constexpr, NORMED: gl.constexpr, COLUMNS: gl.constexpr = ONES,
):  # fmt: skip
    o_h, m_h = state_offsets(W, SUMS, K, V)
    p_h += at.to(gl.int64) * (2 * K * (V + 1))
    gl.store(p_h + o_h, b_hc, mask=m_h)
    gl.store(p_h + K * V + o_h, b_hs, mask=m_h)
    if NORMED:
        o_k = gl.arange(0, W, gl.SliceLayout(1, SUMS1))
        p_n = p_h + 2 * K * V
        gl.store(p_n + o_k, gl.sum(b_nc, 1) * (1 / COLUMNS), mask=o_k < K)
        gl.store(p_n + K + o_k, gl.sum(b_ns, 1) * (1 / COLUMNS), mask=o_k < K)
