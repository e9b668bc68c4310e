"""The side of a wide walk that keeps the state: eight warps. See hopper_wide_walk.py."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.triton.hopper_parts import (
    BF16,
    F32,
    ONES,
    TILE,
    C,
    barrier,
    clamped,
    cos_sin,
    fetch,
    kept,
    load_state,
    mapped,
    row_numbers,
    rows,
    store_state,
    turned,
    unknown_zero,
)

W = gl.constexpr(128)
HALF = gl.constexpr(64)
COLUMNS = gl.constexpr(8)  # of each half of the state that carries denominators; both together are ONES
R = gl.constexpr(32)  # rows that are turned at a time: more would not fit the registers beside the state
TILE_BYTES = gl.constexpr(64 * 128 * 2)
# of the eight warps: the state, its column of ones, tiles of sources
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
STATE1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 8, 16]))
LINES8 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))
ONES8 = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [8, 1], [1, 0]))


@gluon.jit
def tell(bars, slot):
    """All warps of this side are through."""
    barrier()
    mbarrier.arrive(bars.index(slot), count=1)


@gluon.jit
def lying(STAGES: gl.constexpr, WIDTH: gl.constexpr, value):
    """[STAGES, ONES, WIDTH]: columns as rows."""
    made = gl.allocate_shared_memory(BF16, [STAGES, ONES, WIDTH], TILE)
    for i in gl.static_range(STAGES):
        made.index(i).store(gl.full([ONES, WIDTH], value, BF16, ONES8))
    return made


@gluon.jit
def extra_and_z(p_extra, p_z, rows_q, row, length):
    """Of each row of a chunk. Their product is what extra was before its division."""
    o_c = row + gl.arange(0, C, gl.SliceLayout(0, ONES8))
    m_c = (o_c >= 0) & (o_c < length)
    z = gl.load(p_z + rows_q + o_c, mask=m_c, other=1.0)
    return gl.load(p_extra + rows_q + o_c, mask=m_c, other=0.0), z


@gluon.jit
def in_two_rows(x):
    """[COLUMNS, C] in bf16 whose columns add up to x, in two parts so that nearly all digits survive."""
    high = x.to(BF16).to(F32)
    o_1 = gl.arange(0, COLUMNS, gl.SliceLayout(1, ONES8))
    return (gl.where((o_1 < COLUMNS // 2)[:, None], high[None, :], (x - high)[None, :]) * (2 / COLUMNS)).to(BF16)


@gluon.jit
def copy_in(d_x, s_x, bars, slot, i_b, i_head, row, wanted):
    mbarrier.expect(bars.index(slot), TILE_BYTES, pred=wanted)
    fetch(d_x, s_x, bars, slot, i_b, i_head, row, wanted)


@gluon.jit
def turn_tile(
    s_x, s_sin, scale_0, scale_1, p_mask, at_mask, chunk, low, left, m_st, theta, K: gl.constexpr, MAP: gl.constexpr,
    EDGED: gl.constexpr, MASKED: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """Φ of the rows of a tile: the half with cos in its place, the other in s_sin. SCALED: each row times its scale."""
    cos_r, sin_r = cos_sin(theta * gl.arange(0, R, gl.SliceLayout(1, LINES8)).to(F32))
    cos_step, sin_step = cos_sin(theta * R)
    cos_0, sin_0 = cos_sin(theta * chunk.to(F32))
    for j in gl.static_range(C // R):
        keep = kept(p_mask, at_mask + j * R, low - j * R, left - j * R, m_st, LINES8, MASKED, R)
        x = mapped(s_x.slice(j * R, R).load(LINES8), keep, LINES8, K, MAP, EDGED)
        cos, sin = cos_r * cos_0 - sin_r * sin_0, sin_r * cos_0 + cos_r * sin_0
        if SCALED:
            scale = scale_1 if j else scale_0
            cos, sin = cos * scale, sin * scale
        b_c, b_s = turned(x, cos[:, None], sin[:, None])
        s_x.slice(j * R, R).store(b_c)
        s_sin.slice(j * R, R).store(b_s)
        cos_0, sin_0 = cos_0 * cos_step - sin_0 * sin_step, sin_0 * cos_step + cos_0 * sin_step


@gluon.jit
def clean_tile(s_x, p_mask, at_mask, low, left, m_st, MASKED: gl.constexpr):
    """Rows that do not count become 0."""
    for j in gl.static_range(C // R):
        keep = kept(p_mask, at_mask + j * R, low - j * R, left - j * R, m_st, LINES8, MASKED, R)
        s_x.slice(j * R, R).store(gl.where(keep[:, None], s_x.slice(j * R, R).load(LINES8), 0.0))


@gluon.jit
def keep_state(s_hc, s_hs, s_n, b_hc, b_hs, b_nc, b_ns, NORMED: gl.constexpr):
    s_hc.store(b_hc.to(BF16))
    s_hs.store(b_hs.to(BF16))
    if NORMED:
        s_n.slice(0, COLUMNS).permute((1, 0)).store(b_nc.to(BF16))
        s_n.slice(COLUMNS, COLUMNS).permute((1, 0)).store(b_ns.to(BF16))
    fence_async_shared()


@gluon.jit
def prepare(
    p_z, p_extra, p_mask, s_b, s_bs, s_c, s_1, sources, others, ready, at_b, lead_b, len_b, rows_q, last, chunk, i,
    wanted, m_st, theta, eps,
    K: gl.constexpr, MAP: gl.constexpr, ADDED: gl.constexpr, MASKED: gl.constexpr, EDGED: gl.constexpr,
    REVERSE: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """Chunk number i as operands. Behind the last one (not `wanted`) nothing is waited for, and nobody reads it."""
    slot, row = i % 2, chunk - lead_b
    low, left = row * 0, last - chunk
    if REVERSE:
        low, left = -row, len_b - row
    scale_0, scale_1 = 1.0, 1.0
    if SCALED:
        scale_0 = row_numbers(p_z, rows_q, row, len_b, LINES8, 1.0, R)
        scale_1 = row_numbers(p_z, rows_q, row + R, len_b, LINES8, 1.0, R)
    if REVERSE and ADDED:
        extra, z = extra_and_z(p_extra, p_z, rows_q, row, len_b)
    mbarrier.wait(sources.index(slot), (i // 2) & 1, pred=wanted)
    if SCALED:
        scale_0, scale_1 = 1 / clamped(scale_0, eps), 1 / clamped(scale_1, eps)
    turn_tile(
        rows(s_b, slot), rows(s_bs, slot), scale_0, scale_1, p_mask, at_b + row, chunk, low, left, m_st, theta, K, MAP,
        EDGED, MASKED, SCALED,
    )  # fmt: skip
    if REVERSE and ADDED:
        s_1.index(slot).slice(0, COLUMNS).store(in_two_rows(extra * clamped(z, eps)))
    mbarrier.wait(others.index(slot), (i // 2) & 1, pred=wanted)
    if EDGED:
        clean_tile(rows(s_c, slot), p_mask, at_b + row, low, left, m_st, MASKED)
    fence_async_shared()
    tell(ready, slot)


@gluon.jit
def walk_state(
    d_b, d_c, p_z, p_extra, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, sources, others, ready,
    ready_state, free_state, free, i_b, h_b, at_b, lead_b, len_b, rows_q, at_state, at_out, wanted_out, last, start,
    count, m_st, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, ADDED: gl.constexpr, NORMED: gl.constexpr,
    MASKED: gl.constexpr, EDGED: gl.constexpr, REVERSE: gl.constexpr, SCALED: gl.constexpr, STATE_IN: gl.constexpr,
    STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Eight warps: H = Σ Φ(b) ⊗ [c, 1]; against time Σ Φ(b)/z ⊗ [c, −do·o]. NORMED: there is such a column, and it is
    ADDED to. While a chunk is added, the next one is turned."""
    step = C
    if REVERSE:
        step = -C
    copy_in(d_b, s_b, sources, 0, i_b, h_b, at_b + start - lead_b, True)
    copy_in(d_c, s_c, others, 0, i_b, h_b, at_b + start - lead_b, True)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state, W, STATE, STATE1, K, V, STATE_IN, NORMED, COLUMNS)
    if REVERSE:  # here the columns add up to the row
        b_nc, b_ns = b_nc * (1 / COLUMNS), b_ns * (1 / COLUMNS)
    keep_state(s_hc.index(0), s_hs.index(0), s_n.index(0), b_hc, b_hs, b_nc, b_ns, NORMED)
    tell(ready_state, 0)
    prepare(
        p_z, p_extra, p_mask, s_b, s_bs, s_c, s_1, sources, others, ready, at_b, lead_b, len_b, rows_q, last, start, 0,
        True, m_st, theta, eps, K, MAP, ADDED, MASKED, EDGED, REVERSE, SCALED,
    )  # fmt: skip
    for i in range(count):
        at_0, now, then, more = unknown_zero(i), i % 2, (i + 1) % 2, i + 1 < count
        chunk, at_1 = start + (i + 1) * step, unknown_zero(i)
        if REVERSE:
            at_1 = now
        s_cos, s_sin, s_values = rows(s_b, now), rows(s_bs, now), rows(s_c, now)
        hc = warpgroup_mma(s_cos.permute((1, 0)), s_values, b_hc, is_async=True)
        hs = warpgroup_mma(s_sin.permute((1, 0)), s_values, b_hs, is_async=True)
        if ADDED:
            s_ones = s_1.index(at_1).slice(0, COLUMNS).permute((1, 0))
            nc = warpgroup_mma(s_cos.permute((1, 0)), s_ones, b_nc, is_async=True)
            ns = warpgroup_mma(s_sin.permute((1, 0)), s_ones, b_ns, is_async=True)
        mbarrier.wait(free.index(then), ((i - 1) // 2) & 1, pred=i > 0)
        copy_in(d_b, s_b, sources, then, i_b, h_b, at_b + chunk - lead_b, more)
        copy_in(d_c, s_c, others, then, i_b, h_b, at_b + chunk - lead_b, more)
        prepare(
            p_z, p_extra, p_mask, s_b, s_bs, s_c, s_1, sources, others, ready, at_b, lead_b, len_b, rows_q, last, chunk,
            i + 1, more, m_st, theta, eps, K, MAP, ADDED, MASKED, EDGED, REVERSE, SCALED,
        )  # fmt: skip
        if ADDED:
            b_hc, b_hs, b_nc, b_ns = warpgroup_mma_wait(0, [hc, hs, nc, ns])
        else:
            b_hc, b_hs = warpgroup_mma_wait(0, [hc, hs])
        mbarrier.wait(free_state.index(0), i & 1)
        keep_state(s_hc.index(at_0), s_hs.index(at_0), s_n.index(at_0), b_hc, b_hs, b_nc, b_ns, ADDED)
        tell(ready_state, 0)
    if STATE_OUT:  # noqa: SIM102
        if wanted_out:
            if REVERSE:
                b_nc, b_ns = b_nc * COLUMNS, b_ns * COLUMNS
            store_state(b_hc, b_hs, b_nc, b_ns, p_h_out, at_out, W, STATE, STATE1, K, V, NORMED, COLUMNS)
