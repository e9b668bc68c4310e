"""Gradients of states as states: where the walk against time begins, and what its end says about the first state.

Seen from a position, the gradient of a state weighs earlier tokens just as a state weighs later ones: it turns the
other way (docs/method.md). Bidirectional attention needs no second direction, cosines being even.
"""

import torch
from torch import Tensor

from cosformer.ops.features import conjugate, turn
from cosformer.ops.packed import Sequences, by_sequence
from cosformer.ops.problem import Problem


def begin(
    dstate: Tensor | None, dnorm: Tensor | None, sequences: Sequences, problem: Problem
) -> tuple[Tensor | None, Tensor | None]:
    """The state (and norm) from which dk and dv are walked, given the gradient of the last state."""
    if dstate is None or dnorm is None:
        return None, None
    if problem.causal:
        return turn(conjugate(dstate), -1, problem.theta), turn(conjugate(dnorm), -1, problem.theta)
    steps = by_sequence(-n for n in sequences.k_lengths)
    return turn(dstate, steps, problem.theta), turn(dnorm, steps, problem.theta)


def end(last: Tensor, ahead: Tensor | int, sequences: Sequences, problem: Problem) -> tuple[Tensor, Tensor]:
    """The gradient of the first state and norm, from the state [N, H, 2, V+1, K] the walk for dk ended with.

    Causal: that state stands `ahead` positions after position 0.
    """
    if problem.causal:
        last = conjugate(turn(last, ahead + 1, problem.theta))
    else:
        last = turn(last, by_sequence(-n for n in sequences.q_lengths), problem.theta)
    return last[..., :-1, :].mT.contiguous(), last[..., -1, :].contiguous()


def transposed(sums: Tensor | None, norms: Tensor | None, with_norm: bool) -> Tensor | None:
    """[N, H, 2, V(+1), K]: values become the inner width, and the norm one more row."""
    if sums is None:
        return None
    return torch.cat([sums.mT, norms[..., None, :]], -2) if with_norm and norms is not None else sums.mT.contiguous()
