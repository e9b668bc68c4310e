"""Results as a file (JSON, written whole or not at all) and as a picture."""

import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from cosformer.bench import systems


def write_json(path: Path, content: dict[str, object]) -> None:
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Under its name there is either the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def plot_attention(path: Path, rows: list[dict], title: str) -> None:
    """Time over length, ours and softmax, from the rows of a result file."""
    plt = _pyplot()
    colours = {"softmax": "#c2410c", "cosformer, c": "#1d4ed8", "cosformer, b": "#0f766e"}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True)
    for axis, key, heading in (
        (axes[0], "forward_ms", "forward"),
        (axes[1], "forward_backward_ms", "forward + backward"),
    ):
        for name in dict.fromkeys(n for row in rows for n in row[key]):
            points = [(row["length"], row[key][name]) for row in rows if name in row[key]]
            x = [n for n, _ in points]
            colour = next(c for start, c in colours.items() if name.startswith(start))
            axis.plot(x, [t["ms"] for _, t in points], "o-", label=name, color=colour, markersize=4)
            axis.fill_between(x, [t["low"] for _, t in points], [t["high"] for _, t in points], alpha=0.2, color=colour)
        ratio = "speedup_forward" if key == "forward_ms" else "speedup_forward_backward"
        for row in rows:
            if row[ratio] is not None:  # how far the two curves are apart, above the upper one
                at = (row["length"], max(t["high"] for t in row[key].values()))
                style = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
                axis.annotate(f"{row[ratio]:.1f}×", at, **style)
        _finish(axis, [row["length"] for row in rows], heading)
        axis.legend(fontsize=8, loc="lower right")
    _write(plt, figure, path, title)


# Ours strong, softmax and fla in their own family of colour; what is not listed stays grey
COLOURS = {
    systems.CAUSAL: "#1d4ed8", systems.FULL: "#0f766e", systems.PLAIN: "#93c5fd", systems.FLASH: "#fb923c",
    systems.CUDNN: "#c2410c", systems.FLA_NORMALISED: "#c084fc", systems.FLA_SUM: "#7e22ce",
    systems.FLA_COMPOSED: "#f472b6",
}  # fmt: skip


def plot_floor(path: Path, result: dict) -> None:
    """GPU time over length of every system, above the floor, from a result file of `bench attention` on CUDA."""
    plt = _pyplot()
    rows, settings = result["rows"], result["settings"]
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 5.2), sharex=True)
    for axis, mode, heading in (
        (axes[0], "forward", "forward"),
        (axes[1], "forward_backward", "forward + backward"),
    ):
        lengths = [row["length"] for row in rows]
        for name in dict.fromkeys(n for row in rows for n in row[mode]):
            points = [(row["length"], row[mode][name]) for row in rows if "ms" in row[mode].get(name, {})]
            if not points:
                continue
            x, cells = [n for n, _ in points], [cell for _, cell in points]
            colour, width = COLOURS.get(name, "#64748b"), 2.4 if name.startswith("cosformer") else 1.4
            axis.plot(x, [c["ms"] for c in cells], "o-", label=name, color=colour, markersize=4, linewidth=width)
            axis.fill_between(x, [c["p20"] for c in cells], [c["p80"] for c in cells], alpha=0.2, color=colour)
        floor = [row["floor_ms"][mode] for row in rows]
        axis.plot(lengths, floor, "k--", linewidth=1, marker="_", label="floor: bytes over copy bandwidth")
        _finish(axis, lengths, heading)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="lower center", ncol=3, frameon=False)
    batched = f"{settings['tokens']:,} tokens in all" if settings["tokens"] else "one sequence"
    shape = f"{batched}, {settings['heads']} heads × {settings['width']}, {settings['dtype']}"
    _write(plt, figure, path, f"{result['device']}, {shape}", below=0.12)


def plot_training(path: Path, result: dict) -> None:
    """Tokens per second and memory over length, a line for each attention, from a result file of `bench train`."""
    plt = _pyplot()
    rows, settings = result["rows"], result["settings"]
    colours = {"cosformer": "#1d4ed8", "softmax": "#fb923c", "softmax_cudnn": "#c2410c"}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True)
    lengths = [row["length"] for row in rows]
    for name in rows[0]["cells"]:
        cells = [(row["length"], row["cells"][name]) for row in rows if "reason" not in row["cells"][name]]
        style = {"label": name, "color": colours.get(name, "#64748b"), "markersize": 4}
        axes[0].plot([n for n, _ in cells], [c["tokens_per_s"] for _, c in cells], "o-", **style)
        held = [(n, c["peak_bytes"] / 2**30) for n, c in cells if c["peak_bytes"] is not None]
        axes[1].plot([n for n, _ in held], [x for _, x in held], "o-", **style)
    for axis, unit, heading in ((axes[0], "tokens per second", "speed"), (axes[1], "GiB", "peak memory")):
        _finish(axis, lengths, heading)
        axis.set_ylabel(unit)
        axis.set_yscale("linear")
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    _write(plt, figure, path, f"{result['device']}, training, {settings['preset']}, {settings['dtype']}")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise RuntimeError("a plot needs matplotlib: pip install 'cosformer[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _finish(axis: Any, lengths: list[int], heading: str) -> None:
    axis.margins(y=0.12)
    axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms", title=heading)
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def _write(plt: Any, figure: Any, path: Path, title: str, *, below: float = 0.0) -> None:
    """`below`: the share of the height left free for a legend."""
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, below, 1, 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    write_whole(path, buffer.getvalue())
