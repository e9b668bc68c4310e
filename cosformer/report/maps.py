"""What the trained model attends to: a small map for every layer and head, of held-out text or of what it wrote."""

import json
from html import escape
from typing import Any

from cosformer.report.pixels import DARKEST, GAMMA, map_image
from cosformer.report.reading import Run
from cosformer.report.text import visible

TOKENS = 80
MOST = 12  # layers, and heads of each
EXPRESSION = "[MAX 4 [MIN 2 7 ] [MED 3 9 0 ] [SM 5 5 8 ] 1 ]"  # of ListOps
PLAIN_TEXT = "def main() -> None:\n    for line in lines:\n        print(line)\n"


def maps_section(run: Run) -> str:
    """HTML of the maps; a sentence where there can be none."""
    if not (run.folder / "config.json").is_file():
        return "<p>The model is written when the run is finished; maps are drawn then.</p>"
    import torch

    from cosformer.models.inspection import attention_maps
    from cosformer.models.writing import load_model, load_tokenizer, read_config, token_ids

    config = read_config(run.folder)
    if config.is_encoder_decoder:
        return "<p>Maps are drawn for one stack of blocks, and an encoder–decoder has two.</p>"
    tokenizer = load_tokenizer(run.folder, config)
    try:
        ids = token_ids(tokenizer, _text(run))
    except ValueError:  # tokens of operators and digits
        ids = token_ids(tokenizer, EXPRESSION)
    ids = torch.tensor([ids[: min(TOKENS, config.horizon)]])
    if ids.shape[1] < 2:
        return "<p>The text is too short for a map.</p>"
    try:
        found = attention_maps(load_model(run.folder), ids)
    except ValueError as error:  # a kind of attention whose weights are not known
        return f"<p>No maps: {escape(str(error))}.</p>"
    words = [visible(tokenizer.decode([i])) for i in ids[0].tolist()]
    return _grid(found, config.attentions, words, causal=config.causal)


def _text(run: Run) -> str:
    if text := (run.demo or {}).get("held_out", {}).get("text"):
        return text
    samples = run.of("sample")
    text = samples[-1]["prompt"] + samples[-1]["text"] if samples else ""
    return text if len(text.split()) > 4 else PLAIN_TEXT  # a young model writes little but blanks


def _grid(maps: list[Any], attentions: list[str], words: list[str], *, causal: bool) -> str:
    layers, heads = min(len(maps), MOST), min(maps[0].shape[0], MOST)
    shown = [[(i, h, map_image(maps[i][h], causal=causal)) for h in range(heads)] for i in range(layers)]
    rows = "".join(
        f'<div class="layer"><h3>layer {i} <span class="quiet">{escape(attentions[i])}</span></h3>'
        f'<div class="heads" style="--heads:{heads}">'
        + "".join(
            f'<img src="{address}" width="{len(words)}" height="{len(words)}" data-layer="{i}" data-head="{h}" '
            f'alt="attention weights of layer {i}, head {h}">'
            for _, h, address in row
        )
        + "</div></div>"
        for i, row in enumerate(shown)
    )
    left = "" if len(maps) <= MOST and maps[0].shape[0] <= MOST else f" The first {MOST} layers and heads are shown."
    listed = escape(json.dumps(words, ensure_ascii=False), quote=True)
    sees = "itself and earlier ones" if causal else "all others"
    return (
        "<p>A row of a picture is a token of the text below, from the first at the top; along it lies how much it "
        f"takes from {sees}, first to last from left to right. A faint colour: as much as from any other; the full "
        f"one: {int(DARKEST)} times that or more.{left}</p>"
        f'<div class="maps" data-darkest="{DARKEST:g}" data-gamma="{GAMMA:g}" data-words="{listed}">{rows}'
        '<p class="readout" role="status" aria-live="polite">Point at a map to see which token looks at which.</p>'
        "</div>"
        f'<pre class="text">{escape("".join(words))}</pre>'
    )
