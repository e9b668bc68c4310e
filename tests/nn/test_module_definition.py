"""CosformerAttention equals the definition: outputs, gradients, weights; whole or in pieces."""

import copy
from typing import Any

import pytest
import torch
from nn.module_checks import E, H, M, assert_grads_equal, composed, draw, make, projections
from torch import Tensor
from torch.testing import assert_close

from cosformer import AttentionState, attention_weights


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "kdim": 18, "vdim": 10},
        {"bias": False, "normalize": False}, {"feature_map": "silu", "eps": 5.0},
    ],
    ids=["plain", "grouped", "one-kv-head-kdim-vdim", "bare-unnormalised", "silu-large-eps"],
)  # fmt: skip
def test_output_and_gradients_match_the_definition(options: dict[str, Any], causal: bool) -> None:
    module = make(**options)
    twin = copy.deepcopy(module)
    query, key, value = draw(2, 7, E), draw(2, 11, module.kdim), draw(2, 11, module.vdim)
    ignored = torch.zeros(2, 11, dtype=torch.bool)
    ignored[1, 2:5] = True
    ours = [x.clone().requires_grad_() for x in (query, key, value)]
    theirs = [x.clone().requires_grad_() for x in (query, key, value)]
    output, _ = module(*ours, key_padding_mask=ignored, is_causal=causal)
    expected = composed(twin, *theirs, causal=causal, attn_mask=~ignored[:, None, None])
    assert_close(output, expected)
    by = torch.randn_like(output)
    (output * by).sum().backward()
    (expected * by).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert_close(x.grad, y.grad)
    assert_grads_equal(module, twin)


def test_self_attention_gradients_match_the_definition() -> None:
    module, x = make(num_kv_heads=2), draw(2, 9, E, grad=True)
    twin, y = copy.deepcopy(module), x.detach().clone().requires_grad_()
    module(x)[0].square().sum().backward()
    composed(twin, y, y, y).square().sum().backward()
    assert_close(x.grad, y.grad)
    assert_grads_equal(module, twin)


def test_grouped_heads_equal_repeated_ones() -> None:
    few, x = make(num_kv_heads=2), draw(2, 9, E)
    full = make()
    width, kv = E // H, 2 * (E // H)
    assert few.in_proj_weight is not None
    assert few.in_proj_weight.shape == (E + 2 * kv, E)

    def repeated(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (2, width)).repeat_interleave(2, 0).flatten(0, 1)

    tensors = few.state_dict()
    for name in ("in_proj_weight", "in_proj_bias"):
        q, k, v = tensors[name].split([E, kv, kv])
        tensors[name] = torch.cat([q, repeated(k), repeated(v)])
    full.load_state_dict(tensors)
    assert_close(few(x)[0], full(x)[0])


def test_batch_second_equals_batch_first_and_unbatched() -> None:
    first = make(causal=True)
    second = make(causal=True, batch_first=False)
    second.load_state_dict(first.state_dict())
    x, memory = draw(3, 8, E), draw(3, 8, E)
    expected, weights = first(x, memory, need_weights=True)
    output, same_weights = second(x.transpose(0, 1), memory.transpose(0, 1), need_weights=True)
    assert_close(output.transpose(0, 1), expected)
    assert_close(same_weights, weights)
    for module in (first, second):
        output, row_weights = module(x[1], memory[1], need_weights=True)
        assert_close(output, expected[1])
        assert_close(row_weights, weights[1])


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"feature_map": "silu", "eps": 5.0}], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_weights_are_those_of_the_definition_and_make_the_output(causal: bool, options: dict[str, Any]) -> None:
    module, query, key = make(num_kv_heads=2, **options), draw(2, 6, E), draw(2, 9, E)
    ignored = torch.zeros(2, 9, dtype=torch.bool)
    ignored[0, 5:7] = True
    call: dict[str, Any] = {"need_weights": True, "is_causal": causal, "key_padding_mask": ignored}
    output, weights = module(query, key, average_attn_weights=False, **call)
    q, k, v = projections(module, query, key, key)
    assert weights.shape == (2, H, 6, 9)
    expected = attention_weights(q, k, causal=causal, horizon=M, attn_mask=~ignored[:, None, None], **options)
    assert_close(weights, expected)
    attended = weights @ v.repeat_interleave(2, 1)  # [B, H, T, V]
    assert_close(module.out_proj(attended.transpose(1, 2).flatten(2)), output)
    same_output, average = module(query, key, **call)
    assert_close(same_output, output)
    assert_close(average, weights.mean(1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
def test_causal_masks_of_every_kind_mean_is_causal(dtype: torch.dtype) -> None:
    module, x = make(), draw(2, 7, E)
    expected, _ = module(x, is_causal=True)
    assert_close(expected, composed(module, x, x, x, causal=True))
    square = torch.ones(7, 7, dtype=torch.bool).triu(1)
    late = torch.ones(3, 7, dtype=torch.bool).triu(5)  # the last 3 of 7 positions
    if dtype != torch.bool:
        square, late = (torch.zeros(m.shape, dtype=dtype).masked_fill(m, float("-inf")) for m in (square, late))
    assert_close(module(x, attn_mask=square)[0], expected)
    assert_close(module(x, attn_mask=square, is_causal=True)[0], expected)
    assert_close(module(x, attn_mask=square.expand(2 * H, 7, 7))[0], expected)
    assert_close(module(x[:, 4:], x, attn_mask=late)[0], expected[:, 4:])


def test_nothing_to_attend_gives_the_bias_of_the_output() -> None:
    module, x = make(), draw(2, 5, E, grad=True)
    output, _ = module(x, key_padding_mask=torch.ones(2, 5, dtype=torch.bool))
    assert_close(output, module.out_proj.bias.expand_as(output))
    output.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "batch_second"])
def test_pieces_equal_one_pass_with_gradients(batch_first: bool) -> None:
    module = make(causal=True, num_kv_heads=2, batch_first=batch_first)
    twin, time = copy.deepcopy(module), 1 if batch_first else 0
    x = draw(2, 30, E) if batch_first else draw(30, 2, E)
    ignored = torch.zeros(2, 30, dtype=torch.bool)
    ignored[0, 10:16] = True
    whole, after_whole = module(x, key_padding_mask=ignored, return_state=True)
    outputs, state, at = [], None, 0
    for n in (1, 12, 17):
        piece = x.narrow(time, at, n)
        output, state = twin(piece, key_padding_mask=ignored[:, at : at + n], state=state, return_state=True)
        outputs.append(output)
        at += n
    assert at == 30
    assert isinstance(state, AttentionState)
    pieces = torch.cat(outputs, time)
    assert_close(pieces, whole)
    assert_close(state.sums, after_whole.sums)
    assert_close(state.norm, after_whole.norm)
    assert state.length == after_whole.length == 30
    assert state.horizon == M
    whole.square().sum().backward()
    pieces.square().sum().backward()
    assert_grads_equal(twin, module)


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"feature_map": "silu", "eps": 5.0}], ids=str)
@pytest.mark.parametrize("layout", ["batch_first", "batch_second", "unbatched"])
def test_steps_equal_one_pass(layout: str, options: dict[str, Any]) -> None:
    module = make(causal=True, num_kv_heads=2, batch_first=layout == "batch_first", **options).eval()
    x = {"batch_first": draw(2, 6, E), "batch_second": draw(6, 2, E), "unbatched": draw(6, E)}[layout]
    time = 1 if layout == "batch_first" else 0
    state = module.initial_state(1 if layout == "unbatched" else 2)
    with torch.no_grad():
        steps = torch.cat([module.step(x.narrow(time, t, 1), state) for t in range(6)], time)
        whole, after = module(x, return_state=True)
    assert_close(steps, whole)
    assert_close(state.sums, after.sums)
    assert state.length == 6


def test_step_refuses_to_lose_gradients() -> None:
    module = make(causal=True)
    with pytest.raises(RuntimeError, match=r"torch\.no_grad"):
        module.step(draw(2, 1, E), module.initial_state(2))
