"""Runs that are equal by mathematics are equal in training."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from training_data import tiny
from transformers import AutoTokenizer

from cosformer.models.writing import load_model
from cosformer.tasks import ResumableBatches, encoder_of
from cosformer.training import BadRecipe, read_metrics, run, train
from cosformer.training.checkpoint import read_weights
from cosformer.training.data import open_data
from cosformer.training.making import make_model

STEPS = 6
PLAIN = (f"train.steps={STEPS}", "train.batch=8", "eval.every=100", "eval.keep=last", "model.hidden_dropout=0",
         "model.classifier_dropout=0", "model.label_smoothing=0", "sample.prompts=[]",
         # φ > 0: relu's weights can all be 0, where the output jumps and rounding decides to which side
         "model.feature_map=elu1")  # fmt: skip


def losses(run: Path) -> torch.Tensor:
    found = [line["loss"] for line in read_metrics(run) if line["kind"] == "train"]
    assert len(found) == STEPS
    return torch.tensor(found, dtype=torch.float64)


def close(one: Path, other: Path) -> None:
    """fp32 sums in another order: a few units in the last place of a loss of about 5, and no drift to one side."""
    gap = losses(one) - losses(other)
    assert gap.abs().max() < 2e-5
    assert abs(gap.mean()) < 5e-6
    ours, theirs = read_weights(one), read_weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        # Adam divides by the root of the second moment: where a gradient is near nothing, its rounding is scaled up
        assert (value - theirs[name]).abs().mean() < 2e-5, name


@pytest.mark.parametrize("name", ["lm-stdlib", "mlm-wikitext2", "classify-sst2", "translate-multi30k"])
def test_a_batch_of_8_is_smaller_ones_summed(name: str, tmp_path: Path) -> None:
    """Also where texts have other lengths: the loss is divided by the tokens of the whole step."""
    others = (1, 3) if name == "translate-multi30k" else (3,)
    for micro in (0, *others):
        recipe = tiny(name, tmp_path / "data", *PLAIN, f"train.micro_batch={micro}")
        train(recipe, tmp_path / f"micro-{micro}", device="cpu")
    for micro in others:
        close(tmp_path / "micro-0", tmp_path / f"micro-{micro}")


def test_the_comparison_sees_another_batch(tmp_path: Path) -> None:
    for batch in (8, 7):
        recipe = tiny("lm-stdlib", tmp_path / "data", *PLAIN, f"train.batch={batch}")
        train(recipe, tmp_path / str(batch), device="cpu")
    with pytest.raises(AssertionError):
        close(tmp_path / "8", tmp_path / "7")


def test_compiled_is_as_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and run by eager kernels, so that no compiler is needed; evaluation and samples are not compiled."""
    plain, calls = torch.nn.Module.compile, []

    def compiled(self: torch.nn.Module) -> None:
        calls.append(type(self).__name__)
        plain(self, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    for choice in ("off", "on"):
        recipe = tiny("lm-stdlib", tmp_path / "data", *PLAIN, f"train.compile={choice}", "sample.prompts=['the']")
        assert train(recipe, tmp_path / choice, device="cpu").compiled == (choice == "on")
    assert calls == ["CosformerForCausalLM"]
    close(tmp_path / "off", tmp_path / "on")


@pytest.mark.parametrize(
    ("device", "processes", "more", "said"),
    [
        ("cpu", 1, (), "on cpu: only CUDA has them"),
        ("cuda", 1, ("train.micro_batch=2",), "train.micro_batch=2 of 8: gradients of graphs cannot be added up"),
        ("cuda", 1, ("train.fsdp=true",), "with sharded weights"),
        ("cuda", 2, (), "in 2 processes: that was never tried"),
    ],
)
def test_graphs_are_refused_where_there_are_none(
    device: str, processes: int, more: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(device=torch.device(device), world_size=processes)
    monkeypatch.setattr(run, "arguments_for", lambda *_: made)
    recipe = tiny("lm-stdlib", tmp_path / "data", *PLAIN, "train.batch=8", "train.compile=graphs", *more)
    with pytest.raises(BadRecipe, match=said):
        train(recipe, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    for flag in ("false", "true"):
        recipe = tiny("lm-stdlib", tmp_path / "data", *PLAIN, f"train.gradient_checkpointing={flag}")
        train(recipe, tmp_path / flag, device="cpu")
    close(tmp_path / "false", tmp_path / "true")


def test_loader_processes_change_nothing(tmp_path: Path) -> None:
    for workers in (0, 1):
        train(
            tiny("lm-stdlib", tmp_path / "data", *PLAIN, f"train.workers={workers}"),
            tmp_path / str(workers),
            device="cpu",
        )
    assert torch.equal(losses(tmp_path / "0"), losses(tmp_path / "1"))


def test_the_loss_told_is_the_loss_of_the_batch(tmp_path: Path) -> None:
    """By hand: the first loss is that of the first batch in the untrained model."""
    recipe = tiny("classify-sst2", tmp_path / "data", *PLAIN, "train.micro_batch=3")
    train(recipe, tmp_path / "run", device="cpu")
    data = open_data(recipe, tmp_path / "data-cache")
    keys = next(iter(ResumableBatches(len(data.dataset("train")), 8, seed=recipe.seed)))
    batch = data.collator()([data.dataset("train")[i] for i in keys])
    model = make_model(recipe, data)
    assert float(losses(tmp_path / "run")[0]) == pytest.approx(float(model(**batch).loss.detach()), abs=1e-5)


def test_packed_documents_are_documents_apart(tmp_path: Path) -> None:
    """The first loss told is the mean over the documents of the batch, each read alone."""
    options = ("data.pack=true", "data.document=line", "data.length=128", "model.horizon=128", "train.micro_batch=3")
    recipe = tiny("lm-text", tmp_path / "data", *PLAIN, *options)
    train(recipe, tmp_path / "run", device="cpu")
    data = open_data(recipe, tmp_path / "data-cache")
    rows = data.dataset("train")
    keys = next(iter(ResumableBatches(len(rows), 8, seed=recipe.seed)))
    model, nats, targets = make_model(recipe, data), 0.0, 0
    for row in (rows[i] for i in keys):
        assert len(row["cu_seqlens"]) > 2
        for begin, end in pairwise(row["cu_seqlens"].tolist()):
            alone = row["input_ids"][None, begin:end]
            nats += float(model(alone, labels=alone, num_items_in_batch=1).loss.detach())
            targets += end - begin - 1
    assert float(losses(tmp_path / "run")[0]) == pytest.approx(nats / targets, abs=1e-5)


def test_fine_tuning_starts_from_the_encoder(tmp_path: Path) -> None:
    """Body and tokenizer of the masked language model; only the head is new."""
    first = train(tiny("mlm-wikitext2", tmp_path / "mlm-data", *PLAIN), tmp_path / "mlm", device="cpu")
    recipe = tiny(
        "classify-sst2", tmp_path / "data", *PLAIN, f"model.init={tmp_path / 'mlm'}", "train.learning_rate=1e-12"
    )
    train(recipe, tmp_path / "classifier", device="cpu")
    before, after = load_model(tmp_path / "mlm"), load_model(tmp_path / "classifier")
    body = before.model.state_dict()
    assert len(body) > 10
    for name, value in after.model.state_dict().items():
        assert torch.allclose(value, body[name], atol=1e-8), name
    assert after.config.num_labels == 2
    one, other = (AutoTokenizer.from_pretrained(tmp_path / run) for run in ("mlm", "classifier"))
    assert one.get_vocab() == other.get_vocab()
    assert encoder_of(one).fingerprint == encoder_of(other).fingerprint
    assert first.parameters > 0


def test_another_attention_is_refused_when_fine_tuning(tmp_path: Path) -> None:
    train(tiny("mlm-wikitext2", tmp_path / "mlm-data", "model.attention=softmax"), tmp_path / "mlm", device="cpu")
    recipe = tiny("classify-sst2", tmp_path / "data", f"model.init={tmp_path / 'mlm'}")
    with pytest.raises(ValueError, match=r"--set model\.attention=softmax"):
        train(recipe, tmp_path / "classifier", device="cpu")
