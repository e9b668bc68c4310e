"""GraphDecoder on the CPU: the very step a graph would hold, launched from Python, writes what generate() writes."""

import contextlib
import types
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, HORIZON, POSITIONS, padded, small_model, tokens
from torch.testing import assert_close

from cosformer.models import CosformerForCausalLM, GraphDecoder, Sampling, decoding

GREEDY: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


def make(attention: str = "hybrid", **options: Any) -> Any:
    return small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], **options)


def decoder(model: Any, **options: Any) -> GraphDecoder:
    return GraphDecoder(model, **{"capture": False, "max_length": 60} | options)


@pytest.mark.parametrize("growing", [False, True], ids=["fixed", "growing"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_it_writes_what_generate_writes(attention: str, positions: str, growing: bool) -> None:
    """Left-padded rows, and the same decoder for one prompt after another."""
    model = make(attention, positions=positions)
    one = decoder(model, batch=3, growing=growing)
    for lengths in ((3, 9, 17), (6, 6, 6), (11, 1, 2)):
        ids, mask = padded([tokens(n, seed=n) for n in lengths], "left")
        want = model.generate(ids, attention_mask=mask, **GREEDY)
        assert torch.equal(one.generate(ids, 12, attention_mask=mask), want)
    assert len(want.unique()) > 5


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_logits_of_each_step_are_those_of_the_whole(attention: str) -> None:
    model = make(attention)
    one = decoder(model)
    ids = one.generate(tokens(1, 8), 20)
    whole = model(ids, use_cache=False).logits
    one.prefill(tokens(1, 8))
    assert_close(one.logits, whole[:, 7], rtol=1e-4, atol=1e-4)
    for t in range(8, 27):
        one.step()
        assert_close(one.logits, whole[:, t], rtol=1e-4, atol=1e-4)
    assert one.length == one.cache.get_seq_length() == 27


def test_a_broken_mask_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("softmax")
    ids, mask = padded([tokens(n, seed=n) for n in (3, 17)], "left")
    want = model.generate(ids, attention_mask=mask, **GREEDY)
    monkeypatch.setattr(GraphDecoder, "_allowed", lambda self: None)
    assert not torch.equal(decoder(model, batch=2).generate(ids, 12, attention_mask=mask), want)


def test_it_ends_when_all_rows_have_ended() -> None:
    model, ids = make(), tokens(2, 6)
    free = decoder(model, batch=2).generate(ids, 40)[:, 6:]
    eos = int(free[0, 3])  # ends the first row at the latest there
    seen: list[torch.Tensor] = []
    got = decoder(model, batch=2).generate(ids, 40, eos_token_id=eos, said=lambda token: seen.append(token.clone()))
    assert torch.equal(got[:, :6], ids)
    for row, want in zip(got[:, 6:].tolist(), free.tolist(), strict=True):
        stop = want.index(eos) if eos in want else len(want)
        assert row[:stop] == want[:stop]
        assert set(row[stop:]) <= {eos}
    both = [row.index(eos) + 1 if eos in row else 40 for row in free.tolist()]
    assert got.shape[1] == 6 + max(both)
    assert torch.equal(torch.cat(seen, 1)[:1, : both[0]], free[:1, : both[0]])
    quiet = decoder(model, batch=2).generate(ids, 40, eos_token_id=eos)
    assert torch.equal(quiet, got)  # however often it looks


def test_bytes_and_pretended_context() -> None:
    for attention, grows in (("cosformer", False), ("softmax", True)):
        one = decoder(make(attention), growing=True, max_length=90)
        held = []
        for context in (10, 80):
            one.pretend(context)
            held.append(one.cache_bytes)
            token = one.step()
            assert token.shape == (1, 1)
            assert one.logits.isfinite().all()
            assert one.length == one.cache.get_seq_length() == context + 1
            assert one.positions.item() == context + 1
        assert (held[1] > held[0]) == grows
        fixed = decoder(make(attention), max_length=90)
        fixed.pretend(10)
        before = fixed.cache_bytes
        for _ in range(5):
            fixed.step()
        assert fixed.cache_bytes == before
        fixed.prefill(tokens(1, 4))  # and nothing pretended is left
        assert_close(fixed.logits, fixed.model(tokens(1, 4)).logits[:, -1], rtol=1e-4, atol=1e-4)


# The choice of a token


def drawn(sampling: Sampling, logits: torch.Tensor, count: int = 20_000) -> torch.Tensor:
    rows = sampling.choose(logits.expand(count, -1), torch.Generator().manual_seed(0))
    return torch.bincount(rows, minlength=logits.shape[-1]) / count


def test_sampling_draws_by_probability() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    for temperature in (0.5, 1.0, 2.0):
        want = (logits / temperature).softmax(-1)[0]
        assert_close(drawn(Sampling(temperature=temperature), logits), want, rtol=0, atol=0.015)


def test_top_k_and_top_p_leave_out_the_unlikely() -> None:
    p = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])
    logits = p.log()
    for sampling, kept in (
        (Sampling(temperature=1, top_k=2), [1, 3]),
        (Sampling(temperature=1, top_k=99), [0, 1, 2, 3, 4]),
        (Sampling(temperature=1, top_p=0.69), [1, 3]),
        (Sampling(temperature=1, top_p=0.71), [1, 3, 4]),
        (Sampling(temperature=1, top_p=1e-9), [1]),
        (Sampling(temperature=1, top_k=3, top_p=0.5), [1, 3]),
        (Sampling(), [1]),
    ):
        want = torch.zeros(5)
        want[kept] = p[0, kept] / p[0, kept].sum()
        assert_close(drawn(sampling, logits), want, rtol=0, atol=0.015)


def test_a_seed_repeats_itself() -> None:
    model, ids = make(), tokens(2, 6)
    one = decoder(model, batch=2, sampling=Sampling(temperature=1.5), seed=3)
    first = one.generate(ids, 20)
    again = one.generate(ids, 20)
    one.seed(3)
    assert torch.equal(one.generate(ids, 20), first)
    assert not torch.equal(again, first)
    likeliest = decoder(model, batch=2, sampling=Sampling(temperature=1, top_k=1)).generate(ids, 20)
    assert torch.equal(likeliest, decoder(model, batch=2).generate(ids, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 5}, "nothing to draw"),
        ({"temperature": 1.0, "top_k": 0}, "top_k=0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p=0.0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p=1.5"),
    ],
    ids=str,
)
def test_wrong_sampling_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


# Refusals, and the capture itself


def test_no_graph_without_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"capture=True with a model on cpu: .* capture=False"):
        GraphDecoder(make())


def test_the_horizon_is_kept_before_anything_is_written() -> None:
    one = decoder(make(), max_length=None)
    with pytest.raises(ValueError, match=f"horizon is {HORIZON}"):
        one.generate(tokens(1, 50), HORIZON - 48)
    assert one.generate(tokens(1, 50), HORIZON - 49).shape == (1, HORIZON + 1)  # the last token is not read
    with pytest.raises(ValueError, match=f"{HORIZON + 1} tokens, but the model's horizon is {HORIZON}"):
        one.step()
    short = decoder(make("softmax"), max_length=20)
    with pytest.raises(ValueError, match="21 tokens, but max_length of this decoder is 20"):
        short.prefill(tokens(1, 21))


def test_what_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(ValueError, match="say max_length"):
        GraphDecoder(make("softmax"), capture=False)
    one = decoder(make(), batch=2)
    ids, mask = padded([tokens(n, seed=n) for n in (3, 5)], "right")
    with pytest.raises(ValueError, match="pad prompts on the left"):
        one.prefill(ids, mask)
    for wrong in (tokens(3, 4), tokens(2, 0), tokens(4)):
        with pytest.raises(ValueError, match=r"made for \[2, T\]"):
            one.prefill(wrong)
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        one.generate(ids, 0)


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
def test_captured_it_begins_anew(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is replayed runs the recorded step; what warming up left in the states is gone."""
    order: list[str] = []
    stream = types.SimpleNamespace(wait_stream=lambda other: order.append("wait"))
    model, ids = make(attention), tokens(1, 9)
    want = model.generate(ids, **GREEDY)
    recorded: list[Any] = []

    class Graph:
        def register_generator_state(self, generator: torch.Generator) -> None:
            order.append("generator")

        def replay(self) -> None:
            recorded[0]._step()

    @contextlib.contextmanager
    def capture(graph: Graph):
        order.append("capture")
        yield

    fakes = {"Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": Graph, "graph": capture}
    for name, value in (fakes | {"stream": lambda _: contextlib.nullcontext()}).items():
        monkeypatch.setattr(torch.cuda, name, value)
    one = decoder(model, max_length=40)
    recorded.append(one)
    one.captured = True
    one._run = decoding.captured(one._step, one.reset, one.generator)
    one.reset()
    assert order == ["wait", "wait", "generator", "capture"]
    assert torch.equal(one.generate(ids, 12), want)
    assert one.cache.get_seq_length() == 20
