"""How a training run is shown: a live line on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from cosformer.tasks import Progress
from cosformer.training import Watch

ARROW = " → "
LINES = 30  # of the log, by whose pace the time left is told


class Shown(Watch):
    """Everything a run tells, in words."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.metric = ""
        self.steps = self.start = 0
        self.seen: deque[tuple[int, float]] = deque(maxlen=LINES)
        """Steps and times of the last lines of the log."""
        self.reading: dict[str, int] = {}
        self.between = ""
        """What stands between a sample's prompt and its text: a translation does not go on from its source."""

    def said(self, words: str) -> None:
        self.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def preparing(self, progress: Progress) -> None:
        if progress.done:  # what was expected is a guess of tables and of cut texts: no share need come to all of it
            self.said(f"tokenised {progress.split}: {progress.bytes:,} bytes")
            return
        done = progress.bytes * 20 // progress.expected if progress.expected else progress.shards
        if self.reading.get(progress.split) != done:  # a line for every twentieth
            self.reading[progress.split] = done
            whole = f" of {max(progress.expected, progress.bytes):,}" if progress.expected else ""
            self.said(f"tokenising {progress.split}: {progress.bytes:,}{whole} bytes")

    def starting(self, facts: dict[str, Any]) -> None:
        self.steps, self.start, self.metric = facts["steps"], facts["start"], ""
        self.between = ARROW if facts["task"] == "translate" else ""
        self.seen = deque([(self.start, time.monotonic())], maxlen=LINES)
        data, splits = facts["data"], facts["data"]["splits"]
        sizes = ", ".join(f"{split} {d['tokens']:,} tokens" for split, d in splits.items())
        how = f"{facts['device']}, {facts['precision']}{', compiled' if facts['compiled'] else ''}"
        processes = f", {facts['processes']} processes" if facts["processes"] > 1 else ""
        self.said(f"{facts['recipe']} → {facts['out']}: {facts['parameters']:,} parameters, {how}{processes}")
        if data["classes"]:
            sizes += f"; {len(data['classes'])} classes ({_few(data['classes'])})"
        self.said(f"{data['name']}: {sizes}; {facts['steps']:,} steps, {facts['steps_per_epoch']:,} make an epoch")
        if self.start:
            self.said(f"going on after step {self.start:,}")
        if self.live:
            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self.bar = Bar(*columns, console=self.console)
            self.task = self.bar.add_task("", total=self.steps, completed=self.start)
            self.bar.start()

    def line(self, line: dict[str, Any]) -> None:
        kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "train": self._train, "eval": self._eval, "sample": self._sample,
        }  # fmt: skip
        if show := kinds.get(line["kind"]):
            show(line)

    def _train(self, line: dict[str, Any]) -> None:
        words = f"loss {line['loss']:.4f}{self.metric}  {line['tokens_per_second']:,.0f} tokens/s"
        if line["share_of_peak"] is not None:
            words += f"  {line['share_of_peak']:.0%} of peak"
        words += f"  {_bytes(line['memory_bytes'])}"
        words += f"  {_time(self._left(line['step']))} left"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=line["step"], description=words)
        else:
            self.said(f"step {line['step']:,}/{self.steps:,}  {words}  rate {line['learning_rate']:.2e}")

    def _left(self, step: int) -> float:
        """By the pace of the last lines of the log. The first window compiles and warms up: it counts while alone."""
        self.seen.append((step, time.monotonic()))
        if len(self.seen) == 3 and self.seen[0][0] == self.start:
            self.seen.popleft()
        (first, begin), (last, end) = self.seen[0], self.seen[-1]
        return (end - begin) / max(1, last - first) * (self.steps - step)

    def _eval(self, line: dict[str, Any]) -> None:
        if "bits_per_byte" in line:
            self.metric = f"  {line['split']} {line['bits_per_byte']:.3f} bits/byte"
        elif "accuracy" in line:
            low, high = line["accuracy_low"], line["accuracy_high"]
            self.metric = f"  {line['split']} {line['accuracy']:.1%} right"
            self.said(f"step {line['step']:,}  {line['split']}: {line['accuracy']:.2%} right ({low:.1%}–{high:.1%}), "
                      f"loss {line['loss']:.4f}")  # fmt: skip
            return
        else:
            self.metric = f"  {line['split']} perplexity {line['perplexity']:.2f}"
        words = f"step {line['step']:,}{self.metric}, loss {line['loss']:.4f}"
        if "bits_per_byte" in line:
            words += f", perplexity {line['perplexity']:.2f}"
        if "unknown_share" in line:
            words += f", {line['unknown_share']:.1%} of its tokens <unk>: no bits per byte"
        self.said(words)

    def _sample(self, line: dict[str, Any]) -> None:
        prompt, text = harmless(line["prompt"]), harmless(line["text"])
        self.console.print(f"[dim]{escape(prompt)}[/dim]{self.between}{escape(text)}", highlight=False)

    def stopped(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def harmless(text: str) -> str:
    """What a model writes may hold codes that a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
