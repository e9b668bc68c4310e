"""evaluate(): how good the model of a run is on a split, with all that makes the number comparable."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cosformer.bench.environment import known_device, provenance
from cosformer.models.writing import load_model, load_tokenizer
from cosformer.tasks import ExampleSource, LossSum, Progress, bleu
from cosformer.tasks.errors import OptionOfTraining
from cosformer.tasks.shards.atomic import write_atomically
from cosformer.tasks.sources.files import find_files
from cosformer.training.data import RunData, open_data
from cosformer.training.held_out import chosen_batches, held_out, on_device
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.run_folder import SUMMARY, RunSummary, stored_recipe
from cosformer.training.sources import OWN, source_of

TEST = "test"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    split: str = ""
    """None named: test where there is one (with labels), else that of periodic evaluation."""
    path: tuple[str, ...] = ()
    """Where the data lies now, if not where it lay in training."""
    test_path: tuple[str, ...] = ()
    """Files of one's own to test on, all of them, whatever was held out in training."""
    context: int = 0
    """Tokens read at once; 0: as in training."""
    stride: int = 0
    """Of language models: how far the next window is; 0: half the context."""
    batch: int = 0
    """Sequences at once; 0: as in training."""
    batches: int = 0
    """At most so many, spread over the split; 0: all of it."""
    beams: int = 1
    """Of translation."""

    def __post_init__(self) -> None:
        for name in ("context", "stride", "batch", "batches"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: a count; leave it out for the usual one")
        if self.beams < 1:
            raise ValueError(f"beams={self.beams}: 1 writes the likeliest token each time")


def evaluate(
    run: str | Path, settings: EvalSettings | None = None, *, device: str = "auto", cache: str | Path | None = None,
    done: Callable[[int, int], None] = lambda _, __: None, preparing: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Metrics of the model in a run folder; also written there (`file`; None where it cannot be): eval-<split>.json, or
    of files of one's own eval-<split>-own.json, of some batches eval-<split>-part.json.

    Bits per byte, perplexity per token and per word of a language model (where words became <unk>: per token alone, and
    `unknown_share`); perplexity of the guessed tokens of a masked one; accuracy with Wilson's 95% interval; BLEU
    (sacrebleu) of a translation. done: told of batches.
    """
    run, settings = Path(run), settings or EvalSettings()
    recipe = stored_recipe(run)
    if recipe is None or not (run / "config.json").is_file():
        raise ValueError(
            f"{run} holds no finished run (recipe.toml and a model): name the folder that `cosformer train` made, or "
            f"end the run with `cosformer train --out {run} --resume`"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(known_device(device))
    if settings.path:
        recipe = replace(recipe, data=replace(recipe.data, path=settings.path))
    if settings.test_path:
        if recipe.data.source not in ("text", "examples"):
            raise ValueError(
                f"--test-data (test_path): the run is of {recipe.data.source}, which has files of its own; leave it out"
            )
        find_files(settings.test_path, option="--test-data")  # they stand in for the training files, named --data
        path = settings.path or settings.test_path  # those of training are not wanted, and may be gone
        recipe = replace(recipe, data=replace(recipe.data, path=path, test_path=settings.test_path))
        settings = replace(settings, split=settings.split or TEST)
    model = load_model(run, device=str(where), dtype=torch.float32)
    tokenizer = load_tokenizer(run, model.config)
    try:
        split, settings, data = _opened(recipe, settings, model, tokenizer, run, cache, preparing)
    except OptionOfTraining as error:
        raise error.evaluating() from error
    dataset = data.dataset(split, stride=settings.stride or None, length=settings.context)
    bf16 = recipe.train.precision == "bf16" or (recipe.train.precision == "auto" and where.type == "cuda")

    def autocast() -> Any:
        return torch.autocast(where.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()

    metrics: dict[str, Any] = held_out(
        model, data, split, batch=settings.batch, batches=settings.batches, device=where, autocast=autocast,
        dataset=dataset, length=settings.context, done=done,
    )  # fmt: skip
    if recipe.task == "lm" and not settings.batches and not recipe.data.pack:
        tokens = round(metrics["tokens"])
        whole = LossSum(nats=metrics["loss"] * tokens, tokens=tokens)
        metrics |= whole.of_text(data.shards[split].manifest)
    if recipe.task == "translate":
        with autocast():
            metrics |= _translated(model, data, split, settings, where, done)
    facts = data.facts()["splits"][split]
    result = {
        "evaluation": run.name, "recipe": recipe.name, "task": recipe.task, "split": split, "data": data.source.name,
        "text_sha256": facts["text_sha256"], "settings": _shown(recipe, settings), "how": in_words(recipe, settings),
        "precision": "bf16" if bf16 else "fp32", "metrics": metrics, "step": _step(run),
        **provenance(str(where)),
    }  # fmt: skip
    file = run / _file_name(split, settings)
    try:
        write_atomically(file, [(json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode()])
    except OSError:  # a run of someone else's, a full disk: the numbers are not lost for that
        return result | {"file": None}
    return result | {"file": str(file)}


def _file_name(split: str, settings: EvalSettings) -> str:
    """Tables of runs read eval-<split>.json as the number of the run's own data: nothing else is written there."""
    own, part = "-own" if settings.test_path else "", "-part" if settings.batches else ""
    return f"eval-{split}{own}{part}.json"


def _opened(
    recipe: Recipe, settings: EvalSettings, model: Any, tokenizer: Any, run: Path, cache: str | Path | None,
    preparing: Callable[[Progress], None],
) -> tuple[str, EvalSettings, RunData]:  # fmt: skip
    """The split, the settings with every blank filled in, and the data; refuses what cannot be read so."""
    if recipe.task == "classify" and recipe.data.source in OWN and not recipe.data.classes:
        classes = tuple(model.config.id2label[i] for i in range(model.config.num_labels))
        recipe = replace(recipe, data=replace(recipe.data, classes=classes))  # these files may lack one of them
    split = settings.split or (TEST if TEST in source_of(recipe).splits else recipe.data.valid_split)
    context = settings.context or recipe.data.length
    if model.config.has_longest and context > model.config.horizon:
        raise ValueError(
            f"context={context}, but the model's horizon is {model.config.horizon}: it reads no further; use a "
            "shorter context"
        )
    windows = recipe.task == "lm" and not recipe.data.pack
    if settings.stride and not windows:
        raise ValueError(f"stride={settings.stride}: only text that streams through windows has one; leave it out")
    if settings.beams > 1 and recipe.task != "translate":
        raise ValueError(f"beams={settings.beams}: only translation writes; leave it out")
    stride = settings.stride or max(1, context // 2) if windows else 0
    if stride > context:
        raise ValueError(f"stride={stride} is longer than the context of {context}: tokens would be passed over")
    filled = replace(
        settings, split=split, context=context, stride=stride,
        batch=settings.batch or recipe.eval.batch or recipe.train.batch,
    )  # fmt: skip
    folder = Path(cache) if cache is not None else run.parent / "data-cache"
    data = open_data(recipe, folder, splits=[split], tokenizer=tokenizer, progress=preparing)
    if recipe.task == "classify" and tuple(data.classes) != tuple(
        model.config.id2label[i] for i in range(model.config.num_labels)
    ):
        raise BadRecipe(
            f"the data has the classes {', '.join(data.classes)}, the model "
            f"{', '.join(map(str, model.config.id2label.values()))}: evaluate on data of the same classes"
        )
    return split, filled, data


@torch.no_grad()
def _translated(
    model: Any, data: RunData, split: str, settings: EvalSettings, device: torch.device,
    done: Callable[[int, int], None],
) -> dict[str, float | str]:  # fmt: skip
    """BLEU against the texts as they are, not as they were cut for training."""
    assert isinstance(data.source, ExampleSource)
    dataset, tokenizer = data.dataset(split, length=settings.context), data.tokenizer
    collate = data.collator(settings.context)
    true = [example.texts[1] for example in data.source.examples(split)]
    spread = chosen_batches(len(dataset), settings.batch, settings.batches, data.recipe.seed)
    chosen = [i for batch in spread for i in batch]
    longest = data.recipe.data.target_length or data.recipe.data.length
    if model.config.has_longest:
        longest = min(longest, model.config.horizon)
    order = sorted(chosen, key=lambda i: len(dataset[i]["input_ids"]))  # texts of one length pad little
    said: dict[int, str] = {}
    for first in range(0, len(order), settings.batch):
        part = order[first : first + settings.batch]
        inputs = on_device(collate([dataset[i] for i in part]), device)
        out = model.generate(
            inputs["input_ids"], attention_mask=inputs.get("attention_mask"), max_new_tokens=longest,
            num_beams=settings.beams, do_sample=False,
        )  # fmt: skip
        said |= zip(part, tokenizer.batch_decode(out, skip_special_tokens=True), strict=True)
        done(len(said), len(order))
    return bleu([said[i].strip() for i in chosen], [true[i].strip() for i in chosen])


def _shown(recipe: Recipe, settings: EvalSettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "context": settings.context, "batch": settings.batch, "batches": settings.batches or "all",
    }  # fmt: skip
    if settings.stride:
        found["stride"] = settings.stride
    return found | ({"beams": settings.beams} if recipe.task == "translate" else {})


def in_words(recipe: Recipe, settings: EvalSettings) -> str:
    """How the number came about, for the people who compare it."""
    part = (
        f"{settings.batches} batches spread over {settings.split}" if settings.batches else f"all of {settings.split}"
    )
    if recipe.task == "classify":
        return f"{part}; texts cut to {settings.context} tokens"
    if recipe.task == "translate":
        how = "the likeliest token each time" if settings.beams == 1 else f"{settings.beams} beams"
        return f"{part}; sources cut to {settings.context} tokens; {how}; references as they are"
    if recipe.task == "mlm":
        share = f"{recipe.data.mask_share:.0%} of the tokens guessed, always the same ones"
        return f"{part}; contexts of {settings.context}, {share}"
    if recipe.data.pack:
        return f"{part}; whole documents in rows of {settings.context}"
    least = settings.context - settings.stride
    before = "" if not least else f": after the first window every token has more than {least:,} before it"
    return f"{part}; contexts of {settings.context:,}, stride {settings.stride:,}{before}"


def _step(run: Path) -> int | None:
    """Which step's weights are in the folder."""
    if not (run / SUMMARY).is_file():
        return None
    summary = RunSummary.read(run)
    return summary.best_step or summary.steps


def own_numbers(metrics: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Metrics for people, best known first."""
    order = (
        "bits_per_byte", "perplexity", "word_perplexity", "unknown_share", "accuracy", "f1", "bleu", "loss", "tokens",
        "examples",
    )  # fmt: skip
    shown = []
    for name in order:
        if name not in metrics:
            continue
        value = metrics[name]
        text = f"{value:,.0f}" if name in ("tokens", "examples") else f"{value:.4g}"
        if name == "accuracy":
            text = f"{value:.2%} (95%: {metrics['accuracy_low']:.2%} to {metrics['accuracy_high']:.2%})"
        if name == "unknown_share":
            text = f"{value:.2%} of the tokens are <unk>: no bits per byte"
        shown.append((name.replace("_", " "), text))
    return [*shown, *([("signature", metrics["signature"])] if "signature" in metrics else [])]
