"""residual_in_fp32=False: bf16 from block to block under autocast to bf16, and nowhere else."""

from typing import Any

import pytest
import torch
from small_models import VOCAB, padded, small_config, small_model, tokens
from torch import Tensor

from cosformer.models import CosformerForCausalLM, CosformerForConditionalGeneration, CosformerForSequenceClassification

KINDS = {
    "cosformer": (CosformerForCausalLM, {}),
    "softmax, rotary, swiglu": (CosformerForCausalLM, {"attention": "softmax", "positions": "rotary", "mlp": "swiglu"}),
    "layernorm": (CosformerForCausalLM, {"norm": "layernorm"}),
    "encoder": (CosformerForSequenceClassification, {"causal": False}),
    "encoder-decoder": (CosformerForConditionalGeneration, {"is_encoder_decoder": True, "decoder_start_token_id": 1}),
}
BLOCKS = 2


def learned(model: Any, dtype: torch.dtype | None) -> tuple[Tensor, Tensor, Any]:
    """Logits, all gradients as one vector, and the whole output, under autocast to `dtype` (None: without)."""
    ids, mask = padded([tokens(n, seed=n) for n in (23, 9)], "right")
    labels = torch.tensor([0, 1]) if isinstance(model, CosformerForSequenceClassification) else ids
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        out = model(ids, attention_mask=mask, labels=labels, output_hidden_states=True)
    out.loss.backward()
    return out.logits.detach().double(), torch.cat([p.grad.flatten().double() for p in model.parameters()]), out


def off(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def states(out: Any) -> tuple[Tensor, ...]:
    """What went into each block, and what came out of the last norm."""
    return out.hidden_states if hasattr(out, "hidden_states") else out.decoder_hidden_states


@pytest.mark.parametrize("name", KINDS)
def test_little_is_lost(name: str) -> None:
    """No more than twice what autocast loses by itself, and a rounding to bf16 (2^-9) for each sum of the residual,
    which add up like a random walk; of gradients three times."""
    cls, options = KINDS[name]
    wide, narrow = (small_model(cls, residual_in_fp32=kept, **options) for kept in (True, False))
    exact = learned(wide.double(), None)
    kept, lowered = learned(wide.float(), torch.bfloat16), learned(narrow, torch.bfloat16)
    sums = (3 if name == "encoder-decoder" else 2) * BLOCKS * (2 if name == "encoder-decoder" else 1) + 1
    roundings = 2**-9 * sums**0.5
    for i, factor in ((0, 2), (1, 3)):
        assert off(lowered[i], exact[i]) <= factor * off(kept[i], exact[i]) + factor * roundings
    assert {x.dtype for x in states(kept[2])} == {torch.float32}
    assert {x.dtype for x in states(lowered[2])[:-1]} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_elsewhere_nothing_changes(dtype: torch.dtype | None) -> None:
    one, other = (learned(small_model(CosformerForCausalLM, residual_in_fp32=kept), dtype) for kept in (True, False))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_norms_are_computed_in_fp32() -> None:
    seen: set[torch.dtype] = set()
    model = small_model(CosformerForCausalLM, residual_in_fp32=False)
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.register_forward_pre_hook(lambda _, args: seen.add(args[0].dtype))
    learned(model, torch.bfloat16)
    assert seen == {torch.float32}


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_float64_stays(norm: str) -> None:
    """As in products and attention under autocast."""
    models = (small_model(CosformerForCausalLM, residual_in_fp32=kept, norm=norm).double() for kept in (True, False))
    one, other = (learned(model, torch.bfloat16) for model in models)
    assert {x.dtype for x in states(other[2])} == {torch.float64}
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_shapes_alone_can_be_asked_on_the_meta_device() -> None:
    model = small_model(CosformerForCausalLM, residual_in_fp32=False).to("meta")
    assert model(tokens(2, 9).to("meta")).logits.shape == (2, 9, VOCAB)


@pytest.mark.parametrize("norm", [torch.nn.Identity(), torch.nn.RMSNorm(32, elementwise_affine=False)], ids=str)
@pytest.mark.parametrize("autocast", [True, False])
def test_norms_may_be_replaced_by_some_without_weights(norm: torch.nn.Module, autocast: bool) -> None:
    model = small_model(CosformerForCausalLM, residual_in_fp32=False)
    model.model.layers[1].mlp_norm = norm
    if not autocast:
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert model(tokens(2, 9)).logits.isfinite().all()


def test_post_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"residual_in_fp32=False with norm_first=False: .* use norm_first=True"):
        small_config(residual_in_fp32=False, norm_first=False)
