"""Writes the tables of README.md and the docs from the result files their markers name (several with commas between):
`python docs/readme_table.py [--plot cuda]`.

With --plot also draws docs/figures/speed-cuda.png (or speed-cpu.png) from the same file. A test runs `rewrite` and
compares, so a table cannot drift from its file.
"""

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOFTMAX, OURS = "softmax (SDPA), causal", "cosformer, causal"
BLOCK = re.compile(r"(?P<rows>(?:\|[^\n]*\n)*)<!-- table: (?P<source>\S+) -->\n")
PAGES = ("README.md", "docs/quality.md")


def render(paths: list[Path], heading: str) -> str:
    """The table of a result file; of `bench attention` on a CPU its two heading lines stay as they are."""
    kinds = {"attention on cuda": gpu_table, "compare": compare_table, "train": train_table}
    first = json.loads(paths[0].read_text())
    if first["benchmark"] in (of_several := {"training runs": runs_table, "queue": queue_table}):
        return of_several[first["benchmark"]](paths)
    kind = kinds.get(first["benchmark"])
    return heading + cpu_rows(first) if kind is None else kind(first)


def runs_table(paths: list[Path]) -> str:
    """A line for each file of matched runs: their number on test (where they were not tested, on held-out data)."""
    from cosformer.compare.quality import Row, read_quality

    def number(row: Row) -> str:
        return f"{row.value:.1%}" if row.metric == "accuracy" else f"{row.value:#.4g}"

    lines = ["| recipe | steps | | cosformer | softmax |\n", "|---|---:|---|---:|---:|\n"]
    for path in paths:
        (steps,) = {run["steps"] for run in json.loads(path.read_text())["runs"].values()}
        rows = {row.variant: row for row in read_quality([path]).rows}
        ours, softmax = rows["cosformer"], rows["softmax"]
        assert (ours.metric, ours.split) == (softmax.metric, softmax.split), (
            f"{path}: other numbers of one than of both"
        )
        what = f"{ours.metric.replace('_', ' ')}, {ours.split}"
        cells = [f"`{ours.group}`", f"{steps:,}", what, number(ours), number(softmax)]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def queue_table(paths: list[Path]) -> str:
    """A line for each variant, a column for each task; the first heading says what shared a machine, and which."""
    from cosformer.sweeps import markdown_table
    from cosformer.sweeps.table import beside, merged, places, rows_of

    result = merged([json.loads(path.read_text()) for path in paths])
    table = markdown_table({**result, "table": rows_of(result["cells"])})
    rows = [line + "\n" for line in table.splitlines() if line.startswith("|")]
    said = "; ".join(filter(None, [beside(result), places(result)]))
    return rows[0].replace("| |", f"| {said} |", 1) + "".join(rows[1:])


def train_table(result: dict) -> str:
    """A line for each length: tokens per second of each attention, and ours over the fastest softmax."""
    names = list(result["attentions"])
    lines = [
        "| tokens of a sequence | " + " | ".join(f"{name}, tokens/s" for name in names)
        + " | cosformer over the fastest softmax | its share of the matmul peak | memory, GiB |\n",
        "|---:|" + "---:|" * (len(names) + 3) + "\n",
    ]  # fmt: skip
    for row in result["rows"]:
        cells = [row["cells"][name] for name in names]
        rates = [f"{c['tokens_per_s']:,.0f}" if "tokens_per_s" in c else c["reason"] for c in cells]
        ours, faster = row["cells"]["cosformer"], result["conclusions"][str(row["length"])]["over_fastest_softmax"]
        own = [f"**{faster:.2f}×**", f"{ours['share_of_matmul']:.0%}", f"{ours['peak_bytes'] / 2**30:.1f}"]
        lines.append("| " + " | ".join([f"{row['length']:,}", *rates, *own]) + " |\n")
    return "".join(lines)


def cpu_rows(result: dict) -> str:
    """A line for each length: softmax, ours, their ratio; forward, then with gradients."""

    def ms(times: dict, name: str) -> str:
        return f"{times[name]['ms']:,.1f}" if name in times else "–"

    def ratio(value: float | None) -> str:
        return "–" if value is None else f"**{value:.1f}×**"

    lines = []
    for row in result["rows"]:
        forward, training = row["forward_ms"], row["forward_backward_ms"]
        cells = [
            f"{row['length']:,}", ms(forward, SOFTMAX), ms(forward, OURS), ratio(row["speedup_forward"]),
            ms(training, SOFTMAX), ms(training, OURS), ratio(row["speedup_forward_backward"]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def gpu_table(result: dict) -> str:
    """A line for each system: ms (and multiple of the floor) at each length, then the memory at the longest."""
    rows = result["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["forward"]))

    def cell(row: dict, mode: str, name: str) -> str:
        seen = row[mode].get(name, {"reason": "–"})
        if "ms" not in seen:
            return "out of memory" if seen["reason"] == "out of memory" else "–"
        ms = seen["ms"]
        text = f"{ms:,.2f}" if ms < 10 else f"{ms:,.1f}"
        return f"**{text}** ({seen['times_floor']:.1f}×)" if name.startswith("cosformer, ") else text

    def extra(mode: str, name: str) -> str:
        seen = next((row[mode][name] for row in reversed(rows) if row[mode].get(name, {}).get("peak_mib")), None)
        return "–" if seen is None else f"{max(0.0, seen['extra_percent']):,.0f}%"

    def floor(row: dict, mode: str) -> str:
        return f"{row['floor_ms'][mode]:,.2f}"

    def line(*cells: str) -> str:
        return "| " + " | ".join(cells) + " |\n"

    both, way = ("forward", "forward_backward"), "forward / forward + backward"
    lines = [
        line(
            f"ms, {way} (× the floor)", *(f"T = {row['length']:,}" for row in rows), f"memory beyond the results, {way}"
        ),
        "|---|" + "---:|" * (len(rows) + 1) + "\n",
        line("the floor: bytes over copy bandwidth", *(" / ".join(floor(row, m) for m in both) for row in rows), ""),
    ]
    for name in names:
        label = f"**{name}**" if name == OURS else name
        times = (" / ".join(cell(row, mode, name) for mode in both) for row in rows)
        lines.append(line(label, *times, " / ".join(extra(mode, name) for mode in both)))
    return "".join(lines)


def compare_table(result: dict) -> str:
    """A line for each attention: how many times as fast as softmax in training, and from which length on faster."""
    from cosformer.compare.crossover import crossovers
    from cosformer.compare.results import Result

    found = Result.of_table(result)
    modes, lengths = ("causal", "bidirectional"), [512, 2_048, 8_192]

    def times(attention: str, mode: str, length: int) -> str:
        cell = next(c for c in found.of(attention, mode, "training") if c.length == length)
        softmax = found.baseline(mode, "training", "us_per_token").get(length)
        if cell.us_per_token is None or softmax is None:
            return "cannot" if cell.state == "refused" else cell.state
        ratio = softmax / cell.us_per_token
        return f"{ratio:.2f}×" if ratio < 1 else f"{ratio:.1f}×"

    def faster(attention: str, mode: str) -> str:
        return crossovers(found, attention, mode, "training", "us_per_token").words

    lines = [
        "| training, times as fast as softmax | " + " | ".join(f"{mode}, T = {n:,}" for mode in modes for n in lengths)
        + " | faster from, causal | bidirectional |\n",
        "|---|" + "---:|" * (len(modes) * (len(lengths) + 1)) + "\n",
    ]  # fmt: skip
    for name in dict.fromkeys(cell["attention"] for cell in result["cells"]):
        if name != "softmax":
            cells = [times(name, mode, n) for mode in modes for n in lengths] + [faster(name, mode) for mode in modes]
            lines.append(f"| {'**cosformer**' if name == 'cosformer' else name} | " + " | ".join(cells) + " |\n")
    return "".join(lines)


def rewrite(text: str, root: Path = ROOT) -> str:
    """The text with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        heading = "".join(match["rows"].splitlines(keepends=True)[:2])
        paths = [root / source for source in match["source"].split(",")]
        return f"{render(paths, heading)}<!-- table: {match['source']} -->\n"

    return BLOCK.sub(table, text)


def draw(text: str, device: str, root: Path = ROOT) -> list[Path]:
    """docs/figures/speed-<device>.png from the marked file that names the device."""
    from cosformer.bench.report import plot_attention, plot_floor

    drawn = []
    for match in BLOCK.finditer(text):
        if not Path(match["source"]).name.startswith(f"attention-{device}_"):
            continue
        result = json.loads((root / match["source"]).read_text())
        path = root / "docs" / "figures" / f"speed-{device}.png"
        if result["benchmark"] == "attention on cuda":
            plot_floor(path, result)
        else:
            plot_attention(path, result["rows"], f"{result['device']}, {result['settings']['dtype']}")
        drawn.append(path)
    return drawn


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the tables of README.md and the docs from their result files.")
    parser.add_argument("--plot", choices=["cpu", "cuda"], help="also draw docs/figures/speed-<device>.png")
    arguments = parser.parse_args()
    for page in (ROOT / name for name in PAGES):
        page.write_text(rewrite(page.read_text()))
    if arguments.plot is not None:
        for path in draw((ROOT / "README.md").read_text(), arguments.plot):
            print(f"wrote {path.relative_to(ROOT)}")
