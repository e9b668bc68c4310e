"""The tables of a comparison, for the page and for Markdown alike."""

import math
from collections.abc import Callable

from cosformer.compare.crossover import Crossover, crossovers
from cosformer.compare.looks import ordered
from cosformer.compare.quality import Quality, Row
from cosformer.compare.results import DONE, WAITING, Cell, Result
from cosformer.compare.settings import BASELINES, MODES, WORKS
from cosformer.report.charts import short
from cosformer.report.tables import Entry, Table

WHAT = {
    "us_per_token": ("Time of a token (µs)", "faster", "time"),
    "bytes_per_token": ("Memory of a token (KiB, at the peak of a call)", "smaller", "memory"),
}
"""What is measured: as a caption, as a comparison, as a part of a name."""
UNITS = {"us_per_token": 1.0, "bytes_per_token": 1024.0}
WORK_WORDS = {"forward": "forward", "training": "forward and backward"}


def measured_modes(result: Result) -> list[str]:
    return [mode for mode in MODES if any(cell.mode == mode for cell in result.cells.values())]


def over_length(result: Result, mode: str, work: str, what: str) -> Table:
    """A row for each attention, a column for each length; beside a number, how many times better than softmax."""
    lengths, baseline = result.lengths(), result.baseline(mode, work, what)
    rows = []
    for attention in ordered(result.attentions()):
        cells = {cell.length: cell for cell in result.of(attention, mode, work)}
        row = [Entry(attention)]
        for length in lengths:
            row.append(_cell_entry(cells.get(length), what, baseline.get(length), attention in BASELINES))
        rows.append(row)
    for column in range(1, len(lengths) + 1):
        _mark_best(rows, column, min)
    caption = f"{WHAT[what][0]}: {mode}, {WORK_WORDS[work]}"
    return Table(
        identity=f"{WHAT[what][2]}-{mode}-{work}", caption=caption, columns=["attention", *(f"{n:,}" for n in lengths)],
        rows=rows,
    )  # fmt: skip


def _cell_entry(cell: Cell | None, what: str, softmax: float | None, is_softmax: bool) -> Entry:
    if cell is None:
        return Entry("–")
    value = getattr(cell, what)
    if value is None:
        return Entry("–" if cell.state in (DONE, WAITING) else cell.state, why=cell.why)
    ratio = f"{short(float(f'{softmax / value:.2g}'))}×" if softmax and value and not is_softmax else ""
    why = ""
    if what == "us_per_token" and cell.ms is not None and cell.spread is not None:
        low, high = cell.spread
        why = f"{short(cell.ms)} ms a call of {cell.batch:,} × {cell.length:,} tokens, middle half {short(low)} to "
        why += f"{short(high)} of {len(cell.samples)}"
    return Entry(short(value / UNITS[what]), value=value, note=ratio, why=why)


def _mark_best(rows: list[list[Entry]], column: int, choose: Callable[[list[float]], float]) -> None:
    values = [row[column].value for row in rows]
    found = [x for x in values if x is not None]
    if len(found) < 2:
        return
    best = choose(found)
    for row in rows:
        entry = row[column]
        if entry.value == best:
            row[column] = Entry(entry.text, value=entry.value, note=entry.note, why=entry.why, best=True)


def crossover_table(result: Result, what: str) -> Table:
    """From which length on each attention takes less than softmax, by mode and work."""
    kinds = [(mode, work) for mode in measured_modes(result) for work in WORKS]
    rows = []
    for attention in ordered(result.attentions()):
        if attention in BASELINES:
            continue
        found = [crossovers(result, attention, mode, work, what) for mode, work in kinds]
        rows.append([Entry(attention), *(_crossover_entry(one) for one in found)])
    return Table(
        identity=f"crossover-{WHAT[what][2]}",
        caption=f"Tokens of a sequence from which on it is {WHAT[what][1]} than softmax",
        columns=["attention", *(f"{mode}, {work}" for mode, work in kinds)], rows=rows,
    )  # fmt: skip


def _crossover_entry(found: Crossover) -> Entry:
    return Entry(found.words, value=found.length)


def missing_table(result: Result) -> Table:
    """Every cell without a number, and why; lengths that share a reason share a row."""
    groups: dict[tuple[str, str, str, str, str], list[int]] = {}
    for cell in result.cells.values():
        if cell.state != DONE:
            state = f"measured {cell.visits}× only" if cell.samples else cell.state
            groups.setdefault((cell.attention, cell.mode, cell.work, state, cell.why), []).append(cell.length)
    both: dict[tuple[str, str, str, str, str], list[str]] = {}
    for (attention, mode, work, state, why), lengths in groups.items():
        told = ", ".join(f"{n:,}" for n in sorted(lengths))
        both.setdefault((attention, mode, told, state, why), []).append(work)
    rank = {name: i for i, name in enumerate(ordered(result.attentions()))}
    rows = [
        [Entry(attention), Entry(mode), Entry(" and ".join(works)), Entry(lengths), Entry(state), Entry(why or "–")]
        for (attention, mode, lengths, state, why), works in sorted(
            both.items(), key=lambda item: (rank[item[0][0]], item[0][1:])
        )
    ]
    return Table(
        identity="missing", caption="Cells without a number, or with fewer samples than asked for",
        columns=["attention", "mode", "work", "tokens", "state", "why"], rows=rows, words=(1, 2, 3, 4, 5),
    )  # fmt: skip


def quality_table(quality: Quality, group: str) -> Table:
    """The variants of one task, best first."""
    rows = [row for row in quality.rows if row.group == group]
    metric = next((row.metric for row in rows if row.metric), "value")
    better = next((row.better for row in rows if row.metric), "higher")
    split = next((row.split for row in rows if row.split), "")
    worst = -math.inf if better == "higher" else math.inf
    rows.sort(key=lambda row: worst if row.value is None else row.value, reverse=better == "higher")
    entries = [_quality_entries(row) for row in rows]
    _mark_best(entries, 1, max if better == "higher" else min)
    name = metric.replace("_", " ")
    words = f"{name}{f' on {split}' if split else ''}; {better} is better"
    return Table(
        identity=f"quality-{slug(group)}", caption=f"{group}: {words}",
        columns=["variant", name, "95% interval", "seeds", "steps/s", "tokens/s", "MiB", "from", "note"],
        rows=entries, words=(2, 7, 8),
    )  # fmt: skip


def _quality_entries(row: Row) -> list[Entry]:
    def number(value: float | None, digits: Callable[[float], str] = short) -> Entry:
        return Entry("–") if value is None else Entry(digits(value), value=value)

    told = (lambda x: f"{100 * x:.2f}%") if row.metric == "accuracy" else (lambda x: f"{x:.4g}")
    interval = "–" if row.low is None or row.high is None else f"{told(row.low)} to {told(row.high)}"
    memory = None if row.memory_bytes is None else row.memory_bytes / 2**20
    note = "" if row.state == "done" else f"{row.state}: {row.why}" if row.why else row.state
    if not note and row.parallel > 1:
        note = f"one of {row.parallel} runs at once: its speed is that of a shared machine"
    return [
        Entry(row.variant), number(row.value, told), Entry(interval), number(row.seeds or None, str),
        number(row.steps_per_second), number(row.tokens_per_second), number(memory), Entry(row.source),
        Entry(note or "–"),
    ]  # fmt: skip


def slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
