"""Results as a file (JSON, written whole or not at all) and as a picture."""

import json
import os
import tempfile
from pathlib import Path


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
    try:
        import matplotlib
    except ImportError as error:
        raise RuntimeError("a plot needs matplotlib: pip install 'cosformer[plot]'") from error
    matplotlib.use("Agg")
    import io

    import matplotlib.pyplot as plt

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
        axis.margins(y=0.12)
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms", title=heading)
        axis.set_xticks([row["length"] for row in rows], [f"{row['length']:,}" for row in rows], fontsize=8)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower right")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    write_whole(path, buffer.getvalue())
