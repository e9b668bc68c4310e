"""The tokenizer of a run: bytes, learned from the training text (once, kept in the cache), or loaded."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cosformer.models import tokenizers
from cosformer.models.folders import whole_folder
from cosformer.models.tokenizers import byte_tokenizer
from cosformer.tasks import ExampleSource, LraSource, Source, TextSource, word_tokenizer
from cosformer.tasks.errors import piece_not_utf8
from cosformer.tasks.lra.vocabularies import MASK as TASK_MASK
from cosformer.tasks.lra.vocabularies import PAD
from cosformer.tasks.pieces import Piece
from cosformer.tasks.sources.source import stamp_hash
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.sources import file_name

SAMPLE = 256 << 20  # bytes of training text a vocabulary is learned from: more changes it little and costs memory
MASK = "<mask>"
TOLD_EVERY = 10.0  # seconds between words about learning
LEARNER = Path(__file__).with_name("learner.py")


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
            with whole_folder(folder) as scratch:
                if kind == "word":
                    _words(recipe, source).save_pretrained(scratch)
                else:
                    _pairs(recipe, source, folder, scratch, masks, said)
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


def _pairs(
    recipe: Recipe, source: Source, folder: Path, out: Path, masks: dict[str, Any], said: Callable[[str], None]
) -> None:
    wanted = recipe.tokenizer.vocab_size
    text = folder.parent / f".{folder.name}.{os.getpid()}.txt"
    try:
        with text.open("wb") as file:
            for piece in _training_text(source):
                file.write(piece)
                if file.tell() > SAMPLE:
                    break
            size = file.tell()
        if not size:
            raise BadRecipe(f"{source.name}: the training text is empty: there is nothing to learn a vocabulary from")
        said(f"learning {wanted:,} tokens from {_in_words(size)} of text")
        refused = _learn(text, out, wanted - len(masks), masks, said)
    finally:
        text.unlink(missing_ok=True)
    if refused is None:
        return
    if (few := re.search(r"gives only (\d+) tokens", refused)) is not None:
        most = int(few[1]) + len(masks)
        raise BadRecipe(
            f"tokenizer.vocab_size={wanted}, but the training text gives only {most} tokens (pairs seen twice or more, "
            f"joined until none is left): --set tokenizer.vocab_size={most} or less, tokenizer.kind=bytes, or more text"
        )
    raise BadRecipe(f"tokenizer.vocab_size={wanted}: {refused}")


def _learn(text: Path, out: Path, size: int, options: dict[str, Any], said: Callable[[str], None]) -> str | None:
    """In a process of its own, because learning hears no Ctrl-C for minutes. Gives the words of a refusal."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as answer,
        tempfile.TemporaryFile("w+", errors="replace") as wrong,
    ):
        process = subprocess.Popen(
            [sys.executable, "-P", str(LEARNER), tokenizers.__file__], stdin=subprocess.PIPE, stdout=answer,
            stderr=wrong, env=environment, start_new_session=True,  # Ctrl-C is for the parent, which then ends it
        )  # fmt: skip
        begin, told = time.monotonic(), json.dumps([str(text), str(out), size, options]) + "\n"
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # why it ended is told below
                process.stdin.write(told.encode())
                process.stdin.flush()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=TOLD_EVERY)
                    break
                said(f"learning {size + len(options):,} tokens: {time.monotonic() - begin:.0f} s so far")
        finally:
            process.kill()
            process.wait()
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        if code:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            wrong.seek(0)
            last = (wrong.read().strip().splitlines() or ["it said nothing"])[-1]
            raise ChildProcessError(f"the process that learns the vocabulary ended ({how}): {last}; was memory short?")
        answer.seek(0)
        return json.load(answer)


def _in_words(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.0f} {name}"
    return f"{size} bytes"


def _training_text(source: Source) -> Iterator[bytes]:
    if isinstance(source, TextSource):
        for piece in source.pieces("train"):
            try:
                piece.data.decode()
            except UnicodeDecodeError as error:
                raise piece_not_utf8(piece, error) from error
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
