"""What every rival owes a model, whatever it computes. Models in float64: what differs is more than rounding."""

from typing import Any

import torch
from small_models import padded, small_model, tokens
from torch import Tensor

from cosformer.models import KINDS, CosformerForCausalLM, CosformerForConditionalGeneration, CosformerForMaskedLM
from cosformer.models.kinds import find_others

find_others()
TIGHT = 1e-9
"""float64 through two blocks: thousands of roundings of 1e-16 at sizes up to 100 stay well below, a leak well above."""


OPTIONS: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosformer_nocos": {},
    "performer": {"features": 12},
    "rfa": {"features": 6},
    "rfa_gated": {"features": 6},
    "linformer": {"rank": 8},
    "bigbird": {"block": 4},
    "sparse": {"stride": 5, "summary": 2},
    "reformer": {"chunk": 6, "buckets": 4},
    # positions of the linear ones
    "linear spe": {"spe": "gated", "spe_realisations": 8},
    "cosformer_nocos spe": {"spe": "sine", "spe_realisations": 6},
    "performer spe": {"spe": "gated", "spe_realisations": 8, "features": 12},
    "rfa spe": {"spe": "sine", "spe_realisations": 8},
    "rfa_gated spe": {"spe": "gated", "spe_realisations": 8},
    "cosformer_nocos rotary": {"rotary": "numerator"},
    "performer rotary": {"rotary": "numerator", "features": 12},
}
"""Every rival in small, and the positions of the linear ones."""


def make(case: str, first: str | None = None, **more: Any) -> Any:
    """A small model of a case of OPTIONS, perhaps after a block of another kind."""
    kind = case.split()[0]
    causal = KINDS[kind].causal_too
    cls = CosformerForCausalLM if causal else CosformerForMaskedLM
    if case.endswith("rotary"):
        more["positions"] = "rotary"
    attention = kind if first is None else [first, kind]
    options = OPTIONS[case] | more.pop("attention_options", {})
    return small_model(cls, attention=attention, causal=causal, attention_options=options, **more)


def decoder(attention: str, **options: Any) -> Any:
    return small_model(CosformerForCausalLM, attention=attention, **options).double()


def encoder(attention: str, **options: Any) -> Any:
    return small_model(CosformerForMaskedLM, attention=attention, causal=False, **options).double()


def gap(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    assert a.isfinite().all()
    return (a - b).abs().max().item()


@torch.no_grad()
def check_padding(model: Any, side: str, lengths: tuple[int, ...] = (37, 20, 5)) -> None:
    """Each row alone answers as it does among longer ones, and what the padding holds does not matter."""
    rows = [tokens(n, seed=n) for n in lengths]
    ids, mask = padded(rows, side)
    together = model(ids, attention_mask=mask).logits
    other = torch.where(mask.bool(), ids, (ids + 1) % 61)
    assert gap(model(other, attention_mask=mask).logits[mask.bool()], together[mask.bool()]) < TIGHT
    for i, row in enumerate(rows):
        alone = model(row[None]).logits[0]
        assert gap(together[i][mask[i].bool()], alone) < TIGHT, f"row of {len(row)}"


@torch.no_grad()
def check_causality(model: Any, length: int = 45, at: int = 23) -> None:
    """A token changes nothing before it, and something at it and after it."""
    ids = tokens(2, length)
    changed = ids.clone()
    changed[:, at] = (changed[:, at] + 1) % 61
    a, b = model(ids, use_cache=False).logits, model(changed, use_cache=False).logits
    assert torch.equal(a[:, :at], b[:, :at]) or gap(a[:, :at], b[:, :at]) < TIGHT
    assert (a[:, at:] - b[:, at:]).abs().amax((0, 2)).gt(1e-6).any()


@torch.no_grad()
def check_looks_both_ways(model: Any, length: int = 45, at: int = 23) -> None:
    ids = tokens(2, length)
    changed = ids.clone()
    changed[:, at] = (changed[:, at] + 1) % 61
    moved = (model(ids).logits - model(changed).logits).abs().amax((0, 2)) > 1e-6
    assert moved[:at].any()
    assert moved[at + 1 :].any()


@torch.no_grad()
def check_cache(model: Any) -> None:
    """Pieces with a cache, then single tokens, padded on the left: the same logits as one call on the whole."""
    ids, mask = padded([tokens(40, seed=1), tokens(31, seed=2)], "left")
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    cache, got, start = None, [], 0
    for stop in (20, 33, 34, 35, 36, 37, 38, 39, 40):
        out = model(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache, use_cache=True)
        cache, start = out.past_key_values, stop
        got.append(out.logits)
    assert gap(torch.cat(got, 1)[mask.bool()], whole[mask.bool()]) < TIGHT
    prompt, seen = ids[:, :33], mask[:, :33]
    text = model.generate(prompt, attention_mask=seen, max_new_tokens=8, do_sample=False)
    slow = model.generate(prompt, attention_mask=seen, max_new_tokens=8, do_sample=False, use_cache=False)
    assert torch.equal(text, slow)


@torch.no_grad()
def check_packed(model: Any) -> None:
    rows = [tokens(1, n, seed=n) for n in (30, 1, 17)]
    packed = model(torch.cat(rows, 1), cu_seqlens=torch.tensor([0, 30, 31, 48])).logits
    apart = torch.cat([model(row).logits for row in rows], 1)
    assert gap(packed, apart) < TIGHT


@torch.no_grad()
def check_across(attention: str, **options: Any) -> None:
    """An encoder–decoder: padding of the source does not matter, and generating with a cache is as without."""
    model = small_model(
        CosformerForConditionalGeneration, attention=attention, is_encoder_decoder=True, decoder_start_token_id=1,
        positions="learned", **options,
    ).double()  # fmt: skip
    rows = [tokens(30, seed=1), tokens(18, seed=2)]
    target = tokens(2, 12, seed=3)
    ids, mask = padded(rows, "right")
    together = model(ids, attention_mask=mask, decoder_input_ids=target).logits
    alone = model(rows[1][None], decoder_input_ids=target[1:]).logits
    assert gap(together[1:], alone) < TIGHT
    text = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert torch.equal(
        text, model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, use_cache=False)
    )


def check_training(attention: str, *, causal: bool, **options: Any) -> None:
    """Two steps in float32: finite gradients everywhere, a lower loss on the same batch, saved state complete."""
    cls = CosformerForCausalLM if causal else CosformerForMaskedLM
    model = small_model(cls, attention=attention, causal=causal, initializer_range=0.05, **options).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    ids, losses = tokens(3, 40), []
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            assert p.grad is not None, f"{name} has no gradient"
            assert p.grad.isfinite().all(), f"{name}: gradient not finite"
        optimizer.step()
    assert losses[2] < losses[0]
