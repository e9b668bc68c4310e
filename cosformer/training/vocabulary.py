"""The tokenizer of a run: bytes, learned from the training text (once, kept in the cache), or loaded."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cosformer.models.folders import whole_folder
from cosformer.models.tokenizers import byte_tokenizer, train_tokenizer
from cosformer.tasks import ExampleSource, LraSource, Source, TextSource, word_tokenizer
from cosformer.tasks.lra.vocabularies import MASK as TASK_MASK
from cosformer.tasks.lra.vocabularies import PAD
from cosformer.tasks.pieces import Piece
from cosformer.tasks.sources.source import stamp_hash
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.sources import file_name

SAMPLE = 256 << 20  # bytes of training text a vocabulary is learned from: more changes it little and costs memory
MASK = "<mask>"


def tokenizer_of(recipe: Recipe, source: Source, cache: Path, said: Callable[[str], None]) -> Any:
    """Ready to save beside the model. A model that is started from brings its own."""
    if recipe.tokenizer.kind == "task" and not isinstance(source, LraSource):
        raise BadRecipe(f"tokenizer.kind='task', but {source.name} brings no tokens of its own: use bytes, bpe or word")
    if recipe.model.init:
        return load_tokenizer(recipe.model.init, "model.init")
    kind = recipe.tokenizer.kind
    masks: dict[str, Any] = {"mask_token": MASK} if recipe.task == "mlm" else {}
    if kind == "path":
        return load_tokenizer(recipe.tokenizer.path, "tokenizer.path")
    if isinstance(source, LraSource) and kind == "task":
        return _of_task(source)
    if kind == "bytes":
        return byte_tokenizer(**masks)
    settings = [kind, recipe.tokenizer.vocab_size, sorted(masks), source.name, source.stamp("train")]
    folder = cache / "tokenizers" / f"{kind}-{file_name(source)}-{stamp_hash(settings)[:16]}"
    with _locked(folder):
        if not folder.is_dir():
            said(f"learning a vocabulary ({kind}) from the training text")
            made = _words(recipe, source) if kind == "word" else _pairs(recipe, source, folder, masks)
            with whole_folder(folder) as scratch:
                made.save_pretrained(scratch)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_tokenizer(folder: str, option: str) -> Any:
    if not Path(folder).expanduser().is_dir():  # else it is taken for a name of a hub
        raise BadRecipe(f"{option}={folder!r} is no folder that is there: name one with a model or a tokenizer")
    try:
        return AutoTokenizer.from_pretrained(Path(folder).expanduser(), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        why = str(error).splitlines()[0]
        raise BadRecipe(
            f"{option}={folder!r} holds no tokenizer that loads ({why}): name a folder that has one"
        ) from error


def _of_task(source: LraSource) -> Any:
    """With a token for masks, whatever the task: what is pre-trained and what is not have the same weights."""
    if source.tokenizer is None:
        return byte_tokenizer(mask_token=MASK)
    return PreTrainedTokenizerFast(
        tokenizer_object=source.tokenizer(), pad_token=PAD, mask_token=TASK_MASK, padding_side="right",
        model_input_names=["input_ids", "attention_mask"], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _words(recipe: Recipe, source: Source) -> Any:
    if not isinstance(source, TextSource):
        raise BadRecipe(f"tokenizer.kind='word' is for running text, and {source.name} has examples: use bpe or bytes")
    inner = word_tokenizer(source.pieces("train"), most=recipe.tokenizer.vocab_size or None)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _pairs(recipe: Recipe, source: Source, folder: Path, masks: dict[str, Any]) -> Any:
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.parent / f".{folder.name}.{os.getpid()}.txt"
    try:
        with text.open("wb") as file:
            for piece in _training_text(source):
                file.write(piece)
                if file.tell() > SAMPLE:
                    break
        return train_tokenizer([text], recipe.tokenizer.vocab_size - len(masks), **masks)
    finally:
        text.unlink(missing_ok=True)


def _training_text(source: Source) -> Iterator[bytes]:
    if isinstance(source, TextSource):
        for piece in source.pieces("train"):
            yield _ended(piece)
    else:
        assert isinstance(source, ExampleSource)
        for example in source.examples("train"):
            for text in example.texts:
                yield text.encode("utf-8", "replace") + b"\n"


def _ended(piece: Piece) -> bytes:
    return piece.data + b"\n" if piece.last and not piece.data.endswith(b"\n") else piece.data


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One learner at a time; others wait and find the work done. The system frees it when a process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not POSIX: whole_folder refuses the second of two at once
        yield
        return
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
