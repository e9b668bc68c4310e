"""Encoder–decoder: cross attention by the same operator, cached as one more state of fixed size."""

from typing import Any

import pytest
import torch
import written_out
from small_models import ATTENTIONS, PAD, POSITIONS, padded, small_config, small_model, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from cosformer.models import CosformerForConditionalGeneration

START, NEW = 3, 8
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def make(**options: Any) -> Any:
    options = {"is_encoder_decoder": True, "decoder_start_token_id": START} | options
    return small_model(CosformerForConditionalGeneration, **options)


def caches(model: Any, source: int, kind: str) -> EncoderDecoderCache:
    if kind == "static":
        return EncoderDecoderCache(StaticCache(model.config, 64), StaticCache(model.config, source))
    return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_it_is_the_model_written_out(attention: str, positions: str) -> None:
    model = make(attention=ATTENTIONS[attention], positions=positions).double()
    for s, t in ((19, 11), (7, 23)):  # longer and shorter than what it writes
        source, target = tokens(1, s), tokens(1, t, seed=2)
        got = model(source, decoder_input_ids=target).logits[0]
        encoded = written_out.stack(model.model.encoder, source[0])
        assert_close(got, model.lm_head(written_out.stack(model.model.decoder, target[0], encoded)), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("target_side", ["left", "right"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_of_either_changes_nothing(attention: str, side: str, target_side: str) -> None:
    model = make(attention=ATTENTIONS[attention], positions="rotary")
    sources, targets = [tokens(n, seed=n) for n in (4, 17, 9)], [tokens(n, seed=n + 40) for n in (8, 2, 13)]
    (ids, mask), (out, out_mask) = padded(sources, side), padded(targets, target_side)
    got = model(ids, mask, decoder_input_ids=out, decoder_attention_mask=out_mask).logits
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(source[None], decoder_input_ids=target[None]).logits[0]
        assert_close(got[i][out_mask[i].bool()], alone, **CLOSE)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("target_side", ["none", "left"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_cached_logits_are_those_of_one_pass(attention: str, target_side: str, kind: str) -> None:
    model = make(attention=ATTENTIONS[attention])
    ids, mask = padded([tokens(n, seed=n) for n in (4, 17)], "left")
    lengths = (12, 12) if target_side == "none" else (10, 12)
    out, out_mask = padded([tokens(n, seed=n + 40) for n in lengths], "left")
    whole = model(ids, mask, decoder_input_ids=out, decoder_attention_mask=out_mask).logits
    for sizes in ([1] * 12, [5, 4, 1, 2]):
        if target_side == "left" and sizes[0] == 1:
            continue
        cache, logits, at = caches(model, 17, kind), [], 0
        encoded = model.model.encoder(ids, mask)
        for size in sizes:
            got = model(
                attention_mask=mask, encoder_outputs=encoded, decoder_input_ids=out[:, at : at + size],
                decoder_attention_mask=out_mask[:, : at + size], past_key_values=cache,
            )  # fmt: skip
            logits.append(got.logits)
            at += size
        real = out_mask.bool()
        assert_close(torch.cat(logits, 1)[real], whole[real], **CLOSE)
        assert cache.get_seq_length() == 12


def test_a_row_that_begins_too_late_is_refused() -> None:
    model = make()
    out, mask = padded([tokens(3), tokens(9)], "left")
    cache = caches(model, 9, "dynamic")
    first = {"input_ids": tokens(2, 9), "past_key_values": cache}
    model(**first, decoder_input_ids=out[:, :4], decoder_attention_mask=mask[:, :4])
    with pytest.raises(ValueError, match="begins after the first piece"):
        model(**first, decoder_input_ids=out[:, 4:], decoder_attention_mask=mask)


def test_a_cache_without_a_place_for_the_encoder_is_refused() -> None:
    model = make()
    with pytest.raises(ValueError, match="EncoderDecoderCache"):
        model(tokens(1, 9), decoder_input_ids=tokens(1, 3), past_key_values=DynamicCache(config=model.config))
    with pytest.raises(ValueError, match="without cross attention"):
        model.model.encoder(tokens(1, 9), encoder_hidden_states=torch.zeros(1, 9, 32))


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_begun_targets_of_unequal_length_are_continued(attention: str) -> None:
    model = make(attention=ATTENTIONS[attention], positions="learned")
    sources = [tokens(n, seed=n) for n in (4, 17)]
    begun = [torch.cat([torch.tensor([START]), tokens(n, seed=n + 9)]) for n in (6, 2)]
    (ids, mask), (out, out_mask) = padded(sources, "left"), padded(begun, "left")
    got = model.generate(
        ids, attention_mask=mask, decoder_input_ids=out, decoder_attention_mask=out_mask, max_new_tokens=NEW,
        do_sample=False,
    )  # fmt: skip
    for i, (source, row) in enumerate(zip(sources, begun, strict=True)):
        assert torch.equal(got[i, 7:], by_hand(model, source, row)[len(row) :])


def by_hand(model: Any, source: Tensor, begun: Tensor | None = None) -> Tensor:
    out = torch.tensor([[START]]) if begun is None else begun[None]
    for _ in range(NEW):
        step = model(source[None], decoder_input_ids=out, use_cache=False).logits[:, -1:].argmax(-1)
        out = torch.cat([out, step], 1)
    return out[0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_greedy(attention: str, cache: str, side: str) -> None:
    model = make(attention=ATTENTIONS[attention])
    rows = [tokens(n, seed=n) for n in (4, 17, 9)]
    ids, mask = padded(rows, side)
    got = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, cache_implementation=cache)
    for i, row in enumerate(rows):
        assert torch.equal(got[i], by_hand(model, row))


@torch.no_grad()
def test_beams_and_several_sequences() -> None:
    model = make(attention=["cosformer", "softmax"])
    ids, mask = padded([tokens(n, seed=n) for n in (4, 17)], "right")
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": NEW, "do_sample": False}
    cached, plain = (model.generate(ids, attention_mask=mask, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, plain)


@torch.no_grad()
def test_the_cross_cache_has_a_fixed_size_too() -> None:
    model = make()
    for source in (5, 60):
        out = model(tokens(1, source), decoder_input_ids=tokens(1, 3))
        cross = out.past_key_values.cross_attention_cache
        assert [layer.nbytes for layer in cross.layers] == [2 * 2 * 8 * 9 * 4 + 8] * 2


def test_labels_are_read_one_place_late() -> None:
    model = make(label_smoothing=0.1)
    source, labels = tokens(2, 9), tokens(2, 6, seed=2)
    labels[1, 4:] = -100
    late = torch.cat([torch.full((2, 1), START), labels[:, :-1]], 1).masked_fill_(torch.tensor([False]), 0)
    late[late == -100] = PAD
    out = model(source, labels=labels)
    assert_close(out.logits, model(source, decoder_input_ids=late).logits)
    want = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert_close(out.loss, want)
    with pytest.raises(ValueError, match="decoder_start_token_id is None"):
        make(decoder_start_token_id=None)(source, labels=labels)


def test_gradients_reach_the_encoder_also_checkpointed() -> None:
    model, grads = make(attention=["cosformer", "softmax"]).train(), []
    source, labels = tokens(2, 15), tokens(2, 9, seed=2)
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(source, labels=labels).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(g.abs().sum() > 0 for g in grads[0])
    for a, b in zip(*grads, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_tied_embeddings_are_one() -> None:
    model = make(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight
    assert make().lm_head.weight is not make().model.decoder.embed_tokens.weight


def test_a_source_beyond_the_horizon_is_refused() -> None:
    model = make(horizon=20)
    with pytest.raises(ValueError, match="21 tokens, but the model's horizon is 20"):
        model(tokens(1, 21), decoder_input_ids=tokens(1, 2))


def test_packed_sequences_are_refused() -> None:
    model = make()
    with pytest.raises(ValueError, match="pad them instead"):
        model(tokens(1, 9), decoder_input_ids=tokens(1, 6), cu_seqlens=torch.tensor([0, 4, 9]))


def test_an_empty_source_row_is_finite() -> None:
    for attention in ATTENTIONS.values():
        model = make(attention=attention)
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[0] = 0
        out = model(tokens(2, 9), mask, decoder_input_ids=tokens(2, 4)).logits
        assert out.isfinite().all()
        assert_close(out[1], model(tokens(2, 9)[1:], decoder_input_ids=tokens(2, 4)[1:]).logits[0], **CLOSE)


def test_the_config_stays_whole() -> None:
    model = make()
    assert model.config.is_encoder_decoder
    assert model.model.encoder.config.causal is False
    assert model.model.decoder.config.add_cross_attention
    assert small_config(is_encoder_decoder=True).to_dict()["add_cross_attention"] is False


def test_token_types_are_of_the_source() -> None:
    model, ids, target = make(type_vocab_size=3), tokens(2, 9), tokens(2, 4, seed=2)
    types = ids % 3
    encoded = model.get_encoder()(ids, token_type_ids=types)
    want = model(encoder_outputs=encoded, decoder_input_ids=target).logits
    assert_close(model(ids, decoder_input_ids=target, token_type_ids=types).logits, want)
    wide = model(ids, decoder_input_ids=ids, token_type_ids=types).logits  # as long as the source
    assert_close(wide, model(encoder_outputs=encoded, decoder_input_ids=ids).logits)
    written = [
        model.generate(ids, token_type_ids=types, max_new_tokens=NEW, do_sample=False, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    step_by_step = torch.full((2, 1), START)
    for _ in range(NEW):
        scores = model(encoder_outputs=encoded, decoder_input_ids=step_by_step).logits[:, -1]
        step_by_step = torch.cat([step_by_step, scores.argmax(-1, keepdim=True)], 1)
    for text in written:
        assert torch.equal(text, step_by_step)


def test_position_ids_are_refused_with_the_name_of_the_right_ones() -> None:
    ids = tokens(1, 5)
    with pytest.raises(ValueError, match="pass decoder_position_ids"):
        make()(ids, decoder_input_ids=ids, position_ids=torch.arange(5)[None])
