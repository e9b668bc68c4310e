"""A compiled step of training makes q, k and v by one product where attention takes them side by side."""

from types import MethodType
from typing import Any

import pytest
import torch
from small_models import padded, small_model, tokens
from torch import Tensor

from cosformer.models import KINDS, CosformerForCausalLM, CosformerForMaskedLM, CosformerKind
from cosformer.models.layout import Layout

LINEAR = ["cosformer", "linear", "cosformer_nocos"]


def batch() -> tuple[Tensor, Tensor, Tensor]:
    ids, mask = padded([tokens(n, seed=n) for n in (23, 9)], "left")
    return ids, mask, ids.masked_fill(mask == 0, -100)


def step(model: Any) -> list[Tensor]:
    """Loss and all gradients."""
    ids, mask, labels = batch()
    model.zero_grad()
    loss = model(ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def compiled(model: Any) -> tuple[list[Tensor], list[str]]:
    """The same of the compiled model, and what its graph calls."""
    torch._dynamo.reset()
    called: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    model.compile(backend=keep, fullgraph=True)
    found = step(model)
    model._compiled_call_impl = None
    return found, called


@pytest.mark.parametrize("more", [{}, {"num_key_value_heads": 4}, {"normalizer": "norm"}], ids=str)
@pytest.mark.parametrize("cls", [CosformerForCausalLM, CosformerForMaskedLM])
@pytest.mark.parametrize("attention", LINEAR)
def test_the_same_step(attention: str, cls: type, more: dict[str, Any]) -> None:
    model = small_model(cls, attention=attention, causal=cls is CosformerForCausalLM, **more).double().train()
    want = step(model)
    got, called = compiled(model)
    assert sum("attention_joined" in name for name in called) == model.config.num_hidden_layers
    assert "cosformer.attention" not in called
    for x, exact in zip(got, want, strict=True):
        torch.testing.assert_close(x, exact, rtol=1e-10, atol=1e-12)


OTHERS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "rotary": {"positions": "rotary"},
    "performer": {"attention": "performer"},
    "spe": {"attention": "linear", "attention_options": {"spe": "sine"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_where_they_are_wanted_apart(name: str) -> None:
    model = small_model(CosformerForCausalLM, **OTHERS[name]).train()
    assert not any("attention_joined" in call for call in compiled(model)[1])


class Doubled(CosformerKind):
    """cosFormer of twice the values."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Any) -> Tensor:
        return super().attend(q, k, 2 * v, layout, cache)


@pytest.mark.parametrize("how", ["class", "instance"])
def test_an_attend_of_ones_own_is_called(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "doubled", Doubled)
    model = small_model(CosformerForCausalLM, attention="doubled" if how == "class" else "linear").double().train()
    if how == "instance":
        for block in model.model.layers:
            kind = block.self_attn.kind
            kind.attend = lambda q, k, v, *more, attend=kind.attend: attend(q, k, 2 * v, *more)
    want = step(model)
    got, called = compiled(model)
    assert not any("attention_joined" in call for call in called)
    for x, exact in zip(got, want, strict=True):
        torch.testing.assert_close(x, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("where", ["forward of a layer", "attend of a kind"])
def test_what_is_replaced_after_compiling_is_called(where: str, bound: bool) -> None:
    torch._dynamo.reset()
    model = small_model(CosformerForCausalLM).double().train()
    ids, mask, labels = batch()

    def loss(call: Any) -> Tensor:
        return call(ids, attention_mask=mask, labels=labels).loss

    run = torch.compile(model, backend="eager")
    torch.testing.assert_close(loss(run), loss(model))
    attention = model.model.layers[1].self_attn
    one, name = (attention.v_proj, "forward") if where == "forward of a layer" else (attention.kind, "attend")
    before, plain = loss(model), getattr(one, name)

    def thrice(*given: Any) -> Tensor:
        return 3 * plain(*given)

    setattr(one, name, MethodType(lambda _, *given: thrice(*given), one) if bound else thrice)
    assert not torch.allclose(loss(model), before)
    torch.testing.assert_close(loss(run), loss(model))
    delattr(one, name)
    torch.testing.assert_close(loss(run), before)


def test_heads_are_those_of_the_layers() -> None:
    """Layers may have been cut to fewer heads than the config says."""
    model = small_model(CosformerForCausalLM, num_key_value_heads=4).double().train()
    attention = model.model.layers[0].self_attn
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.weight, layer.bias = (torch.nn.Parameter(x[:16].detach()) for x in (layer.weight, layer.bias))
        layer.out_features = 16
    attention.o_proj.weight = torch.nn.Parameter(attention.o_proj.weight[:, :16].detach())
    want = step(model)
    got, called = compiled(model)
    assert sum("attention_joined" in name for name in called) == 2
    for x, exact in zip(got, want, strict=True):
        torch.testing.assert_close(x, exact, rtol=1e-10, atol=1e-12)


def test_eager_and_without_gradients_they_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosformer.models import cosformer_kind

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("joined")

    monkeypatch.setattr(cosformer_kind, "joined_attention", refuse)
    model = small_model(CosformerForCausalLM)
    step(model)
    model.generate(tokens(1, 5), max_new_tokens=3, do_sample=False)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend="eager")(tokens(1, 5), use_cache=False)
