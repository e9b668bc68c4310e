"""`bench generate`: time per token and bytes of cache of whole models, by length of context: cosFormer and softmax.

Both models come from one config and differ in `attention` alone. A context is not read but pretended: states and caches
are filled with random numbers, of which the time of a step does not depend.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cosformer.bench.systems import in_words
from cosformer.bench.timing import once
from cosformer.models import CosformerConfig, CosformerForCausalLM, GraphDecoder

WAYS = {
    "eager": "launched from Python; keys and values grow by concatenation, as generate() does by default",
    "static": "launched from Python; keys and values at fixed addresses",
    "captured": "the step in a CUDA graph; fixed addresses",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateBench:
    contexts: tuple[int, ...] = (1_000, 10_000, 100_000)
    batch: int = 1
    layers: int = 4
    width: int = 256
    heads: int = 4
    vocab: int = 8_192
    steps: int = 16
    """Decoding steps in a sample."""
    repeats: int = 15
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        sizes = (self.batch, self.layers, self.width, self.heads, self.vocab, self.steps, self.repeats)
        if min(*sizes, *self.contexts) < 1:
            raise ValueError("contexts, batch, layers, width, heads, vocab, steps and repeats: each at least 1")

    @property
    def room(self) -> int:
        """Tokens of the longest context and of every step that follows it: also the horizon."""
        return max(self.contexts) + self.steps * (self.repeats + 3) + 1

    @property
    def ways(self) -> tuple[str, ...]:
        return tuple(WAYS) if torch.device(self.device).type == "cuda" else ("eager", "static")

    def config(self, attention: str) -> CosformerConfig:
        return CosformerConfig(
            vocab_size=self.vocab, hidden_size=self.width, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, horizon=self.room, positions="rotary", mlp="swiglu", norm="rmsnorm",
            attention_bias=False, mlp_bias=False, attention=attention,
        )  # fmt: skip

    def model(self, attention: str) -> CosformerForCausalLM:
        torch.manual_seed(0)
        with torch.device(self.device):  # made there: a CPU takes seconds to draw so many numbers
            model: Any = CosformerForCausalLM(self.config(attention))
        return model.to(self.dtype).eval()


CUDA = GenerateBench(
    layers=12, width=768, heads=12, vocab=50_257, steps=8, repeats=9, device="cuda:0",
    dtype=torch.bfloat16,
)  # fmt: skip


def stages(bench: GenerateBench) -> int:
    return 2 * len(bench.ways) * (1 + len(bench.contexts))


@torch.no_grad()
def gate(model: CosformerForCausalLM, bench: GenerateBench, attention: str, way: str) -> float:
    """Worst error of the logits of single steps against the whole sequence at once, relative to the largest.

    RuntimeError where it is more than the dtype explains: what is wrong is not timed.
    """
    ids = torch.randint(0, bench.vocab, (bench.batch, 24), generator=torch.Generator().manual_seed(1))
    ids = ids.to(bench.device)
    whole = model(ids, use_cache=False).logits.float()
    decoder = _decoder(model, bench, way, 64)
    decoder.prefill(ids[:, :8])
    worst = 0.0
    for t in range(8, 24):
        decoder.token.copy_(ids[:, t : t + 1])
        decoder.step()
        worst = max(worst, float((decoder.logits.float() - whole[:, t]).abs().max() / whole.abs().max()))
    limit = 64 * torch.finfo(bench.dtype).eps
    if not worst <= limit:
        raise RuntimeError(
            f"{attention}, {way}: logits of single steps are off by {worst:.1e} of the largest, more than {limit:.1e}; "
            "what is wrong is not timed"
        )
    return worst


def measure(bench: GenerateBench, *, said: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """By attention, way and context: milliseconds per token, tokens per second, bytes. And the errors of the gate."""
    errors: dict[str, dict[str, float]] = {}
    found: dict[str, Any] = {}
    for attention in ("cosformer", "softmax"):
        model = bench.model(attention)
        found[attention] = {"parameters": sum(p.numel() for p in model.parameters())}
        for way in bench.ways:
            errors.setdefault(attention, {})[way] = gate(model, bench, attention, way)
            said(f"{attention}, {way}: right")
            found[attention][way] = _cells(model, bench, way, attention, said)
    return {"worst_error_of_logits": errors, "models": found}


def _cells(
    model: CosformerForCausalLM, bench: GenerateBench, way: str, attention: str, said: Callable[[str], None]
) -> dict[str, dict]:
    # A state is small: all contexts take turns, so that a slow spell of the machine hits them alike
    groups = [bench.contexts] if attention == "cosformer" else [(context,) for context in bench.contexts]
    cells: dict[str, dict] = {}
    for group in groups:
        try:
            cells |= _timed({context: _at(model, bench, way, context) for context in group}, bench)
        except RuntimeError as error:
            if attention == "cosformer":  # ours must run
                raise
            short = isinstance(error, torch.OutOfMemoryError)
            reason = "out of memory" if short else in_words(error)
            cells |= {str(context): {"reason": reason} for context in group}
        for context in group:
            said(f"{attention}, {way}, {context:,} tokens")
    return cells


def _decoder(model: CosformerForCausalLM, bench: GenerateBench, way: str, room: int) -> GraphDecoder:
    return GraphDecoder(model, batch=bench.batch, max_length=room, capture=way == "captured", growing=way == "eager")


def _at(model: CosformerForCausalLM, bench: GenerateBench, way: str, context: int) -> GraphDecoder:
    decoder = _decoder(model, bench, way, context + bench.room - max(bench.contexts))
    decoder.pretend(context)
    return decoder


def _timed(decoders: dict[int, GraphDecoder], bench: GenerateBench) -> dict[str, dict]:
    device = torch.device(bench.device)

    def steps(decoder: GraphDecoder) -> Callable[[], None]:
        def run() -> None:
            for _ in range(bench.steps):
                decoder.step()

        return run

    held = {context: decoder.cache_bytes for context, decoder in decoders.items()}
    seen: dict[int, list[float]] = {context: [] for context in decoders}
    for repeat in range(bench.repeats + 2):
        for context, decoder in decoders.items():
            ms = once(steps(decoder), device) / bench.steps
            if repeat >= 2:  # two rounds to warm up
                seen[context].append(ms)
    cells = {}
    for context, values in seen.items():
        middle = statistics.median(values)
        low, high = min(values), max(values)
        if len(values) > 1:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        cells[str(context)] = {
            "ms_per_token": middle, "low": low, "high": high, "fastest": min(values),
            "tokens_per_s": bench.batch * 1e3 / middle, "cache_bytes": held[context],
            "cache_bytes_after": decoders[context].cache_bytes,
        }  # fmt: skip
    return cells


def conclusions(result: dict[str, Any]) -> dict[str, Any]:
    """From `measure`: how each model's time grows with the context, whether bytes stay, what capturing gains."""
    found: dict[str, Any] = {}
    for attention, ways in result["models"].items():
        for way, cells in ways.items():
            if way == "parameters":
                continue
            good = {context: cell for context, cell in cells.items() if "ms_per_token" in cell}
            if len(good) > 1:
                first, last = good[min(good, key=int)], good[max(good, key=int)]
                found.setdefault(attention, {})[way] = {
                    "time_longest_over_shortest": last["ms_per_token"] / first["ms_per_token"],
                    "bytes_constant": len(
                        {c[key] for c in good.values() for key in ("cache_bytes", "cache_bytes_after")}
                    )
                    == 1,
                }
        if "captured" in ways:
            gains = {
                context: ways["captured"][context]["tokens_per_s"] / cell["tokens_per_s"]
                for context, cell in ways["eager"].items()
                if "tokens_per_s" in cell and "tokens_per_s" in ways["captured"].get(context, {})
            }
            found.setdefault(attention, {})["captured_over_eager"] = gains
    return found
