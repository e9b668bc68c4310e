"""Walks over the cells of a sweep: each attention in a process of its own, every number kept as soon as it is there.

Order, from short to long: at each length every cell is visited in turn, `visits` times. So attentions that are compared
were measured within the same minutes, only one at a time holds memory, and what ends a process ends one cell.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cosformer.compare.measure import config_for
from cosformer.compare.process import Died, Late, Measuring, Nursery
from cosformer.compare.results import DONE, ENDS, NAME, NOT_TRIED, WAITING, Cell, Key, Result
from cosformer.compare.settings import WORKS, Sweep, check_known

FIRST_S = 300.0
"""Beyond the limit, for the first answer about a cell: kernels may be compiled for it."""


def sweep_folder(
    sweep: Sweep, out: Path, *, said: Callable[[str], None] = lambda _: None, nursery: Nursery | None = None
) -> Result:
    """Measures into out/speed.json; what is there already is not measured again. Gives what the file then holds.

    nursery: one that runs already and has imported `sweep.imports`; it stays open.
    """
    check_known(sweep)
    path = out / NAME
    if path.is_file():
        result = Result.read(path)
        result.check_same(sweep, path)
    else:
        result = Result.new(sweep)
    keys = list(wanted(sweep))
    for key in keys:
        cell = result.cell(key, sweep.batch(key.length))
        if cell.state == DONE and cell.visits < sweep.visits:
            cell.state = WAITING
        if cell.state == WAITING and (why := _refusal(sweep, key)):
            _close(cell, "refused", why)
    result.write(path)  # a folder that cannot be written is told of before anything is measured
    until = math.inf if sweep.minutes is None else time.monotonic() + sweep.minutes * 60
    if all(result.cells[key].state != WAITING for key in keys):
        return result
    own = Nursery(sweep.imports) if nursery is None else nursery
    processes = {name: Measuring(own, sweep, name) for name in sweep.attentions}
    try:
        for length in sorted(sweep.lengths):
            for number in range(sweep.visits):
                for key in keys:
                    cell = result.cells[key]
                    if key.length != length or cell.state != WAITING or cell.visits > number:
                        continue
                    if time.monotonic() > until:
                        cell.why = f"the {sweep.minutes:g} minutes of the sweep were over"
                        continue
                    cell.why = ""
                    _visit(sweep, result, cell, processes[key.attention])
                    result.write(path)
            said(f"{length:,} tokens: {_summary(result, keys, length)}")
    finally:
        for process in processes.values():
            process.close()
        if own is not nursery:
            own.close()
        result.write(path)
    return result


def wanted(sweep: Sweep) -> Iterator[Key]:
    """Attentions change fastest: neighbours in time are those that are compared."""
    for length in sorted(sweep.lengths):
        for mode in sweep.modes:
            for work in WORKS:
                for attention in sweep.attentions:
                    yield Key(attention, mode, work, length)


def _refusal(sweep: Sweep, key: Key) -> str:
    """Why the attention cannot do this at all; empty where it can."""
    try:
        config_for(sweep, key.attention, key.mode, key.length)
    except ValueError as error:
        return str(error)
    return ""


def _visit(sweep: Sweep, result: Result, cell: Cell, process: Measuring) -> None:
    shorter = [c for c in result.of(cell.attention, cell.mode, cell.work) if c.length < cell.length]
    ended = next((c for c in shorter if c.state in ENDS), None)
    if ended is not None:
        _close(cell, NOT_TRIED, f"{ended.state} at {ended.length:,}")
        return
    expected = predicted_ms(shorter, cell)
    if expected is not None and expected > sweep.limit_s * 1e3:
        _close(cell, "slow", f"about {expected / 1e3:.0f} s a call expected, and the limit is {sweep.limit_s:g} s")
        return
    question = {
        "mode": cell.mode, "work": cell.work, "length": cell.length, "first": cell.visits == 0, "about_ms": cell.ms,
    }  # fmt: skip
    patience = 20 * (sweep.limit_s + sweep.sample_s) + (FIRST_S if cell.visits == 0 else 30)
    try:
        answer = process.ask(question, patience)
    except Late as late:
        _close(cell, "slow", str(late))
        return
    except Died as died:
        _close(cell, "killed", str(died))
        return
    if answer["state"] != "measured":
        _close(cell, answer["state"], answer["why"])
        return
    cell.samples += answer["samples"]
    cell.visits += 1
    if answer["memory_bytes"] is not None:
        cell.memory_bytes = answer["memory_bytes"]
    if cell.visits >= sweep.visits:
        cell.state = DONE


def _close(cell: Cell, state: str, why: str) -> None:
    cell.state, cell.why, cell.samples, cell.memory_bytes = state, why, [], None


def predicted_ms(shorter: list[Cell], cell: Cell) -> float | None:
    """Of a call, by how the time of a token grew between the two longest lengths that were measured; None: unknown.

    From the fastest samples, and with no growth above the length's own, that of softmax: a busy minute is no growth.
    """
    known = [(c.length, min(c.samples) / (c.batch * c.length)) for c in shorter if c.samples]
    if not known:
        return None
    (length, each), growth = known[-1], 0.0
    if len(known) > 1:
        before, less = known[-2]
        growth = min(1.0, max(0.0, math.log(each / less) / math.log(length / before)))
    return each * (cell.length / length) ** growth * cell.batch * cell.length


def _summary(result: Result, keys: list[Key], length: int) -> str:
    cells = [result.cells[key] for key in keys if key.length == length]
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell.state] = counts.get(cell.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())
