"""The side of a wide walk that works out results: four warps. See hopper_wide_walk.py."""

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
    C,
    barrier,
    clamped,
    clock,
    feature_map,
    feature_map_gradient,
    kept,
    phases,
    row_numbers,
    rows,
    unknown_zero,
    write_rows,
)
from cosformer.ops.triton.hopper_wide_state import COLUMNS, HALF, W, copy_in, tell

# of the four: scores and half results, denominators, tiles
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
LEFT1 = gl.constexpr(gl.DotOperandLayout(0, SUMS1.value, 2))
LINES4 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))


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
