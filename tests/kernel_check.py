"""Backend "triton" on a case of tests/definition.py: outputs and all gradients no worse than the quadratic form's."""

from dataclasses import replace

import torch
from comparing import assert_as_good_as_eager
from definition import Case, actual, eager, expected, sizes, with_gradients

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(case: Case):
    def run(q, k, v):
        mask = case.key_mask()
        if mask is None:
            return actual(case, *(x.to(DEVICE) for x in (q, k, v)), "triton").cpu()
        moved = replace(case)
        object.__setattr__(moved, "key_mask", lambda: mask.to(DEVICE))
        return actual(moved, *(x.to(DEVICE) for x in (q, k, v)), "triton").cpu()

    return run


def check(case: Case) -> None:
    got = with_gradients(on_device(case), case)
    twin = replace(case, causal=True) if case.past else case
    same = with_gradients(lambda q, k, v: eager(twin, q, k, v), twin)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    yardstick = exact if twin is case else with_gradients(lambda q, k, v: expected(twin, q, k, v), twin)
    for name, size in sizes(case).items():
        factor = 2 if name == "o" else 3
        # a past of full attention has no quadratic form: its causal twin sets the size of the rounding
        eager_like = exact[name] + (same[name].double() - yardstick[name])
        assert_as_good_as_eager(
            got[name], eager_like.to(got[name].dtype), exact[name], size=size, factor=factor, label=name
        )
