"""One forward pass: equal to the model written out, blind to padding, exact when packed."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import written_out
from small_models import ATTENTIONS, HORIZON, POSITIONS, padded, small_config, small_model, swapped, tokens
from torch import Tensor
from torch.testing import assert_close

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
)
from cosformer.models import model as model_module

VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{a}-{p}": {"attention": ATTENTIONS[a], "positions": p} for a in ATTENTIONS for p in POSITIONS},
    "encoder": {"causal": False},
    "encoder-softmax-rotary": {"causal": False, "attention": "softmax", "positions": "rotary"},
    "post-norm": {"norm_first": False, "embedding_norm": True, "norm": "layernorm", "causal": False},
    "swiglu": {"mlp": "swiglu", "mlp_bias": False, "attention_bias": False, "head_dim": 10},
    "gelu-tanh": {"mlp": "gelu_tanh", "scale_embeddings": True, "type_vocab_size": 2},
    "silu-norm": {"feature_map": "silu", "normalizer": "norm"},
    "identity-norm": {"feature_map": "identity", "normalizer": "norm", "causal": False},
    "elu1": {"feature_map": "elu1"},
}


def loose(config: Any) -> dict[str, float]:
    """Tables of sinusoids and rotations are fp32 by design; everything else is float64."""
    approximate = config.positions in ("sinusoidal", "rotary") or config.attention != "cosformer"
    return {"rtol": 1e-4, "atol": 1e-4} if approximate else {"rtol": 1e-7, "atol": 1e-7}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_it_is_the_model_written_out(options: dict[str, Any]) -> None:
    model = small_model(CosformerModel, **options).double()
    ids = tokens(2, 23)
    kwargs = {}
    types = None
    if model.embed_types is not None:
        types = kwargs["token_type_ids"] = (tokens(2, 23) > 30).long()
    got = model(ids, **kwargs).last_hidden_state
    for row in range(2):
        want = written_out.stack(model, ids[row], types=None if types is None else types[row])
        assert_close(got[row], want, **loose(model.config))


def test_written_out_sees_a_wrong_horizon() -> None:
    model = small_model(CosformerModel, positions="none").double()
    ids = tokens(1, 23)
    want = written_out.stack(model, ids[0])
    model.config.horizon -= 1
    assert (written_out.stack(model, ids[0]) - want).abs().max() > 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_changes_nothing(attention: str, positions: str, causal: bool, side: str) -> None:
    model = small_model(CosformerModel, attention=ATTENTIONS[attention], positions=positions, causal=causal)
    rows = [tokens(n, seed=n) for n in (1, 9, 17)]
    ids, mask = padded(rows, side)
    got = model(ids, mask).last_hidden_state
    for i, row in enumerate(rows):
        assert_close(got[i][mask[i].bool()], model(row[None]).last_hidden_state[0], rtol=1e-4, atol=1e-4)


def test_the_padding_test_sees_a_mask_that_is_lost() -> None:
    model = small_model(CosformerModel)
    ids, mask = padded([tokens(9), tokens(17)], "left")
    good = model(ids, mask).last_hidden_state[0, 8:]
    with swapped(model_module, "make_masks", lambda *_, **__: (None, None)):
        assert (model(ids, mask).last_hidden_state[0, 8:] - good).abs().max() > 1e-2


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_packed_equals_apart(attention: str, positions: str, causal: bool) -> None:
    model = small_model(CosformerModel, attention=ATTENTIONS[attention], positions=positions, causal=causal)
    rows = [tokens(n, seed=n) for n in (5, 1, 13)]
    packed, cu = torch.cat(rows)[None], torch.tensor([0, 5, 6, 19], dtype=torch.int32)
    restarting = torch.cat([torch.arange(len(row)) for row in rows])[None]
    want = torch.cat([model(row[None]).last_hidden_state[0] for row in rows])
    for said in ({"cu_seqlens": cu}, {"position_ids": restarting}, {"cu_seq_lens_q": cu, "position_ids": restarting}):
        out = model(packed, **said)
        assert_close(out.last_hidden_state[0], want, rtol=1e-4, atol=1e-4)
        assert out.past_key_values is None


def test_packed_may_be_longer_than_the_horizon_in_all() -> None:
    model = small_model(CosformerModel, positions="learned")
    cu = torch.tensor([0, HORIZON, HORIZON + 50])
    assert model(tokens(1, HORIZON + 50), cu_seqlens=cu).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match=f"{HORIZON + 1} tokens, but the model's horizon is {HORIZON}"):
        model(tokens(1, HORIZON + 50), cu_seqlens=torch.tensor([0, HORIZON + 1, HORIZON + 50]))


def test_packed_labels_do_not_cross_sequences() -> None:
    model = small_model(CosformerForCausalLM)
    rows = [tokens(n, seed=n) for n in (5, 13)]
    packed, cu = torch.cat(rows)[None], torch.tensor([0, 5, 18])
    apart = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    got = model(packed, cu_seqlens=cu, labels=packed).loss
    assert_close(got, sum(apart) / 16)
    restarting = torch.cat([torch.arange(len(row)) for row in rows])[None]
    assert_close(model(packed, position_ids=restarting, labels=packed).loss, got)


@pytest.mark.parametrize("how", ["mean", "first", "last"])
def test_a_sequence_is_classified_the_same_padded_packed_or_alone(how: str) -> None:
    model = small_model(CosformerForSequenceClassification, pooling=how, causal=False, num_labels=3)
    rows = [tokens(n, seed=n) for n in (1, 9, 17)]
    alone = torch.cat([model(row[None]).logits for row in rows])
    for side in ("left", "right"):
        ids, mask = padded(rows, side)
        assert_close(model(ids, mask).logits, alone, rtol=1e-4, atol=1e-4)
    packed = model(torch.cat(rows)[None], cu_seqlens=torch.tensor([0, 1, 10, 27]), labels=torch.tensor([0, 2, 1]))
    assert_close(packed.logits, alone, rtol=1e-4, atol=1e-4)
    assert_close(packed.loss, F.cross_entropy(alone, torch.tensor([0, 2, 1])), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["softmax", "cosformer_nocos"])
def test_tokens_left_out_are_tokens_masked(attention: str) -> None:
    """Where attention does not count places itself: what remains keeps its learned place."""
    model = small_model(
        CosformerForSequenceClassification, attention=attention, causal=False, num_labels=3, positions="learned",
        learned_positions=2 * HORIZON,
    )  # fmt: skip
    ids, mask = tokens(2, 23), (torch.arange(23) % 3 > 0).long().expand(2, -1)
    masked = model(ids, mask, position_ids=torch.arange(23)[None]).logits
    kept = mask[0].nonzero()[:, 0]
    assert_close(model(ids[:, kept], position_ids=kept[None]).logits, masked, rtol=1e-4, atol=1e-5)
    assert (model(ids[:, kept]).logits - masked).abs().max() > 1e-3  # other places are another input
    far = kept[None] + HORIZON
    assert model(ids[:, kept], position_ids=far).logits.isfinite().all()


def test_a_classifier_with_a_layer_between() -> None:
    """As customary in the Long-Range Arena: an MLP on the pooled tokens."""
    model = small_model(CosformerForSequenceClassification, causal=False, num_labels=3, classifier_hidden_size=7)
    ids = tokens(2, 9)
    pooled = model.model(ids).last_hidden_state.mean(1)
    assert model.hidden is not None
    assert model.hidden.weight.shape[0] == model.score.weight.shape[1] == 7
    assert_close(model(ids).logits, model.score(model.hidden(pooled).clamp(min=0)))
    assert small_model(CosformerForSequenceClassification, causal=False, num_labels=3).hidden is None
    pairs = small_model(CosformerForPairClassification, causal=False, num_labels=3, classifier_hidden_size=7)
    a, b = (pairs.model(x).last_hidden_state.mean(1) for x in (ids, tokens(2, 5, seed=4)))
    both = pairs.pair(torch.cat([a, b, a * b, a - b], -1))
    assert both.shape == (2, 7)
    assert_close(pairs(ids, other_input_ids=tokens(2, 5, seed=4)).logits, pairs.score(both.clamp(min=0)))


def test_problem_types() -> None:
    ids = tokens(4, 9)
    single = small_model(CosformerForSequenceClassification, num_labels=1)
    assert_close(single(ids, labels=torch.ones(4)).loss, (single(ids).logits[:, 0] - 1).pow(2).mean())
    several = small_model(CosformerForSequenceClassification, num_labels=3)
    labels = torch.tensor([[1.0, 0, 1]] * 4)
    want = F.binary_cross_entropy_with_logits(several(ids).logits, labels)
    assert_close(several(ids, labels=labels).loss, want)


def test_token_classes_and_their_loss() -> None:
    model = small_model(CosformerForTokenClassification, causal=False, num_labels=4)
    ids, labels = tokens(2, 9), tokens(2, 9) % 4
    labels[:, 3] = -100
    out = model(ids, labels=labels)
    assert out.logits.shape == (2, 9, 4)
    assert_close(out.loss, F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100))


def test_two_towers() -> None:
    model = small_model(CosformerForPairClassification, causal=False, num_labels=2)
    a, b = [tokens(n, seed=n) for n in (4, 11)], [tokens(n, seed=n + 50) for n in (16, 3)]
    ids, mask = padded(a, "right")
    other, other_mask = padded(b, "left")
    got = model(ids, mask, other, other_mask, labels=torch.tensor([0, 1]))
    alone = torch.cat([model(x[None], None, y[None]).logits for x, y in zip(a, b, strict=True)])
    assert_close(got.logits, alone, rtol=1e-4, atol=1e-4)
    assert (model(b[1][None], None, a[1][None]).logits - alone[1]).abs().max() > 1e-3  # the order of a pair counts
    assert_close(got.loss, F.cross_entropy(alone, torch.tensor([0, 1])), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="other_input_ids"):
        model(ids, mask)


def test_each_tower_has_its_own_places_and_types() -> None:
    model = small_model(
        CosformerForPairClassification, causal=False, num_labels=2, type_vocab_size=3, positions="learned"
    )
    a, b = tokens(2, 9), tokens(2, 6, seed=2)
    types, others = a % 3, b % 3
    plain = model(a, other_input_ids=b).logits
    got = model(a, other_input_ids=b, token_type_ids=types, other_token_type_ids=others).logits
    pooled = [model.model(x, token_type_ids=kind).last_hidden_state.mean(1) for x, kind in ((a, types), (b, others))]
    first, second = pooled
    both = torch.cat([first, second, first * second, first - second], -1)
    assert_close(got, model.score(F.gelu(model.pair(both))))
    moved = model(a, other_input_ids=b, position_ids=torch.arange(9)[None] + 1).logits
    other_moved = model(a, other_input_ids=b, other_position_ids=torch.arange(6)[None] + 1).logits
    for one in (got, moved, other_moved):
        assert (one - plain).abs().max() > 1e-4
    for wrong, words in (
        ({"cu_seqlens": torch.tensor([0, 4, 6])}, "each row is one document"),
        ({"position_ids": torch.tensor([[0, 1, 0, 1, 2, 3]])}, "each row is one document"),
        ({"output_hidden_states": True}, "on each"),
        ({"use_cache": True}, "gives no cache"),
    ):
        with pytest.raises(ValueError, match=words):
            model(b[:1], other_input_ids=b[:1], **wrong)


@pytest.mark.parametrize("cls", [CosformerForSequenceClassification, CosformerForTokenClassification])
def test_a_classifier_may_be_told_that_there_is_no_cache(cls: type) -> None:
    model, ids = small_model(cls), tokens(2, 5)
    assert torch.equal(model(ids, use_cache=False).logits, model(ids).logits)
    with pytest.raises(ValueError, match="gives no cache"):
        model(ids, use_cache=True)


@pytest.mark.parametrize("how", ["mean", "first", "last"])
def test_pooling_keeps_double_precision(how: str) -> None:
    model = small_model(CosformerForSequenceClassification, causal=False, pooling=how).double()
    a, b = tokens(9), tokens(5, seed=2)
    ids, mask = padded([a, b], "right")
    apart = torch.cat([model(x[None]).logits for x in (a, b)])
    assert_close(model(ids, mask).logits, apart, rtol=1e-11, atol=1e-11)
    packed = model(torch.cat([a, b])[None], cu_seqlens=torch.tensor([0, 9, 14])).logits
    assert_close(packed, apart, rtol=1e-11, atol=1e-11)


def test_masked_lm_loss_is_of_the_masked_tokens() -> None:
    model = small_model(CosformerForMaskedLM, causal=False)
    ids = tokens(2, 12)
    labels = torch.full_like(ids, -100)
    labels[0, 3], labels[1, 7] = 5, 6
    out = model(ids, labels=labels)
    want = F.cross_entropy(torch.stack([out.logits[0, 3], out.logits[1, 7]]), torch.tensor([5, 6]))
    assert_close(out.loss, want)
    assert model(ids, labels=torch.full_like(ids, -100)).loss == 0  # nothing to predict is not NaN


def test_label_smoothing_in_training_only() -> None:
    model = small_model(CosformerForCausalLM, label_smoothing=0.2)
    ids = tokens(2, 12)
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    assert_close(model(ids, labels=ids).loss, F.cross_entropy(logits, ids[:, 1:].flatten()))
    smoothed = F.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.2)
    assert_close(model.train()(ids, labels=ids).loss, smoothed)


def test_num_items_in_batch_divides_the_loss() -> None:
    """Trainer counts labels over accumulated batches; the mean must be over all of them."""
    model = small_model(CosformerForCausalLM)
    ids = tokens(2, 12)
    mean = model(ids, labels=ids).loss
    assert_close(model(ids, labels=ids, num_items_in_batch=44).loss, mean / 2)


@pytest.mark.parametrize("cls", [CosformerForCausalLM, CosformerForMaskedLM])
def test_checkpointing_changes_no_gradient(cls: type) -> None:
    model = small_model(cls, causal=cls is CosformerForCausalLM, attention=["cosformer", "softmax"], hidden_dropout=0.1)
    model.train()
    ids, grads = tokens(2, 20), []
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(5)
        model(ids, labels=ids).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert model.model.layers[0].gradient_checkpointing
    for a, b in zip(*grads, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_checkpointing_refuses_a_cache() -> None:
    model = small_model(CosformerForCausalLM).train()
    cache = model(tokens(1, 5), use_cache=True).past_key_values
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="runs twice"):
        model(tokens(1, 5), past_key_values=cache)


def test_every_parameter_gets_a_gradient() -> None:
    for options in ({}, {"normalizer": "norm", "positions": "learned", "mlp": "swiglu"}):
        model = small_model(CosformerForCausalLM, **options).train()
        ids = tokens(2, HORIZON)
        model(ids, labels=ids).loss.backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_dropout_acts_in_training_only() -> None:
    for name in ("hidden_dropout", "attention_dropout"):
        model, ids = small_model(CosformerModel, **{name: 0.5}), tokens(1, 9)
        assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
        model.train()
        assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)


def test_hidden_states_tuples_and_kept_logits() -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(2, 9)
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert_close(model.lm_head(out.hidden_states[-1]), out.logits)
    assert torch.equal(model(ids, return_dict=False)[0], out.logits)
    assert_close(model(ids, logits_to_keep=2).logits, out.logits[:, -2:])
    assert_close(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, out.logits[:, [1, 4]])
    embeds = model.get_input_embeddings()(ids)
    assert_close(model(inputs_embeds=embeds).logits, out.logits)


def test_training_keeps_no_cache_unless_asked() -> None:
    model, ids = small_model(CosformerForCausalLM), tokens(1, 9)
    assert model(ids).past_key_values is not None
    assert model.train()(ids).past_key_values is None
    assert model(ids, use_cache=True).past_key_values is not None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "pass either input_ids or inputs_embeds"),
    "mask of three dimensions": (
        {"input_ids": tokens(2, 5), "attention_mask": torch.ones(2, 1, 5)},
        "differs by query cannot be had in linear time",
    ),
    "mask too narrow": ({"input_ids": tokens(2, 5), "attention_mask": torch.ones(2, 4)}, "covers every token so far"),
    "packed with a mask": (
        {"input_ids": tokens(1, 5), "attention_mask": torch.ones(1, 5), "cu_seqlens": torch.tensor([0, 5])},
        "leave the mask out",
    ),
    "packed in two rows": ({"input_ids": tokens(2, 5), "cu_seqlens": torch.tensor([0, 5])}, "in a single row"),
    "offsets that do not fit": ({"input_ids": tokens(1, 5), "cu_seqlens": torch.tensor([0, 4])}, "there are 5 tokens"),
    "beyond the horizon": ({"input_ids": tokens(1, HORIZON + 1)}, f"the model's horizon is {HORIZON}"),
    "weights": ({"input_ids": tokens(1, 5), "output_attentions": True}, "never forms the weights"),
}


@pytest.mark.parametrize(("inputs", "words"), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_refused(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_model(CosformerModel, positions="none")(**inputs)


@pytest.mark.parametrize(
    ("inputs", "kind", "words"),
    [
        ({"input_ids": tokens(5)}, ValueError, r"input_ids has shape \(5,\): pass \[B, T\]"),
        ({"inputs_embeds": torch.ones(1, 3, 8)}, ValueError, r"inputs_embeds has shape \(1, 3, 8\).*hidden_size=32"),
        (
            {"position_ids": torch.arange(6).expand(3, 6)},
            ValueError,
            r"position_ids has shape \(3, 6\) for 2 rows of 6",
        ),
        ({"position_ids": torch.arange(5)}, ValueError, r"position_ids has shape \(1, 5\)"),
        ({"token_type_ids": torch.zeros(2, 7).long()}, ValueError, r"token_type_ids has shape \(2, 7\)"),
        ({"past_key_values": ((1, 2),)}, TypeError, "past_key_values is a tuple: pass a Cache"),
        ({"labels": tokens(6, 2)}, ValueError, r"labels have shape \(6, 2\) for logits of \(2, 6, 61\)"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_wrong_shapes_are_refused_not_broadcast(inputs: dict[str, Any], kind: type[Exception], words: str) -> None:
    model = small_model(CosformerForCausalLM, positions="learned", type_vocab_size=2)
    if not {"input_ids", "inputs_embeds"} & inputs.keys():
        inputs = {"input_ids": tokens(2, 6), **inputs}
    with pytest.raises(kind, match=words):
        model(**inputs)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_places_of_all_rows_may_be_said_once(positions: str) -> None:
    model, ids, places = small_model(CosformerForCausalLM, positions=positions), tokens(2, 6), torch.arange(6) * 2
    want = model(ids, position_ids=places.expand(2, 6)).logits
    assert_close(model(ids, position_ids=places).logits, want)
    assert_close(model(ids, position_ids=places[None]).logits, want)


def test_an_encoder_keeps_no_cache() -> None:
    model = CosformerModel(small_config(causal=False))
    with pytest.raises(ValueError, match="use_cache=True in an encoder"):
        model(tokens(1, 5), use_cache=True)


def test_softmax_has_no_horizon() -> None:
    model = small_model(CosformerModel, attention="softmax", positions="rotary")
    assert model(tokens(1, HORIZON + 30)).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="the model has not learned to read further"):
        small_model(CosformerModel, attention="softmax", positions="learned")(tokens(1, HORIZON + 1))


def grows_linearly(model: Any, short: Tensor, long: Tensor) -> bool:
    """Whether the prefix of a longer sequence keeps its outputs: it does not where the horizon follows the length."""
    return torch.allclose(model(long).last_hidden_state[:, : short.shape[1]], model(short).last_hidden_state, atol=1e-5)


def test_a_longer_sequence_keeps_the_outputs_of_its_prefix() -> None:
    model, ids = small_model(CosformerModel), tokens(1, 40)
    assert grows_linearly(model, ids[:, :25], ids)
