"""The constant-size cache: in steps, pieces, padded, branched, reordered, it gives the logits of one forward pass."""

import copy
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, HORIZON, POSITIONS, padded, small_config, small_model, swapped, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from cosformer.models import CosformerForCausalLM, CosformerModel, StateLayer

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def make_cache(model: Any, kind: str) -> Cache:
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=HORIZON)
    return DynamicCache(config=model.config)


def in_pieces(model: Any, ids: Tensor, cache: Cache, sizes: list[int], mask: Tensor | None = None) -> Tensor:
    """Logits of ids fed in pieces of these sizes."""
    logits, at = [], 0
    for size in sizes:
        seen = None if mask is None else mask[:, : at + size]
        logits.append(model(ids[:, at : at + size], seen, past_key_values=cache).logits)
        at += size
    assert at == ids.shape[1]
    return torch.cat(logits, 1)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("sizes", [[1] * 21, [13] + [1] * 8, [5, 9, 1, 6]], ids=["steps", "prompt", "pieces"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_cached_logits_are_those_of_one_pass(attention: str, positions: str, sizes: list[int], kind: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], positions=positions)
    ids = tokens(3, 21)
    whole = model(ids, use_cache=False).logits
    assert_close(in_pieces(model, ids, make_cache(model, kind), sizes), whole, **CLOSE)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_rows_of_different_padding_decode_as_if_alone(attention: str, positions: str, kind: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], positions=positions)
    rows = [tokens(n, seed=n) for n in (9, 14, 21)]
    ids, mask = padded(rows, "left")
    for sizes in ([21], [15] + [1] * 6, [3, 10, 1, 7]):
        got = in_pieces(model, ids, make_cache(model, kind), sizes, mask)
        for i, row in enumerate(rows):
            assert_close(got[i, 21 - len(row) :], model(row[None], use_cache=False).logits[0], **CLOSE)


@torch.no_grad()
def test_a_row_may_pause_while_others_go_on() -> None:
    """A mask that ends in 0 for a row: its token is padding, also in a step of one token."""
    model = small_model(CosformerForCausalLM, positions="none")
    ids, cache = tokens(2, 12), DynamicCache(config=small_config())
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, [5, 9]] = 0
    got = in_pieces(model, ids, cache, [4] + [1] * 8, mask)
    assert_close(got[0][mask[0].bool()][-1], model(ids, mask, use_cache=False).logits[0, -1], **CLOSE)


@torch.no_grad()
def test_the_test_sees_a_state_that_is_never_read_back() -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(1, 21)
    whole = model(ids, use_cache=False).logits
    with swapped(StateLayer, "keep", lambda self, state: None):
        got = in_pieces(model, ids, DynamicCache(config=model.config), [13, 8])
    assert (got - whole).abs().max() > 1e-2


@torch.no_grad()
def test_bytes_do_not_depend_on_the_length() -> None:
    model, cache = small_model(CosformerForCausalLM), DynamicCache(config=small_config())
    sizes = []
    for size in (1, 1, 50, 1, 30):
        model(tokens(2, size), past_key_values=cache)
        sizes.append(sum(layer.nbytes for layer in cache.layers))
    assert set(sizes) == {2 * (2 * 2 * 2 * 8 * (8 + 1) * 4 + 8)}  # layers · (B · Hkv · 2 · K · (V + 1) · 4 + counter)
    assert cache.get_seq_length() == 83
    assert cache.get_max_length() == -1


@torch.no_grad()
def test_one_prompt_many_continuations() -> None:
    model = small_model(CosformerForCausalLM, attention=["softmax", "cosformer"])
    prompt, rest = tokens(1, 15), tokens(4, 6, seed=2)
    cache = DynamicCache(config=model.config)
    model(prompt, past_key_values=cache)
    whole = model(torch.cat([prompt.expand(4, -1), rest], 1), use_cache=False).logits[:, 15:]
    for i in range(4):  # each from a copy, the prompt read once
        assert_close(model(rest[i : i + 1], past_key_values=copy.deepcopy(cache)).logits[0], whole[i], **CLOSE)
    many = copy.deepcopy(cache)
    many.batch_repeat_interleave(4)
    assert_close(in_pieces(model, rest, many, [2, 1, 3]), whole, **CLOSE)
    many = copy.deepcopy(cache)
    many.batch_repeat_interleave(4)
    in_pieces(model, rest[:, :2], many, [2])
    many.batch_select_indices(torch.tensor([3, 1]))
    assert_close(in_pieces(model, rest[[3, 1], 2:], many, [1, 3]), whole[[3, 1], 2:], **CLOSE)
    assert cache.get_seq_length() == 15  # the prompt's own state is untouched


@torch.no_grad()
def test_reordered_rows_go_on_from_their_own_past() -> None:
    model = small_model(CosformerForCausalLM)
    ids, more, order = tokens(3, 12), tokens(3, 4, seed=2), torch.tensor([2, 2, 0])
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    before = [layer.sums.data_ptr() for layer in cache.layers]
    cache.reorder_cache(order)
    assert before == [layer.sums.data_ptr() for layer in cache.layers]  # a captured step still finds them
    whole = model(torch.cat([ids[order], more], 1), use_cache=False).logits[:, 12:]
    assert_close(in_pieces(model, more, cache, [1, 1, 2]), whole, **CLOSE)


@torch.no_grad()
def test_reset_starts_again() -> None:
    model, cache = small_model(CosformerForCausalLM), DynamicCache(config=small_config())
    ids = tokens(2, 12)
    first = in_pieces(model, ids, cache, [7, 5])
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_close(in_pieces(model, ids, cache, [7, 5]), first)


@torch.no_grad()
def test_early_initialization_makes_the_same_state() -> None:
    model, cache, ids = small_model(CosformerForCausalLM), DynamicCache(config=small_config()), tokens(2, 12)
    cache.early_initialization(batch_size=2, num_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    assert cache.layers[0].is_initialized
    assert_close(in_pieces(model, ids, cache, [7, 5]), model(ids, use_cache=False).logits, **CLOSE)


def test_offloaded_states_come_back() -> None:
    layer = StateLayer()
    layer.lazy_initialization(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    layer.offload()
    layer.prefetch()
    assert layer.sums is not None
    assert layer.sums.device == layer.device


def test_gradients_flow_through_a_cache() -> None:
    """A prompt in two pieces, the second differentiated into the first."""
    model, ids = small_model(CosformerForCausalLM), tokens(1, 12)
    parameters = list(model.model.layers.parameters())
    whole = torch.autograd.grad(model(ids, use_cache=False).logits[:, 6:].sum(), parameters)
    for sizes in ([6, 6], [6, 1, 1, 4]):
        cache = DynamicCache(config=model.config)
        logits = in_pieces(model, ids, cache, sizes)
        for got, want in zip(torch.autograd.grad(logits[:, 6:].sum(), parameters), whole, strict=True):
            assert_close(got, want, rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("piece", [1, 3])
def test_the_horizon_is_refused_before_a_wrong_token(piece: int) -> None:
    model, cache = small_model(CosformerForCausalLM, attention=["softmax", "cosformer"]), None
    cache = DynamicCache(config=model.config)
    model(tokens(1, HORIZON - piece + 1), past_key_values=cache)
    words = f"{piece} tokens after {HORIZON - piece + 1} in the cache, but the model's horizon is {HORIZON}"
    with pytest.raises(ValueError, match=words):
        model(tokens(1, piece), past_key_values=cache)
    assert cache.get_seq_length() == HORIZON - piece + 1  # refused before anything was computed


@torch.no_grad()
def test_a_full_horizon_is_still_right() -> None:
    model, ids = small_model(CosformerForCausalLM, positions="learned"), tokens(2, HORIZON)
    got = in_pieces(model, ids, DynamicCache(config=model.config), [HORIZON - 5] + [1] * 5)
    assert_close(got, model(ids, use_cache=False).logits, **CLOSE)


def test_caches_of_another_model_are_refused() -> None:
    model = small_model(CosformerForCausalLM)
    with pytest.raises(ValueError, match=r"has 0 layers but the model has 2: make it with DynamicCache\(config="):
        model(tokens(1, 3), past_key_values=DynamicCache())
    other = DynamicCache(config=small_config(attention="softmax"))
    with pytest.raises(TypeError, match="holds a DynamicLayer for block 0, which is cosFormer"):
        model(tokens(1, 3), past_key_values=other)
    softmax = small_model(CosformerForCausalLM, attention="softmax")
    with pytest.raises(TypeError, match="keeps a state and no keys or values"):
        softmax(tokens(1, 3), past_key_values=DynamicCache(config=model.config))


def test_a_state_is_not_cropped() -> None:
    cache = DynamicCache(config=small_config())
    cache.crop(0)
    with pytest.raises(RuntimeError, match=r"copy\.deepcopy"):
        cache.crop(-1)


@torch.no_grad()
def test_one_token_batches_and_prompts() -> None:
    model = small_model(CosformerModel)
    out = model(tokens(1, 1))
    assert out.last_hidden_state.isfinite().all()
    assert out.past_key_values.get_seq_length() == 1
