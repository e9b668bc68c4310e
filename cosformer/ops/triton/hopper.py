"""Forward and backward on Hopper chips: heads up to 64 in hopper_kernels.py; up to 128 in hopper_wide_walk.py where it
is causal, in hopper_wide_kernels.py where not."""

import torch
from torch import Tensor

from cosformer.ops.features import empty_like_rows
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Into, Problem, Results
from cosformer.ops.triton import hopper_kernels as narrow
from cosformer.ops.triton import hopper_wide_kernels as wide
from cosformer.ops.triton import hopper_wide_walk as walk
from cosformer.ops.triton.generic import rows_of_gradients
from cosformer.ops.triton.hopper_call import Address, Call, Unusable, eighths, takes

__all__ = ["Unusable", "backward", "forward", "takes"]


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    call = Call(q, k, v, key_mask, sequences, problem)
    o = empty_like_rows(q, v.shape[3])
    z = call.nothing.new_empty(q.shape[:3] if problem.normalize else (0,))
    normed = problem.normalize or problem.return_state
    states, total = call.states_of_keys(call.joined(state, norm, -1), normed)
    walk_out = problem.return_state and total is None
    if walk_out:
        total = call.empty_states(len(sequences), call.heads_k)
    given, kept = call.nothing if states is None else states, total if walk_out else call.nothing
    cut = call.queries
    place, sizes = call.place(cut), call.sizes(cut, call.heads_q)
    both = {
        "GROUP": call.heads_q // call.heads_k, "BY_HAND": call.by_hand, "DIVIDED": problem.normalize,
        "MASKED": key_mask is not None,
    }  # fmt: skip
    if call.wide and not problem.causal:
        call.run(
            wide.values_kernel, cut.slots * call.heads_q, q, o, Address(o), z, call.mask, given, *place, *eighths(o),
            *sizes, REVERSE=False, **both,
        )  # fmt: skip
    else:
        call.run(
            walk.values_walk if call.wide else narrow.forward_kernel, cut.slots * call.heads_q, q, k, v, o, Address(o),
            z, call.mask, given, kept, *place, *eighths(o), *sizes, NORMED=normed, STATE_IN=states is not None,
            STATE_OUT=walk_out, **both,
        )  # fmt: skip
    if not problem.return_state or total is None:
        return Results(o, z, z.new_empty(0), z.new_empty(0))
    return Results(o, z, *call.parted(total, call.last_key()))


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
    into: Into = None,
) -> Gradients:  # fmt: skip
    """Query heads that share a key head each give their own dk and dv, added up at the end."""
    into = into if into is not None and takes(*into) else None
    call = Call(q, k, v, key_mask, sequences, problem)
    divided, causal, heads, group = problem.normalize, problem.causal, call.heads_q, call.heads_q // call.heads_k
    both = {"GROUP": group, "MASKED": key_mask is not None}
    dq, extra = into[0] if into else empty_like_rows(q, call.kw), torch.empty_like(z)
    states, _ = call.states_of_keys(call.joined(state, norm, -1), divided)
    cut = call.queries
    place, sizes = call.place(cut), call.sizes(cut, heads)
    given = call.nothing if states is None else states
    if call.wide and divided:
        rows_of_gradients(do, o, z, torch.empty_like(z), extra, problem.eps)
    if call.wide and not causal:
        call.run(
            wide.features_kernel, cut.slots * heads, q, do, dq, Address(dq), z, extra, call.mask, given, *place,
            *eighths(dq), *sizes, DIVIDED=divided, NORMED=divided, BY_HAND=call.by_hand, REVERSE=False, **both,
        )  # fmt: skip
    else:
        kernel, tensors = narrow.backward_q_kernel, (q, k, v, o, do)
        if call.wide:
            kernel, tensors = walk.features_walk, (q, k, v, do)
        call.run(
            kernel, cut.slots * heads, *tensors, dq, Address(dq), z, extra, call.mask, given, *place, *eighths(dq),
            *sizes, BY_HAND=call.by_hand, NORMED=divided, STATE_IN=states is not None, **both,
        )  # fmt: skip
    del states, given
    init, total = None if dstate is None else call.joined(dstate, dnorm, call.last_key()), None
    if init is not None and group > 1:  # counted once
        init = torch.stack([init, *[torch.zeros_like(init)] * (group - 1)], 2).flatten(1, 2)
    if causal and call.queries.whole:
        states = init
    else:
        states = call.sum_queries(do, z, extra)
        total = call.scan(states, call.queries, init, reverse=True)
        states = states if causal else total
    walk_out = state is not None and total is None
    normed = divided or dnorm is not None
    if walk_out:
        total = call.empty_states(len(sequences), heads)
        if not normed:  # the column of ones has no gradient, and no kernel writes one
            total.zero_()
    if into and group == 1:
        dk, dv = into[1:]
    else:
        dk, dv = empty_like_rows(k, call.kw, heads), empty_like_rows(v, call.vw, heads)
    cut = call.keys
    place, sizes = call.place(cut), call.sizes(cut, heads)
    given, kept = call.nothing if states is None else states, total if walk_out else call.nothing
    if call.wide and not causal:
        own = {"BY_HAND": sequences.packed, "REVERSE": True, "DIVIDED": False}
        call.run(
            wide.features_kernel, cut.slots * heads, k, v, dk, Address(dk), z, extra, call.mask, given, *place,
            *eighths(dk), *sizes, NORMED=normed, **both, **own,
        )  # fmt: skip
        call.run(
            wide.values_kernel, cut.slots * heads, k, dv, Address(dv), z, call.mask, given, *place, *eighths(dv),
            *sizes, **both, **own,
        )  # fmt: skip
    else:
        call.run(
            walk.keys_walk if call.wide else narrow.backward_kv_kernel, cut.slots * heads, q, k, v, do, dk, dv,
            Address(dk), Address(dv), z, extra, call.mask, given, kept, *place, *eighths(dk)[1:], *eighths(dv)[1:],
            *sizes, DIVIDED=divided, NORMED=normed, STATE_IN=states is not None, STATE_OUT=walk_out, **both,
        )  # fmt: skip
    if group > 1:
        dk, dv = (x.unflatten(1, (-1, group)).sum(2, dtype=torch.float32).to(x.dtype) for x in (dk, dv))
    if state is None or total is None:
        return Gradients(dq, dk, dv, None, None)
    return Gradients(dq, dk, dv, *call.parted(total.unflatten(1, (-1, group)).sum(2), -1))
