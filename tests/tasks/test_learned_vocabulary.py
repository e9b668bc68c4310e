"""A vocabulary learned from the user's own text: told while it is learned, ended by Ctrl-C, refused in words."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cosformer.models import tokenizers, train_tokenizer
from cosformer.tasks import BadData, TextFiles
from cosformer.training import load_recipe, vocabulary
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.vocabulary import tokenizer_of

WORDS = "".join(f"some words number {i % 97} and {i % 31} of them\n" for i in range(2000))


def recipe(size: int, *more: str):
    return load_recipe("lm-text", "tokenizer.kind=bpe", f"tokenizer.vocab_size={size}", *more)


def source(folder: Path, text: bytes = WORDS.encode()) -> TextFiles:
    folder.mkdir(exist_ok=True)
    (folder / "mine.txt").write_bytes(text)
    return TextFiles([folder / "mine.txt"])


def replaced(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> None:
    (folder / "learner.py").write_text(program)
    monkeypatch.setattr(vocabulary, "LEARNER", folder / "learner.py")


def test_it_is_that_of_train_tokenizer_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "TOLD_EVERY", 0.05)
    told: list[str] = []
    own = source(tmp_path / "data")
    made = tokenizer_of(recipe(300), own, tmp_path / "cache", told.append)
    (tmp_path / "train.txt").write_bytes(b"".join(piece.data for piece in own.pieces("train")))
    assert made.get_vocab() == train_tokenizer([tmp_path / "train.txt"], 300).get_vocab()
    assert "learning 300 tokens from 64 kB of text" in told
    assert any(re.fullmatch(r"learning 300 tokens: \d+ s so far", words) for words in told)
    kept = [path.name for path in (tmp_path / "cache" / "tokenizers").iterdir()]
    assert len(kept) == 2  # the folder and its lock
    told.clear()
    assert tokenizer_of(recipe(300), own, tmp_path / "cache", told.append).get_vocab() == made.get_vocab()
    assert told == []


def test_the_byte_that_is_no_text_is_told_by_file_and_line(tmp_path: Path) -> None:
    own = source(tmp_path / "data", WORDS.encode() + b"latin \xe9t\xe9\n" + WORDS.encode())
    words = re.escape(f"{tmp_path / 'data' / 'mine.txt'}, line 2001: byte 0xe9 is not UTF-8")
    with pytest.raises(BadData, match=words):
        tokenizer_of(recipe(300), own, tmp_path / "cache", lambda _: None)
    assert [p for p in (tmp_path / "cache" / "tokenizers").iterdir() if p.suffix != ".lock"] == []


@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_too_little_text_names_the_field_and_the_number(tmp_path: Path, task: str) -> None:
    own = source(tmp_path / "data", b"abcd\n" * 200)
    more = [] if task == "lm" else ["task=mlm", "sample.prompts=[]"]
    with pytest.raises(BadRecipe, match=r"tokenizer.vocab_size=8192, but the training text gives only") as error:
        tokenizer_of(recipe(8192, *more), own, tmp_path / "cache", lambda _: None)
    most = re.search(r"--set tokenizer.vocab_size=(\d+) or less", str(error.value))
    assert most is not None
    assert len(tokenizer_of(recipe(int(most[1]), *more), own, tmp_path / "cache", lambda _: None)) == int(most[1])


def test_an_interrupt_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, tmp_path, "import sys, time; sys.stdin.readline(); time.sleep(60)")
    monkeypatch.setattr(vocabulary, "TOLD_EVERY", 0.1)
    learning = threading.Event()

    def said(words: str) -> None:
        if "so far" in words and not learning.is_set():
            learning.set()
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    begin, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            tokenizer_of(recipe(300), source(tmp_path / "data"), tmp_path / "cache", said)
    finally:
        signal.signal(signal.SIGINT, before)
    assert learning.is_set()
    assert time.monotonic() - begin < 30
    assert [p.name for p in (tmp_path / "cache" / "tokenizers").iterdir() if p.suffix != ".lock"] == []


def test_a_learner_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
    replaced(monkeypatch, tmp_path, dies)
    with pytest.raises(ChildProcessError, match=r"ended \(killed by SIGKILL\): it said nothing; was memory short"):
        tokenizer_of(recipe(300), source(tmp_path / "data"), tmp_path / "cache", lambda _: None)
    replaced(monkeypatch, tmp_path, "raise SystemError('out of order')")
    with pytest.raises(ChildProcessError, match=r"exit status 1\): SystemError: out of order"):
        tokenizer_of(recipe(300), source(tmp_path / "data"), tmp_path / "cache", lambda _: None)


def test_a_learner_ends_with_its_parent(tmp_path: Path) -> None:
    task = json.dumps([str(tmp_path / "pipe"), str(tmp_path / "out"), 300, {}]) + "\n"
    os.mkfifo(tmp_path / "pipe")  # is_file() is False for it, and reading it waits
    command = [sys.executable, "-P", str(vocabulary.LEARNER), tokenizers.__file__]
    learner = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert learner.stdin is not None
    learner.stdin.write(task.encode())
    learner.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        learner.wait(timeout=2)
    learner.stdin.close()
    assert learner.wait(timeout=20) == 1
