"""`cosformer demo`: the point of the method in a minute on a CPU."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.attention import AttentionBench, Row, backend_in_words, measure
from cosformer.bench.precision import worst_errors
from cosformer.bench.report import plot_attention, write_json
from cosformer.cli.bench import error_table, table
from cosformer.cli.options import progress
from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.cost import state_bytes
from cosformer.ops.state import AttentionState


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the plots and numbers.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Short sequences only: a few seconds.")] = False,
) -> None:
    """Exactness, the speed curve against softmax, streaming in constant memory; in about a minute, on the CPU."""
    console = Console()
    settings = AttentionBench(
        lengths=(256, 512) if quick else (512, 1_024, 2_048, 4_096, 8_192), repeats=3 if quick else 7
    )
    console.print(f"cosformer on {environment.devices()['cpu']}; backend: {backend_in_words(settings)}\n")

    console.rule("1. exact: the linear form against the quadratic definition in float64")
    console.print(error_table(worst_errors(length=333 if quick else 1_003)))

    console.rule("2. fast: time against softmax (SDPA), same process, same threads")
    rows: list[Row] = []
    with progress(console) as bar:
        task = bar.add_task("measuring", total=len(settings.lengths))
        for row in measure(settings):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row.length:,} tokens done")
    console.print(table(rows, settings))

    console.rule("3. streaming: a state of fixed size instead of a growing cache")
    stream, checks = streaming(2_000 if quick else 20_000)
    console.print(stream)

    as_json = [row.to_json(settings.heads, settings.width) for row in rows]
    write_json(
        out / "demo.json", {"benchmark": "demo", **environment.provenance("cpu"), "rows": as_json, "stream": checks}
    )
    written = [out / "demo.json"]
    try:
        plot_attention(out / "speed.png", as_json, f"{environment.devices()['cpu']}, fp32, 8 heads of 64")
        plot_weights(out / "weights.png")
        written += [out / "speed.png", out / "weights.png"]
    except RuntimeError as error:
        console.print(f"no plots: {error}")
    console.print("\nwrote " + ", ".join(str(path) for path in written))


def streaming(total: int) -> tuple[Table, dict[str, float]]:
    """Feed `total` tokens one by one; compare the last output with the whole sequence at once."""
    heads, width = 8, 64
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, total, width) for _ in range(3))
    state = AttentionState.zeros(1, heads, width, width, horizon=total)
    result = Table(
        "tokens so far", "state", "softmax cache would be", "difference from one pass", title="one token at a time"
    )
    whole = cosformer_attention(q, k, v, causal=True, horizon=total)
    checks, worst = {t for t in (10, 100, 1_000, 10_000, 20_000, total) if t <= total}, 0.0
    for t in range(total):
        o = attention_step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        if t + 1 in checks:
            gap = (o - whole[:, :, t : t + 1]).abs().max().item()
            worst = max(worst, gap)
            cache = 2 * heads * width * 4 * (t + 1)
            result.add_row(f"{t + 1:,}", f"{state.nbytes / 1024:,.0f} KiB", f"{cache / 1024:,.0f} KiB", f"{gap:.1e}")
    assert state.nbytes == state_bytes(1, heads, width, width)
    return result, {"tokens": total, "state_bytes": state.nbytes, "worst_difference": worst}


def plot_weights(path: Path) -> None:
    """The re-weighting: how much a key counts by its distance, and one attention map with and without it."""
    import io

    import matplotlib.pyplot as plt

    from cosformer.bench.report import write_whole
    from cosformer.ops.reference import attention_weights

    n = 96
    torch.manual_seed(0)
    x = torch.nn.functional.avg_pool1d(torch.randn(1, 16, n + 8), 9, 1)[0].T[None, None]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4))
    distance = torch.arange(n)
    axes[0].plot(distance.tolist(), torch.cos(torch.pi / (2 * n) * distance).tolist())
    axes[0].set(xlabel="distance t − s", ylabel="factor", title=f"cos(π(t−s)/(2M)), M = {n}")
    axes[0].grid(alpha=0.3)
    for axis, horizon, title in ((axes[1], 10**9, "ReLU attention, no cosine"), (axes[2], n, "cosFormer")):
        weights = attention_weights(x, x, causal=True, horizon=horizon)[0, 0]
        axis.imshow(weights.sqrt().tolist(), cmap="magma")
        axis.set(xlabel="key s", ylabel="query t", title=title)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    plt.close(figure)
    write_whole(path, buffer.getvalue())
