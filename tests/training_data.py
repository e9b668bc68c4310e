"""Small data in the layout of every source, and overrides that make any recipe small."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cosformer.training import Recipe, load_recipe

WORDS = (
    "the", "a", "small", "large", "red", "blue", "cat", "dog", "house", "tree", "runs", "sleeps", "sees", "likes",
    "under", "over", "near", "with", "and", "but", "then",
)  # fmt: skip
TINY = (
    "model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.intermediate_size=32",
    "data.length=32", "data.target_length=0", "model.horizon=64", "train.batch=4", "train.micro_batch=0",
    "train.warmup_steps=1", "train.log_every=1", "train.save_every=100", "eval.every=2", "eval.batches=2",
    "eval.batch=4", "sample.tokens=3", "train.steps=2",
)  # fmt: skip


def sentence(chance: random.Random, words: int = 8) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def text(seed: int, lines: int = 200) -> str:
    chance = random.Random(seed)
    return "".join(f" {sentence(chance)} .\n" for _ in range(lines))


def make_data(source: str, folder: Path) -> list[str]:
    """Files in the published layout of a source; what --data is given."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    rows = [(sentence(chance), sentence(chance), i % 2) for i in range(60)]
    if source in ("stdlib", "enwik8"):
        return _stdlib(folder) if source == "stdlib" else []
    if source.startswith("wikitext"):
        for split, lines in (("train", 400), ("valid", 60), ("test", 60)):
            (folder / f"wiki.{split}.tokens").write_text(text(len(split), lines))
    elif source == "sst2":
        _tsv(folder, ["train", "dev"], ["sentence", "label"], [(a, c) for a, _, c in rows])
    elif source == "qqp":
        _tsv(folder, ["train", "dev"], ["question1", "question2", "is_duplicate"], rows)
    elif source == "mnli":
        names = ("entailment", "neutral", "contradiction")
        _tsv(folder, ["train", "dev_matched"], ["sentence1", "sentence2", "gold_label"],
             [(a, b, names[i % 3]) for i, (a, b, _) in enumerate(rows)])  # fmt: skip
    elif source == "imdb":
        for part in ("train", "test"):
            lines = [json.dumps({"text": a, "label": c}) for a, _, c in rows]
            (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    elif source == "amazon":
        for part in ("train", "test"):
            (folder / f"{part}.csv").write_text("".join(f'"{c + 1}","{a}","{b}"\n' for a, b, c in rows * 3))
    elif source == "multi30k":
        for split, lines in (("train", 60), ("val", 10), ("test_2016_flickr", 10)):
            for language in ("de", "en"):
                (folder / f"{split}.{language}").write_text("".join(f"{a}\n" for a, _, _ in rows[:lines]))
    elif source in ("lra-listops", "lra-pathfinder"):
        return []
    elif source == "lra-text":
        return make_data("imdb", folder)
    elif source == "lra-retrieval":
        for name in ("train", "eval", "test"):
            lines = [f"{c}.0\t{i}\t{i}\t{a}\t{b}" for i, (a, b, c) in enumerate(rows)]
            (folder / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n")
    elif source == "lra-image":
        made = np.random.default_rng(0)
        pictures, labels = made.integers(0, 256, (40, 1024), np.uint8), np.arange(40, dtype=np.uint8) % 10
        np.savez(folder / "cifar10-gray.npz", x_train=pictures, y_train=labels, x_test=pictures, y_test=labels)
    elif source == "text":
        (folder / "mine.txt").write_text(text(1, 400))
        return [str(folder / "mine.txt")]
    elif source == "examples":
        lines = [json.dumps({"text": a, "label": "yes" if c else "no"}) for a, _, c in rows * 2]
        (folder / "mine.jsonl").write_text("\n".join(lines) + "\n")
        return [str(folder / "mine.jsonl")]
    else:
        raise ValueError(source)
    return [str(folder)]


def _stdlib(folder: Path) -> list[str]:
    for i in range(60):
        (folder / f"module_{i}.py").write_text(text(i, 8))
    return [str(folder)]


def _tsv(folder: Path, names: list[str], head: list[str], rows: Sequence[tuple[object, ...]]) -> None:
    for name in names:
        lines = ["\t".join(head), *("\t".join(str(cell) for cell in row) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def tiny(name: str, folder: Path, *more: str) -> Recipe:
    """A shipped recipe, small, on data made in `folder`."""
    recipe = load_recipe(name)
    paths = make_data(recipe.data.source, folder)
    small = [*TINY, f"data.path={json.dumps(paths)}"]
    if recipe.data.source in ("lra-listops", "lra-pathfinder"):
        small.append("data.sizes=[24, 8, 8]")
    if recipe.tokenizer.kind == "bpe":
        small.append("tokenizer.vocab_size=270")
    return recipe.with_values([*small, *more])
