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

from cosformer.ops.triton.hopper_parts import SIZES, C, barriers, buffer, tile, where_is
from cosformer.ops.triton.hopper_wide_results import walk_features, walk_keys, walk_values
from cosformer.ops.triton.hopper_wide_state import HALF, W, lying, walk_state

RESULT_WARPS, RESULT_REGISTERS = gl.constexpr(4), gl.constexpr(168)


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
