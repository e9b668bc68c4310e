"""CosformerAttention: what it refuses, and torch around it (saving, autocast, compiling)."""

import copy
import io
from typing import Any

import pytest
import torch
from nn.module_checks import E, M, assert_grads_equal, draw, make, projections, softmax_attention
from torch import Tensor, nn
from torch.testing import assert_close

import cosformer.nn.attention
from cosformer import attention_weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv=True: .*no position"),
        ({"add_zero_attn": True}, "add_zero_attn=True: .*no position"),
        ({"num_heads": 5}, "embed_dim=24 with num_heads=5"),
        ({"num_kv_heads": 3}, "num_heads=4 with num_kv_heads=3"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"embed_dim": -4}, "embed_dim=-4"),
        ({"num_kv_heads": 0}, "num_kv_heads=0"),
        ({"kdim": 0}, "kdim=0"),
        ({"vdim": 0}, "vdim=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"horizon": 0}, "horizon=0"),
        ({"feature_map": "elu"}, "feature_map='elu' is unknown"),
        ({"backend": "fast"}, "backend='fast' is unknown"),
        ({"eps": 0.0}, "eps=0.0"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_constructor_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(*shape, **options)


ANTICAUSAL = torch.ones(6, 6, dtype=torch.bool).tril(-1)
SOFT = torch.zeros(6, 6, dtype=torch.float64).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -1e9)


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        ([(6,)], {}, ValueError, "query has 1 dimensions"),
        ([(2, 2, 6, E)], {}, ValueError, "query has 4 dimensions"),
        ([(2, 6, E), (6, E)], {}, ValueError, "key has 2 dimensions"),
        ([(2, 6, 10)], {}, ValueError, "query has width 10"),
        ([(2, 6, E), (2, 6, 10)], {}, ValueError, "key has width 10"),
        ([(2, 6, E), (2, 6, E), (2, 6, 10)], {}, ValueError, "value has width 10"),
        ([(2, 6, E), (3, 6, E)], {}, ValueError, "batch sizes 2, 3, 3"),
        ([(2, 6, E), (2, 6, E), (2, 5, E)], {}, ValueError, "S=6 positions but v has 5"),
        ([(2, 7, E), (2, 6, E)], {"is_causal": True}, ValueError, "T=7 > S=6"),
        ([(2, M + 1, E)], {}, ValueError, "horizon=64 but .* 65 positions"),
        ([(2, 6, E)], {"key_padding_mask": zeros(6, 2, dtype=torch.bool)}, ValueError, r"\[B, S\] = \[2, 6\]"),
        ([(6, E)], {"key_padding_mask": zeros(1, 6, dtype=torch.bool)}, ValueError, r"\[S\] without a batch"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6, dtype=torch.int64)}, TypeError, "it must be bool"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6) - 1e9}, ValueError, "other than 0 and -inf"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6) + float("nan")}, ValueError, "other than 0 and -inf"),
        ([(2, 6, E)], {"attn_mask": ANTICAUSAL}, ValueError, r"linear time.*cosformer\.attention_reference"),
        ([(2, 6, E)], {"attn_mask": ANTICAUSAL, "is_causal": True}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": SOFT}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": zeros(6, 6)}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": zeros(6, 6, dtype=torch.int64)}, ValueError, r"torch\.int64"),
        ([(2, 3, E), (2, 6, E)], {"attn_mask": ANTICAUSAL.T}, ValueError, r"shape \(6, 6\) for .* T=3, S=6"),
        ([(2, 3, E), (2, 6, E)], {"attn_mask": ANTICAUSAL.T[:3]}, ValueError, "linear time"),  # top left
    ],
)  # fmt: skip
def test_forward_refuses(
    shapes: list[tuple[int, ...]], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    inputs = [draw(*shape) for shape in shapes]
    with pytest.raises(error, match=message):
        make()(*inputs, **options)


def test_states_refuse_what_they_cannot_do() -> None:
    module, x = make(causal=True), draw(2, 6, E)
    _, state = module(x, return_state=True)
    with pytest.raises(ValueError, match="not causal"):
        make()(x, state=state)
    with pytest.raises(ValueError, match="need_weights"):
        module(x, state=state, need_weights=True)
    with pytest.raises(ValueError, match="need_weights"):
        module(x, return_state=True, need_weights=True)
    with pytest.raises(ValueError, match="horizon=64 but the state was made with horizon=80"):
        module(x, state=make(horizon=80).initial_state(2))
    with pytest.raises(ValueError, match="59 positions after 6 held"):
        module(draw(2, 59, E), state=state)
    unbounded = make(causal=True, horizon=None)
    with pytest.raises(ValueError, match="needs a horizon"):
        unbounded(x, return_state=True)
    with pytest.raises(ValueError, match="needs a horizon"):
        unbounded.initial_state(2)


@pytest.mark.parametrize("options", [{"num_kv_heads": 2}, {"kdim": 18, "vdim": 10}, {"bias": False}])
def test_state_dict_round_trip(options: dict[str, Any]) -> None:
    module, query = make(**options), draw(2, 6, E)
    key, value = draw(2, 6, module.kdim), draw(2, 6, module.vdim)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = make(**options)
    assert not torch.allclose(other(query, key, value)[0], module(query, key, value)[0])
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(query, key, value)[0], module(query, key, value)[0])


def test_repr_names_what_was_chosen() -> None:
    assert "24, 4, num_kv_heads=2, causal=True, horizon=64, feature_map='elu1'" in repr(
        make(num_kv_heads=2, causal=True, feature_map="elu1")
    )


def test_autocast_gives_bfloat16_near_float32() -> None:
    module, x = make(dtype=torch.float32, causal=True, bias=False), torch.randn(2, 40, E)
    exact, exact_weights = module(x, need_weights=True)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = module(x, need_weights=True)
        q, k, _ = projections(module, x, x, x)
    output.float().sum().backward()
    assert output.dtype == weights.dtype == torch.bfloat16
    in_float32 = attention_weights(q.bfloat16(), k.bfloat16(), causal=True, horizon=M).mean(1)
    assert torch.equal(weights, in_float32.bfloat16())  # autocast rounds the projections, not the sums
    for low, high in ((output, exact), (weights, exact_weights)):
        # every product is rounded to 8 bits on its way: 2^-6 of the largest value
        assert_close(low.float(), high, rtol=0, atol=high.abs().max().item() / 64)
    assert module.in_proj_weight is not None
    assert module.in_proj_weight.grad is not None
    assert module.in_proj_weight.grad.isfinite().all()


def test_backend_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def note(q: Tensor, *_: object, backend: str, **__: object) -> Tensor:
        chosen.append(backend)
        return q

    monkeypatch.setattr(cosformer.nn.attention, "cosformer_attention", note)
    monkeypatch.setattr(cosformer.nn.attention, "attention_step", note)
    module = make(backend="torch")
    module(draw(2, 6, E))
    module.step(draw(2, 1, E), module.initial_state(2))
    assert chosen == ["torch", "torch"]


def test_projections_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def note(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.extend((q, k, v))
        return softmax_attention(q, k, v, **options)

    monkeypatch.setattr(cosformer.nn.attention, "cosformer_attention", note)
    for batch_first in (True, False):
        seen.clear()
        make(batch_first=batch_first)(draw(2, 6, E))
        assert len({x.untyped_storage().data_ptr() for x in seen}) == 1  # one product, three views of it
        assert seen[0].untyped_storage().nbytes() == 2 * 6 * 3 * E * 8


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch, of itself
def test_compiles_into_one_graph_that_still_refuses_masks() -> None:
    module, x = make(num_kv_heads=2), draw(2, 6, E)
    twin = copy.deepcopy(module)
    compiled = torch.compile(module, fullgraph=True)
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    padding = torch.zeros(2, 6, dtype=torch.float64)
    padding[0, 4:] = float("-inf")
    output, _ = compiled(x, key_padding_mask=padding, attn_mask=causal)
    expected, _ = twin(x, key_padding_mask=padding, attn_mask=causal)
    assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert_grads_equal(module, twin)
    with pytest.raises(RuntimeError, match="other than 0 and -inf"):
        compiled(x, key_padding_mask=padding.clamp(min=-1e9), attn_mask=causal)
    with pytest.raises(RuntimeError, match="linear time"):
        compiled(x, key_padding_mask=padding, attn_mask=causal.T.contiguous())
