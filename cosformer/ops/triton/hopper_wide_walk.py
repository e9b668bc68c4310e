"""The causal walk for Hopper in bf16, heads of 65 to 128: two groups of warps work at different things.

A state of 2 · 128 · 128 sums fills half the registers of a processor. Eight warps keep it (`walk_state`): they turn the
sources, add them to the state and put it into shared memory, rounded, as the next chunk's operand. Meanwhile four other
warps work out the results of the chunk. Each side tells the other when a tile is ready and when it is free. With
Φ(x) = [φ(x) cos θp, φ(x) sin θp] at position p

    values_walk      H = Σ Φ(k) ⊗ [v, 1]                            o = Φ(q) H
    features_walk    the same H                                     dq = do Hᵀ, turned back
    keys_walk        G = Σ Φ(q)/z ⊗ [do, −do·o], against time       dk = v Gᵀ, turned back; dv = Φ(k) G

Sources are turned (`turn_tile`), results are not: the rows of a product with the halves of H are multiplied by cos
and sin, in fp32, and those of dq by 1/z. So a term that multiplies φ(x) by something of its position stands in
turn_tile and where `cos` and `sin` come from `phases`.
Results come in two halves of 64 columns: the sums of both, times two, would not fit the registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.triton.hopper_parts import (
    BF16,
    F32,
    ONES,
    SIZES,
    TILE,
    C,
    barrier,
    barriers,
    buffer,
    clamped,
    clock,
    cos_sin,
    feature_map,
    feature_map_gradient,
    fetch,
    kept,
    load_state,
    mapped,
    phases,
    row_numbers,
    rows,
    store_state,
    tile,
    turned,
    unknown_zero,
    where_is,
    write_rows,
)

W = gl.constexpr(128)
HALF = gl.constexpr(64)
COLUMNS = gl.constexpr(8)  # of each half of the state that carries denominators; both together are ONES
R = gl.constexpr(32)  # rows that are turned at a time: more would not fit the registers beside the state
# of the eight warps: the state, its column of ones, tiles of sources
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
STATE1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 8, 16]))
LINES8 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))
ONES8 = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [8, 1], [1, 0]))
# of the four: scores and half results, denominators, tiles
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
LEFT1 = gl.constexpr(gl.DotOperandLayout(0, SUMS1.value, 2))
LINES4 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
RESULT_WARPS, RESULT_REGISTERS = gl.constexpr(4), gl.constexpr(168)
TILE_BYTES = gl.constexpr(64 * 128 * 2)


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
def numerators(p_extra, p_z, rows_q, row, length, eps):
    """What extra was before its division by z."""
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
        extra, z = numerators(p_extra, p_z, rows_q, row, len_b, eps)
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


@gluon.jit
def triangle(x, REVERSE: gl.constexpr):
    """What a result may see."""
    o_t, o_s = gl.arange(0, C, gl.SliceLayout(1, SUMS)), gl.arange(0, C, gl.SliceLayout(0, SUMS))
    if REVERSE:
        x = gl.where(o_s[None, :] >= o_t[:, None], x, 0.0)
    else:
        x = gl.where(o_t[:, None] >= o_s[None, :], x, 0.0)
    return x.to(BF16)


@gluon.jit
def half(s_h, slot, J: gl.constexpr):
    """Of the state's columns."""
    return s_h.index(slot).slice(J * HALF, HALF, 1)


@gluon.jit
def half_turned(s_h, slot, J: gl.constexpr):
    """Of the state's rows, as columns."""
    return s_h.index(slot).slice(J * HALF, HALF).permute((1, 0))


@gluon.jit
def map_tile(s_x, K: gl.constexpr, MAP: gl.constexpr):
    """φ of a tile in its place, an operand of the products that follow."""
    if MAP != "identity":
        x = feature_map(s_x.load(LINES4).to(F32), MAP)
        if MAP == "elu1":
            x = gl.where((gl.arange(0, W, gl.SliceLayout(0, LINES4)) < K)[None, :], x, 0.0)
        s_x.store(x.to(BF16))
    fence_async_shared()
    barrier()


@gluon.jit
def product(a, b):
    return warpgroup_mma(a, b, gl.zeros([C, HALF], F32, SUMS), use_acc=False, is_async=True)


@gluon.jit
def walk_values(
    d_a, d_o, p_o, p_z, s_a, s_o, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, arrived, ready, ready_state, free_state, free,
    i_b, i_head, at_q, lead, rows_q, last, start, count, o_sb, o_sh, o_st, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, DIVIDED: gl.constexpr, BY_HAND: gl.constexpr,
):  # fmt: skip
    """Four warps: Φ(q) H, and what the chunk itself adds."""
    cos_r, sin_r = clock(SUMS, theta)
    copy_in(d_a, s_a, arrived, 0, i_b, i_head, at_q + start - lead, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * C, i % 2
        row, s_left = chunk - lead, rows(s_a, now)
        copy_in(d_a, s_a, arrived, 1 - now, i_b, i_head, at_q + row + C, i + 1 < count)
        mbarrier.wait(arrived.index(now), (i // 2) & 1)
        map_tile(s_left, K, MAP)
        cos, sin = phases(cos_r, sin_r, chunk, theta)
        mbarrier.wait(ready.index(now), (i // 2) & 1)
        ac, as_ = product(s_left, rows(s_b, now).permute((1, 0))), product(s_left, rows(s_bs, now).permute((1, 0)))
        mbarrier.wait(ready_state.index(0), i & 1)
        if DIVIDED:
            none1 = gl.zeros([C, ONES], F32, SUMS1)
            z = warpgroup_mma(s_left, s_n.index(at_0).permute((1, 0)), none1, use_acc=False, is_async=True)
        oc, os = product(s_left, half(s_hc, at_0, 0)), product(s_left, half(s_hs, at_0, 0))
        b_ac, b_as = warpgroup_mma_wait(2 + DIVIDED, [ac, as_])
        b_p = gl.convert_layout(triangle(b_ac * cos + b_as * sin, False), LEFT, assert_trivial=True)
        if DIVIDED:
            o_1 = gl.arange(0, ONES, gl.SliceLayout(0, SUMS1))[None, :]
            cos1 = gl.convert_layout(cos, SUMS1, assert_trivial=True)
            sin1 = gl.convert_layout(sin, SUMS1, assert_trivial=True)
            b_z = warpgroup_mma_wait(2, [z]) * gl.where(o_1 < COLUMNS, cos1, sin1) * (ONES // COLUMNS)
            z = warpgroup_mma(b_p, s_1.index(at_0).permute((1, 0)), b_z, is_async=True)
        b_oc, b_os = warpgroup_mma_wait(DIVIDED, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(0, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        oc, os = product(s_left, half(s_hc, at_0, 1)), product(s_left, half(s_hs, at_0, 1))
        b_o = warpgroup_mma_wait(2, [o])
        if DIVIDED:
            b_z = gl.sum(warpgroup_mma_wait(2, [z]), 1) * (1 / ONES)
            o_1 = row + gl.arange(0, C, gl.SliceLayout(1, SUMS1))
            gl.store(p_z + rows_q + o_1, b_z, mask=(o_1 >= 0) & (o_1 < last - lead))
            scale = gl.convert_layout(1 / clamped(b_z, eps), gl.SliceLayout(1, SUMS), assert_trivial=True)[:, None]
            b_o = b_o * scale
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        rows(s_o, at_0).slice(0, HALF, 1).store(b_o.to(BF16))
        b_oc, b_os = warpgroup_mma_wait(0, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(HALF, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        tell(free_state, 0)
        b_o = warpgroup_mma_wait(0, [o])
        tell(free, now)
        if DIVIDED:
            b_o = b_o * scale
        rows(s_o, at_0).slice(HALF, HALF, 1).store(b_o.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_o.index(at_0), d_o, p_o, o_sb, o_sh, o_st, i_b, i_head, at_q + row, -row, last - lead - row, LINES4, V,
            BY_HAND,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def of_columns(first, second, LATER: gl.constexpr):
    """[C, ONES] in bf16 with `first` and `second` in the columns of one half of the state, and 0 in the other's."""
    o_1 = gl.arange(0, ONES, gl.SliceLayout(0, LEFT1))[None, :] - (COLUMNS if LATER else 0)
    both = gl.where(o_1 < COLUMNS // 2, first[:, None], second[:, None])
    both = gl.where((o_1 >= 0) & (o_1 < COLUMNS), both, 0.0).to(BF16)
    return gl.convert_layout(both, LEFT, assert_trivial=True)


@gluon.jit
def walk_features(
    d_x, d_a, d_dx, p_dx, p_z, p_extra, s_x, s_a, s_p, s_b, s_bs, s_c, s_hc, s_hs, s_n, arrived, own, ready,
    ready_state, free_state, free, i_b, i_head, at_q, lead, len_q, rows_q, last, start, count, x_sb, x_sh, x_st, theta,
    eps,
    K: gl.constexpr, MAP: gl.constexpr, NORMED: gl.constexpr, BY_HAND: gl.constexpr,
):  # fmt: skip
    """Four warps: do Hᵀ, and what the chunk itself adds. A row of dq is a sum times 1/z, taken at the end."""
    cos_r, sin_r = clock(SUMS, theta)
    copy_in(d_a, s_a, arrived, 0, i_b, i_head, at_q + start - lead, True)
    if NORMED:
        z_next = row_numbers(p_z, rows_q, start - lead, len_q, LEFT1, 1.0)
        e_next = row_numbers(p_extra, rows_q, start - lead, len_q, LEFT1, 0.0)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * C, i % 2
        row, s_left = chunk - lead, rows(s_a, now)
        copy_in(d_a, s_a, arrived, 1 - now, i_b, i_head, at_q + row + C, i + 1 < count)
        cos, sin = phases(cos_r, sin_r, chunk, theta)
        if NORMED:
            z = clamped(z_next, eps)
            b_e = e_next * z
            high = b_e.to(BF16).to(F32)
            parts, rest = high * (2 / COLUMNS), (b_e - high) * (2 / COLUMNS)
            b_1c, b_1s = of_columns(parts, rest, False), of_columns(parts, rest, True)
            z_next = row_numbers(p_z, rows_q, row + C, len_q, LEFT1, 1.0)
            e_next = row_numbers(p_extra, rows_q, row + C, len_q, LEFT1, 0.0)
            scale = gl.convert_layout(1 / z, gl.SliceLayout(1, SUMS), assert_trivial=True)[:, None]
            cos, sin = cos * scale, sin * scale
        mbarrier.wait(arrived.index(now), (i // 2) & 1)
        mbarrier.wait(ready.index(now), (i // 2) & 1)
        a = product(s_left, rows(s_c, now).permute((1, 0)))
        mbarrier.wait(ready_state.index(0), i & 1)
        xc, xs = product(s_left, half_turned(s_hc, at_0, 0)), product(s_left, half_turned(s_hs, at_0, 0))
        if NORMED:
            xc = warpgroup_mma(b_1c, half(s_n, at_0, 0), xc, is_async=True)
            xs = warpgroup_mma(b_1s, half(s_n, at_0, 0), xs, is_async=True)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        copy_in(d_x, s_x, own, 0, i_b, i_head, at_q + row, True)
        b_a = warpgroup_mma_wait(2 + 2 * NORMED, [a])
        if NORMED:
            b_a += gl.convert_layout(b_e, gl.SliceLayout(1, SUMS), assert_trivial=True)[:, None]
        s_p.index(at_0).store(triangle(b_a, False))
        fence_async_shared()
        barrier()
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(0, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(0, HALF, 1), xs, is_async=True)
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        b_dx = b_xc * cos + b_xs * sin
        xc, xs = product(s_left, half_turned(s_hc, at_0, 1)), product(s_left, half_turned(s_hs, at_0, 1))
        if NORMED:
            xc = warpgroup_mma(b_1c, half(s_n, at_0, 1), xc, is_async=True)
            xs = warpgroup_mma(b_1s, half(s_n, at_0, 1), xs, is_async=True)
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(HALF, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(HALF, HALF, 1), xs, is_async=True)
        mbarrier.wait(own.index(0), i & 1)
        s_half = rows(s_x, at_0).slice(0, HALF, 1)
        s_half.store(unmapped(b_dx, s_half, MAP).to(BF16))
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        barrier()
        mbarrier.arrive(free_state.index(0), count=1)
        mbarrier.arrive(free.index(now), count=1)
        s_half = rows(s_x, at_0).slice(HALF, HALF, 1)
        s_half.store(unmapped(b_xc * cos + b_xs * sin, s_half, MAP).to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_x.index(at_0), d_dx, p_dx, x_sb, x_sh, x_st, i_b, i_head, at_q + row, -row, last - lead - row, LINES4, K,
            BY_HAND,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def unmapped(g, s_x, MAP: gl.constexpr):
    """Of the gradient of φ(x) that of x."""
    if MAP != "identity":
        g = feature_map_gradient(g, s_x.load(SUMS).to(F32), MAP)
    return g


@gluon.jit
def walk_keys(
    d_k, d_v, d_dk, d_dv, p_dk, p_dv, p_mask, s_k, s_v, s_p, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, arrived, own, ready,
    ready_state, free_state, free, i_b, i_kv, i_head, at_k, last, start, count, dk_sh, dk_st, dv_sh, dv_st, m_st, theta,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, DIVIDED: gl.constexpr, NORMED: gl.constexpr,
    MASKED: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Four warps: dk, whose operand is v, takes its place; then dv, whose operand is φ(k), takes its."""
    cos_r, sin_r = clock(SUMS, theta)
    one = gl.full([C], 1.0, F32, gl.SliceLayout(1, LEFT1))
    no = dk_sh * 0  # a packed row is the only one of its batch
    copy_in(d_v, s_v, arrived, 0, i_b, i_kv, at_k + start, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start - i * C, i % 2
        row, s_left, s_key = chunk + at_k, rows(s_v, now), rows(s_k, at_0)
        cos, sin = phases(cos_r, sin_r, chunk, theta)
        if NORMED:
            b_1c, b_1s = of_columns(one, one, False), of_columns(one, one, True)
        mbarrier.wait(arrived.index(now), (i // 2) & 1)
        mbarrier.wait(ready.index(now), (i // 2) & 1)
        a = product(s_left, rows(s_c, now).permute((1, 0)))
        if DIVIDED:
            a = warpgroup_mma(gl.full([C, ONES], 1.0, BF16, LEFT), s_1.index(now), a, is_async=True)
        mbarrier.wait(ready_state.index(0), i & 1)
        xc, xs = product(s_left, half_turned(s_hc, at_0, 0)), product(s_left, half_turned(s_hs, at_0, 0))
        if NORMED:
            xc = warpgroup_mma(b_1c, half(s_n, at_0, 0), xc, is_async=True)
            xs = warpgroup_mma(b_1s, half(s_n, at_0, 0), xs, is_async=True)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        copy_in(d_k, s_k, own, 0, i_b, i_kv, row, True)
        copy_in(d_v, s_v, arrived, 1 - now, i_b, i_kv, row - C, i + 1 < count)
        b_a = warpgroup_mma_wait(2 + 2 * NORMED, [a])
        s_p.index(at_0).store(triangle(b_a, True))
        fence_async_shared()
        barrier()
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(0, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(0, HALF, 1), xs, is_async=True)
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        b_0 = b_xc * cos + b_xs * sin
        xc, xs = product(s_left, half_turned(s_hc, at_0, 1)), product(s_left, half_turned(s_hs, at_0, 1))
        if NORMED:
            xc = warpgroup_mma(b_1c, half(s_n, at_0, 1), xc, is_async=True)
            xs = warpgroup_mma(b_1s, half(s_n, at_0, 1), xs, is_async=True)
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(HALF, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(HALF, HALF, 1), xs, is_async=True)
        mbarrier.wait(own.index(0), i & 1)
        keep_out = kept(p_mask, row, 0, last - chunk, m_st, SUMS, MASKED)
        b_0 = unmapped(b_0, s_key.slice(0, HALF, 1), MAP)
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        barrier()  # no product reads v any more
        put(s_left.slice(0, HALF, 1), b_0, keep_out, MASKED)
        put(
            s_left.slice(HALF, HALF, 1), unmapped(b_xc * cos + b_xs * sin, s_key.slice(HALF, HALF, 1), MAP), keep_out,
            MASKED,
        )  # fmt: skip
        map_tile(s_key, K, MAP)
        write_rows(s_v.index(now), d_dk, p_dk, no, dk_sh, dk_st, i_b, i_head, row, 0, last - chunk, LINES4, K, PACKED)
        ac, as_ = product(s_key, rows(s_b, now).permute((1, 0))), product(s_key, rows(s_bs, now).permute((1, 0)))
        oc, os = product(s_key, half(s_hc, at_0, 0)), product(s_key, half(s_hs, at_0, 0))
        b_ac, b_as = warpgroup_mma_wait(2, [ac, as_])
        b_p = gl.convert_layout(triangle(b_ac * cos + b_as * sin, True), LEFT, assert_trivial=True)
        b_oc, b_os = warpgroup_mma_wait(0, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(0, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        oc, os = product(s_key, half(s_hc, at_0, 1)), product(s_key, half(s_hs, at_0, 1))
        b_0 = warpgroup_mma_wait(2, [o])
        b_oc, b_os = warpgroup_mma_wait(0, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(HALF, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        tell(free_state, 0)
        put(s_key.slice(0, HALF, 1), b_0, keep_out, MASKED)
        b_o = warpgroup_mma_wait(0, [o])
        tell(free, now)
        put(s_key.slice(HALF, HALF, 1), b_o, keep_out, MASKED)
        fence_async_shared()
        barrier()
        write_rows(s_k.index(at_0), d_dv, p_dv, no, dv_sh, dv_st, i_b, i_head, row, 0, last - chunk, LINES4, V, PACKED)
    tma.store_wait(0)


@gluon.jit
def put(s_x, x, keep, MASKED: gl.constexpr):
    """The gradients of a masked key and its value are 0."""
    if MASKED:
        x = gl.where(keep[:, None], x, 0.0)
    s_x.store(x.to(BF16))


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def values_walk(
    d_q, d_k, d_v, d_o, p_o, p_z, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, o_sb, o_sh, o_st, m_sb, m_st, heads,
    length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    DIVIDED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    STATE_IN: gl.constexpr, STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Forward: o and z. Grid (slots · query heads)."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    # rows of queries stand at position row + lead; positions are those of keys
    i_kv, heads_kv, lead, none = i_head // GROUP, heads // GROUP, len_k - len_q, len_k * 0
    last = gl.minimum(first + stretch, len_k)
    count = gl.cdiv(last - first, C)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_a, s_o, s_b, s_bs, s_c = buffer(2, W), buffer(1, W), buffer(2, W), buffer(2, W), buffer(2, W)
    s_hc, s_hs, s_n = tile(W, W), tile(W, W), lying(1, W, 0.0)
    s_1, arrived, sources, others = lying(1, C, 1.0), barriers(2), barriers(2), barriers(2)
    ready, ready_state, free_state, free = barriers(2), barriers(1), barriers(1), barriers(2)
    wanted_out = (last == len_k) & (i_head % GROUP == 0)
    gl.warp_specialize(
        [
            (
                walk_state,
                (
                    d_k, d_v, p_z, p_z, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, sources, others,
                    ready, ready_state, free_state, free, i_b, i_kv, at_k, none, len_k, rows_q, slot * heads_kv + i_kv,
                    i_seq * heads_kv + i_kv, wanted_out, last, first, count, m_st, theta, eps, K, V, MAP, NORMED,
                    NORMED, MASKED, EDGED, False, False, STATE_IN, STATE_OUT,
                ),
            ),
            (
                walk_values,
                (
                    d_q, d_o, p_o, p_z, s_a, s_o, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, arrived, ready, ready_state,
                    free_state, free, i_b, i_head, at_q, lead, rows_q, last, first, count, o_sb, o_sh, o_st, theta, eps,
                    K, V, MAP, DIVIDED, BY_HAND,
                ),
            ),
        ],
        [RESULT_WARPS],
        [RESULT_REGISTERS],
    )  # fmt: skip


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def features_walk(
    d_q, d_k, d_v, d_g, d_dq, p_dq, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, x_sb, x_sh, x_st, m_sb, m_st,
    heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr, STATE_IN: gl.constexpr,
):  # fmt: skip
    """dq; d_g describes do. Grid (slots · query heads). NORMED: o was divided by z."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv, lead, none = i_head // GROUP, heads // GROUP, len_k - len_q, len_k * 0
    last = gl.minimum(first + stretch, len_k)
    count = gl.cdiv(last - first, C)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_x, s_a, s_b, s_bs, s_c = buffer(1, W), buffer(2, W), buffer(2, W), buffer(2, W), buffer(2, W)
    s_hc, s_hs, s_n = tile(W, W), tile(W, W), lying(1, W, 0.0)
    s_p, s_1, arrived, own, sources = tile(C, HALF), lying(1, C, 1.0), barriers(2), barriers(1), barriers(2)
    others, ready, ready_state, free_state, free = barriers(2), barriers(2), barriers(1), barriers(1), barriers(2)
    gl.warp_specialize(
        [
            (
                walk_state,
                (
                    d_k, d_v, p_z, p_z, p_mask, p_h, p_h, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, sources, others, ready,
                    ready_state, free_state, free, i_b, i_kv, at_k, none, len_k, rows_q, slot * heads_kv + i_kv, i_seq,
                    first < 0, last, first, count, m_st, theta, eps, K, V, MAP, NORMED, NORMED, MASKED, EDGED, False,
                    False, STATE_IN, False,
                ),
            ),
            (
                walk_features,
                (
                    d_q, d_g, d_dq, p_dq, p_z, p_extra, s_x, s_a, s_p, s_b, s_bs, s_c, s_hc, s_hs, s_n, arrived, own,
                    ready, ready_state, free_state, free, i_b, i_head, at_q, lead, len_q, rows_q, last, first, count,
                    x_sb, x_sh, x_st, theta, eps, K, MAP, NORMED, BY_HAND,
                ),
            ),
        ],
        [RESULT_WARPS],
        [RESULT_REGISTERS],
    )  # fmt: skip


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def keys_walk(
    d_q, d_k, d_v, d_g, d_dk, d_dv, p_dk, p_dv, p_z, p_extra, p_mask, p_h, p_h_out, p_cu_q, p_cu_k,
    p_slots, dk_sh, dk_st, dv_sh, dv_st, m_sb, m_st, heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, STATE_IN: gl.constexpr,
    STATE_OUT: gl.constexpr,
):  # fmt: skip
    """dk and dv of each query head, against time. Grid (slots · heads). NORMED: the column of ones has a gradient;
    DIVIDED: o was divided by z, so that extra is that column's."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MAP == "elu1"
    i_kv, lead = i_head // GROUP, len_k - len_q
    last = gl.minimum(first + stretch, len_k)
    count = gl.cdiv(last - first, C)
    start = first + (count - 1) * C
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_k, s_v, s_b, s_bs, s_c = buffer(1, W), buffer(2, W), buffer(2, W), buffer(2, W), buffer(2, W)
    s_hc, s_hs, s_n = tile(W, W), tile(W, W), lying(1, W, 0.0)
    s_p, s_1, arrived, own, sources = tile(C, HALF), lying(2, C, 0.0), barriers(2), barriers(1), barriers(2)
    others, ready, ready_state, free_state, free = barriers(2), barriers(2), barriers(1), barriers(1), barriers(2)
    gl.warp_specialize(
        [
            (
                walk_state,
                (
                    d_q, d_g, p_z, p_extra, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n, sources, others,
                    ready, ready_state, free_state, free, i_b, i_head, at_q, lead, len_q, rows_q, slot * heads + i_head,
                    i_seq * heads + i_head, first == 0, last, start, count, m_st, theta, eps, K, V, MAP, DIVIDED,
                    NORMED, False, EDGED, True, DIVIDED, STATE_IN, STATE_OUT,
                ),
            ),
            (
                walk_keys,
                (
                    d_k, d_v, d_dk, d_dv, p_dk, p_dv, p_mask, s_k, s_v, s_p, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_n,
                    arrived, own, ready, ready_state, free_state, free, i_b, i_kv, i_head, at_k, last, start, count,
                    dk_sh, dk_st, dv_sh, dv_st, m_st, theta, K, V, MAP, DIVIDED, NORMED, MASKED, PACKED,
                ),
            ),
        ],
        [RESULT_WARPS],
        [RESULT_REGISTERS],
    )  # fmt: skip
