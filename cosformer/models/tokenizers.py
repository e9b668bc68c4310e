"""Tokenizers of transformers that need no download: bytes as they are, and byte-pair encoding learned from local text.

Both know <pad> (0), <bos> (1) and <eos> (2), then the 256 bytes (3 + byte). Both give back every text exactly: text is
never read as a special token, so a document may contain the word "<eos>".
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIALS = ("<pad>", "<bos>", "<eos>")
FIRST_BYTE = len(SPECIALS)
SMALLEST = FIRST_BYTE + 256
PIECE = 1 << 20  # bytes read at a time


def byte_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """259 tokens: id = 3 + byte. `options` are those of PreTrainedTokenizerFast; it pads on the left unless told."""
    return _finished([], [], options)


def text_files(sources: Sequence[Path]) -> list[Path]:
    """The files named, and all files below the folders named, in order of name; hidden ones left out."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            below = (p for p in sorted(source.rglob("*")) if p.is_file())
            found = [p for p in below if not any(part.startswith(".") for part in p.relative_to(source).parts)]
            if not found:
                raise FileNotFoundError(f"{source} holds no files: name a folder with text, or the files themselves")
            files += found
        elif source.is_file():
            files.append(source)
        else:
            raise FileNotFoundError(f"{source} is not there: name text files, or folders that hold them")
    if not files:
        raise FileNotFoundError("no text was named: give files, or folders that hold them")
    return files


def train_tokenizer(
    files: Iterable[Path], vocab_size: int, *, min_frequency: int = 2, read: Callable[[int], None] = lambda _: None,
    progress: bool = False, **options: Any,
) -> PreTrainedTokenizerFast:  # fmt: skip
    """Byte-pair encoding with exactly `vocab_size` tokens, specials and bytes among them. Files are UTF-8.

    `read` is told how many bytes were read since the last call; `progress` shows the bars of `tokenizers` itself.
    """
    if vocab_size < SMALLEST:
        raise ValueError(
            f"vocab_size={vocab_size}: {FIRST_BYTE} special tokens and 256 bytes come first; ask for more than "
            f"{SMALLEST}, or use byte_tokenizer()"
        )
    inner: Any = Tokenizer(models.BPE())
    inner.pre_tokenizer = _byte_level(words=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, show_progress=progress, special_tokens=list(SPECIALS),
        initial_alphabet=list(bytes_to_unicode().values()),
    )  # fmt: skip
    lines = _Lines(files, read)
    inner.train_from_iterator(lines, trainer)
    if not lines.letters:
        raise ValueError("the text is empty: there is nothing to learn a vocabulary from")
    if inner.get_vocab_size() < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size}, but this text gives only {inner.get_vocab_size()} tokens (pairs seen at least "
            f"{min_frequency} times, joined until none is left): ask for at most that many, or give more text"
        )
    learned = json.loads(inner.to_str())["model"]
    joined = sorted(learned["vocab"], key=learned["vocab"].__getitem__)[SMALLEST:]
    return _finished(joined, [tuple(pair) for pair in learned["merges"]], options)


class _Lines:
    """The lines of UTF-8 files, each counted; a line longer than a piece comes in parts."""

    def __init__(self, files: Iterable[Path], read: Callable[[int], None]) -> None:
        self.files, self.read, self.letters = files, read, 0

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            decoder = codecs.getincrementaldecoder("utf-8")()
            with file.open("rb") as stream:
                while raw := stream.readline(PIECE):
                    try:
                        line = decoder.decode(raw)
                    except UnicodeDecodeError as error:
                        raise ValueError(
                            f"{file} is not UTF-8 text ({error.reason}): convert it, or leave it out"
                        ) from error
                    self.read(len(raw))
                    self.letters += len(line)
                    yield line


def put_around(tokenizer: Any, begin: int | None, end: int | None) -> None:
    """What a tokenizer puts before a text and after each of one or two, in place of what it put there so far."""
    first, last = ([] if mark is None else [tokenizer.convert_ids_to_tokens(mark)] for mark in (begin, end))
    marks = list(dict.fromkeys([*first, *last]))
    tokenizer.backend_tokenizer.post_processor = None if not marks else processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, "$B", *last],
        special_tokens=[(mark, tokenizer.convert_tokens_to_ids(mark)) for mark in marks],
    )  # fmt: skip


def _finished(joined: list[str], merges: list[tuple[str, str]], options: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Specials, bytes in their order, then what was joined, wrapped for transformers."""
    letters = bytes_to_unicode()
    names = [*SPECIALS, *(letters[byte] for byte in range(256)), *joined]
    inner: Any = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    inner.pre_tokenizer = _byte_level(words=bool(merges))  # without merges, words would only cost time
    inner.decoder = decoders.ByteLevel()
    pad, bos, eos = SPECIALS
    defaults: dict[str, Any] = {
        "pad_token": pad, "bos_token": bos, "eos_token": eos, "padding_side": "left", "split_special_tokens": True,
        "clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"],
    }  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=inner, **defaults | options)


def _byte_level(*, words: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
