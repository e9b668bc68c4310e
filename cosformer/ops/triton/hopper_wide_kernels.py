"""The walk for Hopper in bf16, heads of 65 to 128: as hopper_kernels.py, for tiles of 64 × 128 and two warpgroups.

A state of 2 · 128 · 128 sums fills half the registers of 256 threads, so operands stay in shared memory, a program has
a processor to itself, and dk and dv are two walks. There are two forms of one sum:

    values_kernel     Φ(a) (Σ Φ(b) ⊗ c)                 o, with a = q, b = k, c = v; dv, with a = k, b = q, c = do/z
    features_kernel   Σ (a · b) Φ(c), unturned          dq, with a = do/z, b = v, c = k; dk, with a = v, b = do/z, c = q
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
    feature_map_gradient,
    fetch,
    in_two,
    kept,
    load_state,
    mapped,
    narrow,
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
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16]))
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 16, 16]))  # the same in both warpgroups
LINES = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))


@gluon.jit
def nothing():
    return gl.zeros([C, W], F32, SUMS)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def wide_sum_kernel(
    d_b, d_c, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, m_sb, m_st, heads, length_q, length_k, stretch,
    stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, QUERIES: gl.constexpr, SCALED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """As sum_kernel."""
    i_head, i_b, _, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    at, size, lead, length = at_k, len_k, 0, length_k
    if QUERIES:
        at, size, length = at_q, len_q, length_q
        if CAUSAL:
            lead = len_k - len_q
    last = gl.minimum(first + stretch, size + lead)
    rows_b = (i_b * heads + i_head).to(gl.int64) * length + at
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_b, s_c, bars = buffer(1, W), buffer(2, W), barriers(1)
    s_bc, s_bs, s_1 = tile(C, W), tile(C, W), narrow(C, 1.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, slot, W, SUMS, SUMS1, K, V, False, False)
    cos0, sin0 = clock(LINES, theta)
    count = gl.cdiv(last - first, C)
    mbarrier.expect(bars.index(0), 2 * C * W * 2)
    tma.async_copy_global_to_shared(d_b, [i_b, i_head, at + first - lead, 0], bars.index(0), s_b.index(0))
    tma.async_copy_global_to_shared(d_c, [i_b, i_head, at + first - lead, 0], bars.index(0), s_c.index(0))
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), first + i * C, i % 2
        row = chunk - lead
        mbarrier.wait(bars.index(0), i & 1)
        keep = kept(p_mask, at + row, -row, gl.minimum(size, last - lead) - row, m_st, LINES, MASKED)
        b_b = mapped(rows(s_b, 0).load(LINES), keep, LINES, K, MAP, EDGED)
        cos, sin = phases(cos0, sin0, chunk, theta)
        b_bc, b_bs = turned(b_b, cos, sin)
        s_bc.index(at_0).store(b_bc)
        s_bs.index(at_0).store(b_bs)
        s_values = rows(s_c, now)
        if SCALED:
            z = row_numbers(p_z, rows_b, row, size, LINES, 1.0)
            b_c = s_values.load(LINES).to(F32) * (1 / clamped(z, eps))[:, None]
            s_values.store(gl.where(keep[:, None], b_c, 0.0).to(BF16))
        elif EDGED:
            s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        if QUERIES and NORMED:
            s_1.index(at_0).store(in_two(row_numbers(p_extra, rows_b, row, size, SUMS1, 0.0), SUMS1))
        fence_async_shared()
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(0), 2 * C * W * 2, pred=more)
        tma.async_copy_global_to_shared(
            d_b, [i_b, i_head, at + row + C, 0], bars.index(0), s_b.index(0), pred=more
        )  # fmt: skip
        tma.async_copy_global_to_shared(
            d_c, [i_b, i_head, at + row + C, 0], bars.index(0), s_c.index(1 - now), pred=more
        )  # fmt: skip
        hc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
        hs = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
        if NORMED:
            nc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
            ns = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_nc, b_ns = warpgroup_mma_wait(0, [nc, ns])
        b_hc, b_hs = warpgroup_mma_wait(0, [hc, hs])
        barrier()  # no product reads the tiles any more
    if QUERIES and NORMED:  # its columns add up to the row; a state's are all the row
        b_nc, b_ns = b_nc * ONES, b_ns * ONES
    store_state(b_hc, b_hs, b_nc, b_ns, p_h, slot * heads + i_head, W, SUMS, SUMS1, K, V, NORMED)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def values_kernel(
    d_a, d_b, d_c, d_o, p_o, p_z, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, o_sb, o_sh, o_st, m_sb, m_st,
    heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    DIVIDED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    REVERSE: gl.constexpr, SCALED: gl.constexpr, STATE_IN: gl.constexpr, STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). Forward: o and z. REVERSE: dv of each query head, c being do and SCALED by 1/z."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    lead = 0
    if CAUSAL:
        lead = len_k - len_q
    # rows of a stand at position row + lead_a; those of b and c at row + lead_b
    h_a, h_b, at_a, at_b, lead_a, lead_b, len_b, end = i_head, i_kv, at_q, at_k, lead, 0, len_k, len_q + lead
    at_state, h_state, heads_state = slot, i_kv, heads_kv
    if REVERSE:
        h_a, h_b, at_a, at_b, lead_a, lead_b, len_b, end = i_kv, i_head, at_k, at_q, 0, lead, len_q, len_k
        h_state, heads_state = i_head, heads
    if not CAUSAL:
        at_state = i_seq
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_a, bars, s_ac, s_as = buffer(1, W), barriers(1), buffer(1, W), tile(C, W)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), narrow(W, 0.0, SUMS1), narrow(W, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state * heads_state + h_state, W, SUMS, SUMS1, K, V, STATE_IN, NORMED)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if NORMED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos0, sin0 = clock(LINES, theta)
    o_t, o_s = gl.arange(0, C, gl.SliceLayout(1, SCORES)), gl.arange(0, C, gl.SliceLayout(0, SCORES))
    count = gl.cdiv(last - first, C)
    start, step = first, C
    if REVERSE:
        start, step = first + (count - 1) * C, -C
    BYTES: gl.constexpr = (3 if CAUSAL else 1) * C * W * 2
    mbarrier.expect(bars.index(0), BYTES)
    fetch(d_a, s_a, bars, 0, i_b, h_a, at_a + start - lead_a, True)
    if CAUSAL:
        s_b, s_c, s_bc, s_bs, s_1 = buffer(1, W), buffer(2, W), tile(C, W), tile(C, W), narrow(C, 1.0, SUMS1)
        s_s = gl.allocate_shared_memory(BF16, [1, C, C], TILE)
        fetch(d_b, s_b, bars, 0, i_b, h_b, at_b + start - lead_b, True)
        fetch(d_c, s_c, bars, 0, i_b, h_b, at_b + start - lead_b, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * step, i % 2
        row, row_b = chunk - lead_a, chunk - lead_b
        cos, sin = phases(cos0, sin0, chunk, theta)
        mbarrier.wait(bars.index(0), i & 1)
        tma.store_wait(0)
        barrier()  # no product reads the tiles any more, nor the copy engine the last results
        if CAUSAL:
            s_values = rows(s_c, now)
            if REVERSE:
                keep = kept(p_mask, 0, -row_b, len_b - row_b, m_st, LINES, False)
            else:
                keep = kept(p_mask, at_b + row_b, 0, last - chunk, m_st, LINES, MASKED)
            b_b = mapped(rows(s_b, 0).load(LINES), keep, LINES, K, MAP, EDGED)
            b_bc, b_bs = turned(b_b, cos, sin)
            s_bc.index(at_0).store(b_bc)
            s_bs.index(at_0).store(b_bs)
            if SCALED:
                z_b = row_numbers(p_z, rows_q, row_b, len_b, LINES, 1.0)
                b_c = s_values.load(LINES).to(F32) * (1 / clamped(z_b, eps))[:, None]
                s_values.store(gl.where(keep[:, None], b_c, 0.0).to(BF16))
            elif EDGED:
                s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        all_rows = kept(p_mask, 0, 0, C, m_st, LINES, False)
        b_a = mapped(rows(s_a, 0).load(LINES), all_rows, LINES, K, MAP, False)
        b_ac, b_as = turned(b_a, cos, sin)
        s_left = rows(s_ac, at_0)
        s_left.store(b_ac)
        s_as.index(at_0).store(b_as)
        fence_async_shared()
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(0), BYTES, pred=more)
        fetch(d_a, s_a, bars, 0, i_b, h_a, at_a + row + step, more)
        if CAUSAL:
            tma.async_copy_global_to_shared(
                d_b, [i_b, h_b, at_b + row_b + step, 0], bars.index(0), s_b.index(0), pred=more
            )  # fmt: skip
            tma.async_copy_global_to_shared(
                d_c, [i_b, h_b, at_b + row_b + step, 0], bars.index(0), s_c.index(1 - now), pred=more
            )  # fmt: skip
            none = gl.zeros([C, C], F32, SCORES)
            a = warpgroup_mma(s_left, s_bc.index(at_0).permute((1, 0)), none, use_acc=False, is_async=True)
            a = warpgroup_mma(s_as.index(at_0), s_bs.index(at_0).permute((1, 0)), a, is_async=True)
        o = warpgroup_mma(s_left, s_hc.index(at_0), nothing(), use_acc=False, is_async=True)
        o = warpgroup_mma(s_as.index(at_0), s_hs.index(at_0), o, is_async=True)
        if DIVIDED:
            none1 = gl.zeros([C, ONES], F32, SUMS1)
            z = warpgroup_mma(s_left, s_nc.index(at_0), none1, use_acc=False, is_async=True)
            z = warpgroup_mma(s_as.index(at_0), s_ns.index(at_0), z, is_async=True)
        if CAUSAL:
            hc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
            hs = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
            if NORMED:
                nc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
                ns = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_s = warpgroup_mma_wait(4 + 2 * DIVIDED + 2 * NORMED, [a])
            if REVERSE:
                b_s = gl.where(o_s[None, :] >= o_t[:, None], b_s, 0.0)
            else:
                b_s = gl.where(o_t[:, None] >= o_s[None, :], b_s, 0.0)
            s_s.index(at_0).store(b_s.to(BF16))
            fence_async_shared()
            barrier()
            o = warpgroup_mma(s_s.index(at_0), s_values, o, is_async=True)
            if DIVIDED:
                z = warpgroup_mma(s_s.index(at_0), s_1.index(at_0), z, is_async=True)
            b_hc, b_hs = warpgroup_mma_wait(1 + DIVIDED, [hc, hs])
            if NORMED:
                b_nc, b_ns = warpgroup_mma_wait(1 + DIVIDED, [nc, ns])
        b_o = warpgroup_mma_wait(0, [o])
        if DIVIDED:
            b_z = gl.sum(warpgroup_mma_wait(0, [z]), 1) * (1 / ONES)
            o_1 = row + gl.arange(0, C, gl.SliceLayout(1, SUMS1))
            gl.store(p_z + rows_q + o_1, b_z, mask=(o_1 >= 0) & (o_1 < last - lead))
            b_o = b_o * gl.convert_layout(1 / clamped(b_z, eps), gl.SliceLayout(1, SUMS))[:, None]
        if REVERSE and MASKED:  # the gradient of a masked value is 0
            keep_out = kept(p_mask, at_a + row, 0, last - chunk, m_st, SUMS, True)
            b_o = gl.where(keep_out[:, None], b_o, 0.0)
        barrier()  # no product reads the state any more, nor the first tile
        if CAUSAL:
            s_hc.index(at_0).store(b_hc.to(BF16))
            s_hs.index(at_0).store(b_hs.to(BF16))
            if DIVIDED:
                s_nc.index(at_0).store(b_nc.to(BF16))
                s_ns.index(at_0).store(b_ns.to(BF16))
        s_left.store(b_o.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_ac.index(at_0), d_o, p_o, o_sb, o_sh, o_st, i_b, i_head, at_a + row, -row, last - lead_a - row, LINES, V,
            BY_HAND,
        )  # fmt: skip
    if STATE_OUT:  # noqa: SIM102
        if (last == end) & (i_head % GROUP == 0):
            store_state(b_hc, b_hs, b_nc, b_ns, p_h_out, i_seq * heads_kv + i_kv, W, SUMS, SUMS1, K, V, NORMED)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def features_kernel(
    d_x, d_c, d_v, d_g, d_dx, p_dx, p_z, p_extra, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, x_sb, x_sh, x_st, m_sb,
    m_st, heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    REVERSE: gl.constexpr, STATE_IN: gl.constexpr, STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). dq: x = q, c = k. REVERSE, dk of each query head: x = k, c = q. d_g describes do.

    NORMED: the column of ones has a gradient; DIVIDED: o was divided by z, so that extra is that column's."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    lead = 0
    if CAUSAL:
        lead = len_k - len_q
    h_x, h_c, at_x, at_c, lead_x, lead_c, end = i_head, i_kv, at_q, at_k, lead, 0, len_q + lead
    at_state, h_state, heads_state = slot, i_kv, heads_kv
    if REVERSE:
        h_x, h_c, at_x, at_c, lead_x, lead_c, end = i_kv, i_head, at_k, at_q, 0, lead, len_k
        h_state, heads_state = i_head, heads
    if not CAUSAL:
        at_state = i_seq
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    WITH_G: gl.constexpr = CAUSAL or not REVERSE
    WITH_V: gl.constexpr = CAUSAL or REVERSE
    s_x, bars = buffer(1, W), barriers(2)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), narrow(W, 0.0, SUMS1), narrow(W, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state * heads_state + h_state, W, SUMS, SUMS1, K, V, STATE_IN, NORMED)
    if REVERSE:  # here the columns add up to the row
        b_nc, b_ns = b_nc * (1 / ONES), b_ns * (1 / ONES)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if NORMED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos_x, sin_x = clock(SUMS, theta)
    cos_c, sin_c = clock(LINES, theta)
    o_t, o_s = gl.arange(0, C, gl.SliceLayout(1, SCORES)), gl.arange(0, C, gl.SliceLayout(0, SCORES))
    count = gl.cdiv(last - first, C)
    start, step = first, C
    if REVERSE:
        start, step = first + (count - 1) * C, -C
    s_1, s_e = narrow(C, 1.0, SUMS1), narrow(C, 0.0, SUMS1)
    BYTES: gl.constexpr = (WITH_G + WITH_V + CAUSAL) * C * W * 2
    mbarrier.expect(bars.index(0), BYTES)
    if WITH_G:
        s_g, s_dn = buffer(1, W), tile(C, W)
        fetch(d_g, s_g, bars, 0, i_b, i_head, at_q + start - lead, True)
    if WITH_V:
        s_v = buffer(2, W)
        fetch(d_v, s_v, bars, 0, i_b, i_kv, at_k + start, True)
    if CAUSAL:
        s_c, s_cc, s_cs = buffer(1, W), tile(C, W), tile(C, W)
        s_s = gl.allocate_shared_memory(BF16, [1, C, C], TILE)
        fetch(d_c, s_c, bars, 0, i_b, h_c, at_c + start - lead_c, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * step, i % 2
        row, row_q, row_c = chunk - lead_x, chunk - lead, chunk - lead_c
        mbarrier.wait(bars.index(0), i & 1)
        if CAUSAL:
            if REVERSE:
                keep = kept(p_mask, 0, -row_c, len_q - row_c, m_st, LINES, False)
            else:
                keep = kept(p_mask, at_c + row_c, 0, last - chunk, m_st, LINES, MASKED)
            b_c = mapped(rows(s_c, 0).load(LINES), keep, LINES, K, MAP, EDGED)
            cos, sin = phases(cos_c, sin_c, chunk, theta)
            b_cc, b_cs = turned(b_c, cos, sin)
            s_cc.index(at_0).store(b_cc)
            s_cs.index(at_0).store(b_cs)
        if WITH_V:
            s_values = rows(s_v, now)
            if EDGED and not REVERSE:
                s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        if WITH_G:
            b_dn = rows(s_g, 0).load(LINES).to(F32)
            if DIVIDED:
                b_dn = b_dn * (1 / clamped(row_numbers(p_z, rows_q, row_q, len_q, LINES, 1.0), eps))[:, None]
                s_e.index(at_0).store(in_two(row_numbers(p_extra, rows_q, row_q, len_q, SUMS1, 0.0), SUMS1))
            if EDGED and REVERSE:
                b_dn = gl.where(keep[:, None], b_dn, 0.0)
            s_dn.index(at_0).store(b_dn.to(BF16))
        fence_async_shared()
        tma.store_wait(0)
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(1), C * W * 2)
        tma.async_copy_global_to_shared(d_x, [i_b, h_x, at_x + row, 0], bars.index(1), s_x.index(0))
        mbarrier.expect(bars.index(0), BYTES, pred=more)
        if WITH_G:
            fetch(d_g, s_g, bars, 0, i_b, i_head, at_q + row_q + step, more)
        if WITH_V:
            tma.async_copy_global_to_shared(
                d_v, [i_b, i_kv, at_k + chunk + step, 0], bars.index(0), s_v.index(1 - now), pred=more
            )  # fmt: skip
        if CAUSAL:
            fetch(d_c, s_c, bars, 0, i_b, h_c, at_c + row_c + step, more)
        if REVERSE:
            s_left, s_ones = s_values, s_1.index(at_0)
        else:
            s_left, s_ones = s_dn.index(at_0), s_e.index(at_0)
        if CAUSAL:
            none = gl.zeros([C, C], F32, SCORES)
            if REVERSE:
                s_right, s_other = s_dn.index(at_0), s_e.index(at_0)
            else:
                s_right, s_other = s_values, s_1.index(at_0)
            a = warpgroup_mma(s_left, s_right.permute((1, 0)), none, use_acc=False, is_async=True)
            if DIVIDED:
                a = warpgroup_mma(s_ones, s_other.permute((1, 0)), a, is_async=True)
        if CAUSAL:
            hc = warpgroup_mma(s_cc.index(at_0).permute((1, 0)), s_right, b_hc, is_async=True)
            hs = warpgroup_mma(s_cs.index(at_0).permute((1, 0)), s_right, b_hs, is_async=True)
            if DIVIDED:
                nc = warpgroup_mma(s_cc.index(at_0).permute((1, 0)), s_other, b_nc, is_async=True)
                ns = warpgroup_mma(s_cs.index(at_0).permute((1, 0)), s_other, b_ns, is_async=True)
            b_s = warpgroup_mma_wait(2 + 2 * DIVIDED, [a])
            if REVERSE:
                b_s = gl.where(o_s[None, :] >= o_t[:, None], b_s, 0.0)
            else:
                b_s = gl.where(o_t[:, None] >= o_s[None, :], b_s, 0.0)
            s_s.index(at_0).store(b_s.to(BF16))
            fence_async_shared()
            barrier()
        # only now: their sums and the scores together would not fit the registers
        xc = warpgroup_mma(s_left, s_hc.index(at_0).permute((1, 0)), nothing(), use_acc=False, is_async=True)
        xs = warpgroup_mma(s_left, s_hs.index(at_0).permute((1, 0)), nothing(), use_acc=False, is_async=True)
        if NORMED:
            xc = warpgroup_mma(s_ones, s_nc.index(at_0).permute((1, 0)), xc, is_async=True)
            xs = warpgroup_mma(s_ones, s_ns.index(at_0).permute((1, 0)), xs, is_async=True)
        if CAUSAL:
            xc = warpgroup_mma(s_s.index(at_0), s_cc.index(at_0), xc, is_async=True)
            xs = warpgroup_mma(s_s.index(at_0), s_cs.index(at_0), xs, is_async=True)
            b_hc, b_hs = warpgroup_mma_wait(4 + 2 * NORMED, [hc, hs])
            if DIVIDED:
                b_nc, b_ns = warpgroup_mma_wait(4 + 2 * NORMED, [nc, ns])
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        barrier()  # no product reads the tiles any more
        if CAUSAL:
            s_hc.index(at_0).store(b_hc.to(BF16))
            s_hs.index(at_0).store(b_hs.to(BF16))
            if DIVIDED:
                s_nc.index(at_0).store(b_nc.to(BF16))
                s_ns.index(at_0).store(b_ns.to(BF16))
        cos, sin = phases(cos_x, sin_x, chunk, theta)
        mbarrier.wait(bars.index(1), i & 1)
        b_dx = b_xc * cos + b_xs * sin
        if MAP != "identity":
            b_dx = feature_map_gradient(b_dx, rows(s_x, 0).load(SUMS).to(F32), MAP)
        if REVERSE and MASKED:
            keep_out = kept(p_mask, at_x + row, 0, last - chunk, m_st, SUMS, True)
            b_dx = gl.where(keep_out[:, None], b_dx, 0.0)
        rows(s_x, 0).store(b_dx.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_x.index(0), d_dx, p_dx, x_sb, x_sh, x_st, i_b, i_head, at_x + row, -row, last - lead_x - row, LINES, K,
            BY_HAND,
        )  # fmt: skip
    if STATE_OUT:  # noqa: SIM102
        if first == 0:
            store_state(
                b_hc, b_hs, b_nc * ONES, b_ns * ONES, p_h_out, i_seq * heads + i_head, W, SUMS, SUMS1, K, V, NORMED
            )  # fmt: skip
    tma.store_wait(0)
