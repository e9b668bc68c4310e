"""Each defect found in the published module, absent here."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn.module_checks import E, M, assert_grads_equal, composed, draw, make
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from cosformer.nn import CosformerAttention


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_valid_outputs(side: str, causal: bool) -> None:
    module, x = make(causal=causal), draw(2, 9, E)
    junk = torch.full((2, 4, E), float("nan"), dtype=torch.float64)
    padded = torch.cat([x, junk] if side == "right" else [junk, x], 1)
    ignored = padded.isnan().any(-1)  # [B, S]
    valid = slice(0, 9) if side == "right" else slice(4, 13)
    assert_close(module(padded, key_padding_mask=ignored)[0][:, valid], module(x)[0])


def test_longer_sequence_keeps_the_outputs_of_its_prefix() -> None:
    module, x = make(causal=True, horizon=M), draw(1, 40, E)
    assert_close(module(x)[0][:, :23], module(x[:, :23])[0])
    module.horizon = None  # as published: the horizon follows the length
    assert (module(x)[0][:, :23] - module(x[:, :23])[0]).abs().max() > 1e-3


def test_fp16_rows_without_weight_are_zero_and_differentiable() -> None:
    module = make(dtype=torch.float16, bias=False)
    assert module.in_proj_weight is not None
    x = torch.rand(2, 10, E).half() + 0.5
    x[:, 3:6] *= -1  # with positive weights relu kills these queries and keys
    with torch.no_grad():
        module.in_proj_weight.abs_()
    x.requires_grad_()
    output, _ = module(x)
    output.float().square().sum().backward()
    assert output.dtype == torch.float16
    assert (output[:, 3:6] == 0).all()
    rows = [0, 1, 2, 6, 7, 8, 9]
    exact = copy.deepcopy(module).double()
    assert_close(output[:, rows].double(), exact(x.double())[0][:, rows], atol=4e-3, rtol=4e-3)
    assert output[:, rows].abs().min() > 0
    for grad in (x.grad, module.in_proj_weight.grad, module.out_proj.weight.grad):
        assert grad is not None
        assert grad.isfinite().all()


def test_elu_runs_forward_and_backward() -> None:
    module, x = make(feature_map="elu1"), draw(2, 11, E)
    twin = copy.deepcopy(module)
    output, expected = module(x)[0], composed(twin, x, x, x)
    assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert_grads_equal(module, twin)


def test_vdim_is_honoured_without_kdim() -> None:
    module, query, key, value = make(vdim=10), draw(2, 7, E), draw(2, 5, E), draw(2, 5, 10)
    assert module.v_proj_weight is not None
    assert module.v_proj_weight.shape == (E, 10)
    assert_close(module(query, key, value)[0], composed(module, query, key, value))


def test_omitted_value_takes_the_key() -> None:
    module, query, key = make(), draw(2, 6, E), draw(2, 6, E)
    assert_close(module(query, key)[0], module(query, key, key)[0])
    assert not torch.allclose(module(query, key)[0], module(query, key, query)[0])


def test_dropout_is_applied_in_training_only() -> None:
    module, x = make(dropout=0.25, bias=False), draw(4, 50, E)
    with torch.no_grad():
        module.out_proj.weight.copy_(torch.eye(E))  # shows what was dropped
    whole = module.eval()(x)[0]
    assert_close(whole, composed(module, x, x, x))
    some = module.train()(x)[0]
    dropped = (some == 0) & (whole != 0)
    assert 0.22 < dropped.double().mean() < 0.28
    assert_close(some, torch.where(dropped, 0, whole / 0.75))


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that `call` holds at once beyond what was there, by the record of the CPU allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    results: Any = record.profiler
    events = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == "[memory]"]
    assert events
    held = peak = 0
    for _, nbytes in sorted(events):
        held += nbytes
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_causal_training_memory_is_linear_in_length(backend: str) -> None:
    e, h = 64, 2
    module = CosformerAttention(e, h, causal=True, batch_first=True, backend=backend)

    def train(t: int) -> int:
        x = torch.randn(1, t, e)
        return peak_bytes(lambda: module(x)[0].sum().backward())

    train(64)  # what is made once: gradients of parameters, the compiled kernel
    for t in (2_048, 16_384):
        assert train(t) < 16 * t * e * 4  # the published tensor alone: T · H · 2K · V = 64 · T · E
    assert module.in_proj_weight is not None
    assert module.in_proj_weight.grad is not None
    assert module.in_proj_weight.grad.isfinite().all()


def test_memory_gauge_sees_the_published_tensor() -> None:
    t, e, h = 512, 64, 2
    phi, v = torch.rand(1, h, t, 2 * e // h), torch.rand(1, h, t, e // h)
    peak = peak_bytes(lambda: torch.einsum("bhtf,bhtv->bhtfv", phi, v).cumsum(2))
    assert peak > 64 * t * e * 4


def test_causal_with_fewer_queries_than_keys_takes_the_last_positions() -> None:
    module, x = make(causal=True), draw(2, 12, E)
    assert_close(module(x[:, 7:], x)[0], module(x)[0][:, 7:])
