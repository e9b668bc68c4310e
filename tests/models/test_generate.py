"""generate() of transformers: every way of decoding, against logits of full forward passes without a cache."""

import copy
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, HORIZON, PAD, POSITIONS, padded, small_model, swapped, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, StaticCache, TextStreamer

from cosformer.models import CosformerForCausalLM, StateLayer, cosformer_kind

NEW = 9


def by_hand(model: Any, row: Tensor, new: int = NEW) -> Tensor:
    """Greedy decoding of one row [t] without cache, mask or padding."""
    ids = row[None]
    for _ in range(new):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return ids[0, len(row) :]


def ask(model: Any, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(ids, attention_mask=mask, **{"max_new_tokens": NEW, "do_sample": False} | options)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_greedy_left_padded_rows_are_those_decoded_alone(attention: str, positions: str, cache: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], positions=positions)
    rows = [tokens(n, seed=n) for n in (1, 9, 17)]
    out = ask(
        model, *padded(rows, "left"), cache_implementation=cache, return_dict_in_generate=True, output_logits=True
    )
    for i, row in enumerate(rows):
        new = out.sequences[i, 17:]
        assert torch.equal(new, by_hand(model, row))
        whole = model(torch.cat([row, new])[None], use_cache=False).logits[0, len(row) - 1 : -1]
        assert_close(torch.stack([logits[i] for logits in out.logits]), whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_rows_differ() -> None:
    """The test above would say nothing if every prompt led to the same tokens."""
    model = small_model(CosformerForCausalLM)
    assert len({tuple(by_hand(model, tokens(n, seed=n)).tolist()) for n in (1, 9, 17)}) == 3


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_beams_equal_those_without_a_cache(attention: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention])
    ids, mask = padded([tokens(n, seed=n) for n in (5, 12)], "left")
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "output_scores": True}
    options |= {"return_dict_in_generate": True}
    cached, plain = (ask(model, ids, mask, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)
    assert_close(cached.sequences_scores, plain.sequences_scores, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_beam_test_sees_a_reorder_that_does_nothing() -> None:
    model = small_model(CosformerForCausalLM)
    ids, mask = padded([tokens(n, seed=n) for n in (5, 12)], "left")
    good = ask(model, ids, mask, num_beams=4)
    with swapped(StateLayer, "reorder_cache", lambda self, rows: None):
        assert not torch.equal(ask(model, ids, mask, num_beams=4), good)


@torch.no_grad()
def test_sampling_several_sequences() -> None:
    model = small_model(CosformerForCausalLM, attention=["cosformer", "softmax"])
    ids, mask = padded([tokens(n, seed=n) for n in (5, 12)], "left")
    samples = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        samples.append(ask(model, ids, mask, do_sample=True, num_return_sequences=5, use_cache=use_cache))
    assert samples[0].shape == (10, 12 + NEW)
    assert torch.equal(*samples)
    assert len({tuple(row) for row in samples[0].tolist()}) == 10


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("piece", [1, 4, 5])
@torch.no_grad()
def test_prompts_in_pieces(attention: str, piece: int) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], positions="learned")
    ids, mask = padded([tokens(n, seed=n) for n in (9, 14)], "left")
    assert torch.equal(ask(model, ids, mask, prefill_chunk_size=piece), ask(model, ids, mask))


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_a_prompt_read_once_serves_many_continuations(attention: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention])
    prompt, questions = tokens(20), [tokens(n, seed=n) for n in (3, 6)]
    read = DynamicCache(config=model.config)
    model(prompt[None], past_key_values=read)
    for question in questions:
        ids = torch.cat([prompt, question])
        got = ask(model, ids[None], past_key_values=copy.deepcopy(read))
        assert torch.equal(got[0, len(ids) :], by_hand(model, ids))
    assert read.get_seq_length() == 20


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_a_prompt_read_once_serves_several_samples_and_beams(attention: str) -> None:
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention])
    ids = tokens(1, 20)
    for options in ({"do_sample": True, "num_return_sequences": 4}, {"num_beams": 4}):
        read = DynamicCache(config=model.config)
        model(ids[:, :15], past_key_values=read)
        read.batch_repeat_interleave(4)
        torch.manual_seed(3)
        got = ask(model, ids, past_key_values=read, **options)
        torch.manual_seed(3)
        assert torch.equal(got, ask(model, ids, **options))


@torch.no_grad()
def test_each_new_token_is_one_step_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward pass over the past, and no other way around the fused step."""
    model, calls = small_model(CosformerForCausalLM), []
    for name in ("attention_step", "cosformer_attention"):
        real = getattr(cosformer_kind, name)
        monkeypatch.setattr(
            cosformer_kind,
            name,
            lambda q, *a, _real=real, _name=name, **k: calls.append((_name, q.shape[2])) or _real(q, *a, **k),
        )
    ask(model, tokens(2, 11), max_new_tokens=4)
    assert calls == [("cosformer_attention", 11)] * 2 + [("attention_step", 1)] * 6


@torch.no_grad()
def test_a_cache_that_was_returned_goes_on() -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(1, 11)
    first = ask(model, ids, return_dict_in_generate=True, max_new_tokens=4)
    again = ask(model, first.sequences, past_key_values=first.past_key_values, max_new_tokens=5)
    assert torch.equal(again[0, 11:], by_hand(model, ids[0]))


class Words:
    """A tokenizer, as far as a streamer asks: one word per token."""

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(f"w{int(i)} " for i in ids)


@torch.no_grad()
def test_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(1, 11)
    got = ask(model, ids, streamer=TextStreamer(Words(), skip_prompt=True))  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out.split() == [f"w{i}" for i in got[0, 11:].tolist()]


@torch.no_grad()
def test_finished_rows_are_padded_and_others_go_on() -> None:
    model = small_model(CosformerForCausalLM)
    rows = [tokens(n, seed=n) for n in (9, 14)]
    alone = [by_hand(model, row).tolist() for row in rows]
    end = next(token for token in alone[0] if token not in alone[1])
    got = ask(model, *padded(rows, "left"), eos_token_id=end)[:, 14:].tolist()
    at = alone[0].index(end)
    assert got[0] == alone[0][: at + 1] + [PAD] * (NEW - at - 1)
    assert got[1] == alone[1]


@torch.no_grad()
def test_from_embeddings() -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(1, 11)
    got = model.generate(
        inputs_embeds=model.get_input_embeddings()(ids), attention_mask=torch.ones(1, 11), max_new_tokens=NEW,
        do_sample=False,
    )  # fmt: skip
    assert torch.equal(got[0], by_hand(model, ids[0]))


@torch.no_grad()
def test_past_the_horizon_stops_with_an_error() -> None:
    model = small_model(CosformerForCausalLM)
    ids = tokens(1, HORIZON - 4)
    assert ask(model, ids, max_new_tokens=5).shape == (1, HORIZON + 1)  # the last is never read
    seen: list[int] = []

    class Listener:
        def put(self, value: Tensor) -> None:
            seen.extend(value.flatten().tolist())

        def end(self) -> None: ...

    with pytest.raises(ValueError, match=f"1 tokens after {HORIZON} in the cache, but the model's horizon"):
        ask(model, ids, max_new_tokens=6, streamer=Listener())
    assert seen[HORIZON - 4 :] == by_hand(model, ids[0], 5).tolist()  # all of them right


@torch.no_grad()
def test_static_cache_of_a_hybrid() -> None:
    model = small_model(CosformerForCausalLM, attention=["softmax", "cosformer"])
    cache = StaticCache(config=model.config, max_cache_len=40)
    ids, mask = padded([tokens(n, seed=n) for n in (9, 14)], "left")
    got = ask(model, ids, mask, past_key_values=cache)
    assert torch.equal(got, ask(model, ids, mask))
    cache.reset()
    assert torch.equal(got, ask(model, ids, mask, past_key_values=cache))


def test_assisted_decoding_is_refused() -> None:
    model = small_model(CosformerForCausalLM)
    with pytest.raises(ValueError, match="stateful"):
        ask(model, tokens(1, 5), assistant_model=small_model(CosformerForCausalLM, seed=2))
