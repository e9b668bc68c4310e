"""`bench train`: whole training steps of language models that differ in `attention` alone, in one process.

A step is forward, loss, backward, clipped gradients and AdamW; its tokens are random and lie on the device already, so
neither data nor logs are part of it. bf16 is autocast over fp32 weights, as `cosformer train` runs it.
"""

import gc
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cosformer.bench.clock import clock_for
from cosformer.bench.floor import matmul_rate
from cosformer.bench.kernel_times import kernel_times
from cosformer.bench.systems import attempt
from cosformer.bench.timing import Time, once, summarize
from cosformer.bench.train_settings import CUDNN, OURS, SOFTMAX, TrainBench
from cosformer.models import CosformerForCausalLM
from cosformer.models.inspection import training_flops_per_token

WARM_STEPS = 3
PEAK_SIDE = {"cuda": 8_192, "cpu": 1_024}


class Training:
    """One model with its optimizer and a batch of random tokens."""

    def __init__(self, bench: TrainBench, attention: str, length: int) -> None:
        torch.manual_seed(0)
        self.device, self.dtype, self.compiled = torch.device(bench.device), bench.dtype, bench.compiled
        model: Any = CosformerForCausalLM(bench.config(attention, length))
        self.model = model.to(self.device).train()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.call = self.model
        if bench.compiled != "none":
            mode = None if bench.compiled == "default" else bench.compiled
            self.call = torch.compile(self.model, fullgraph=True, dynamic=False, mode=mode)
        shape, drawn = (bench.batch(length), length), torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, bench.size.vocab, shape, generator=drawn).to(self.device)

    def _lowered(self) -> AbstractContextManager:
        lower = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype) if lower else nullcontext()

    def backward(self) -> Tensor:
        """The loss; gradients are added to what is there."""
        if self.compiled == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with self._lowered():
            loss = self.call(self.ids, labels=self.ids).loss
        loss.backward()
        return loss.detach()

    def step(self) -> Tensor:
        loss = self.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def gate(bench: TrainBench, attention: str) -> dict[str, float]:
    """How far loss and gradients, computed as they will be timed, are from fp32 without a compiler.

    Of a model of two blocks; gradients by the worst of its tensors, relative to the length of each. RuntimeError where
    it is more than the dtype explains: what is wrong is not timed.
    """
    length = min(256, *bench.lengths)
    small = replace(bench, size=replace(bench.size, layers=2, tokens=2 * length), lengths=(length,))
    definition = SOFTMAX if attention == CUDNN else attention  # cuDNN has no fp32
    plain = Training(replace(small, dtype=torch.float32, compiled="none"), definition, length)
    timed = Training(small, attention, length)
    with torch.no_grad():
        for p, q in zip(plain.parameters, timed.parameters, strict=True):
            if p.dim() == 2:
                p.mul_(4)  # weights of std 0.08: at 0.02 attention hardly moves the loss, and errors would not show
            q.copy_(p)
    want, got = plain.backward(), timed.backward()
    off = {"loss": abs(float(got) - float(want)) / float(want), "gradient": 0.0}
    for (name, p), q in zip(plain.model.named_parameters(), timed.parameters, strict=True):
        assert p.grad is not None, name
        assert q.grad is not None, name
        error = float((q.grad - p.grad).norm() / p.grad.norm())
        off["gradient"] = max(off["gradient"], error if math.isfinite(error) else math.inf)
    loss, gradient = (1e-4, 1e-2)
    if bench.dtype == torch.bfloat16:  # rotary positions round q and k once more, before φ cuts them off at zero;
        # with learned ones, or none, a right step was off by 0.10 on a CPU (widths 64, 128); with sinusoidal ones the
        # presets for a GPU by 0.07 and 0.08, and by 0.17 and 0.19 with a horizon three times as long
        loss, gradient = 3e-3, 0.13 if bench.positions == "sinusoidal" else 0.2
    if not (off["loss"] <= loss and off["gradient"] <= gradient):
        raise RuntimeError(
            f"{attention}: a step as it would be timed is off by {off['loss']:.1e} in its loss and "
            f"{off['gradient']:.1e} in a gradient, more than {loss:.0e} and {gradient:.0e}; what is wrong is not timed"
        )
    return off


def stages(bench: TrainBench) -> int:
    return len(bench.attentions) + len(bench.lengths) * (len(bench.attentions) + 1)


def measure(bench: TrainBench, *, said: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Rows by length with a cell for each attention, the rate of a matmul in these minutes, the errors of the gate."""
    errors: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for attention in bench.attentions:
        reason = attempt(lambda name=attention: errors.update({name: gate(bench, name)}), ours=attention == OURS)
        if reason is not None:
            refused[attention] = reason
        said(f"{attention}: {reason or 'right'}")
    device, rates, rows = torch.device(bench.device), [], []
    clock = clock_for(device)

    def rate() -> None:
        rates.append(matmul_rate(clock, device, bench.dtype, PEAK_SIDE.get(device.type, 1_024)))

    rate()
    for length in sorted(bench.lengths):
        rows.append(_row(bench, length, refused, said))
        rate()
    peak = sorted(rates)[len(rates) // 2]
    for row in rows:
        for attention, cell in row["cells"].items():
            if "reason" not in cell:
                flops = training_flops_per_token(bench.config(attention, row["length"]), row["length"])
                cell |= {
                    "flops_per_token": flops, "tflop_per_s": flops * cell["tokens_per_s"] / 1e12,
                    "share_of_matmul": flops * cell["tokens_per_s"] / peak,
                }  # fmt: skip
    return {
        "error_against_fp32": errors,
        "matmul_tflop_per_s": peak / 1e12,
        "matmul_tflop_per_s_by_run": [r / 1e12 for r in rates],
        "rows": rows,
        "conclusions": conclusions(rows),
    }


def _row(bench: TrainBench, length: int, refused: dict[str, str], said: Callable[[str], None]) -> dict[str, Any]:
    """All systems warmed, one after another, before any is timed; then they take turns."""
    _clear(bench)
    cells: dict[str, dict[str, Any]] = {}
    ready: dict[str, Training] = {}
    for attention in bench.attentions:
        before = _allocated(bench)

        def warm(attention: str = attention, before: int = before) -> None:
            start = time.perf_counter()
            training = Training(bench, attention, length)
            first = float(training.step())
            compiled = time.perf_counter() - start
            for _ in range(WARM_STEPS):
                training.step()
            cells[attention] = {
                "parameters": sum(p.numel() for p in training.parameters), "first_step_s": compiled,
                "first_loss": first, "peak_bytes": _peak(bench, training, before),
            }  # fmt: skip
            ready[attention] = training

        if reason := refused.get(attention) or attempt(warm, ours=attention == OURS):
            cells[attention] = {"reason": reason}
            gc.collect()
            if bench.device.startswith("cuda"):
                torch.cuda.empty_cache()
        said(f"{length:,} tokens, {attention}: " + (reason or f"warm in {cells[attention]['first_step_s']:.0f} s"))
    _timed(bench, length, ready, cells)
    if bench.profiled:
        for attention, training in ready.items():
            cells[attention]["kernels"] = kernel_times(training.step, training.device)
    fastest = max((c["tokens_per_s"] for c in cells.values() if "tokens_per_s" in c), default=0.0)
    said(f"{length:,} tokens timed: {fastest:,.0f} tokens/s")
    return {"length": length, "batch": bench.batch(length), "cells": cells}


def _timed(bench: TrainBench, length: int, ready: dict[str, Training], cells: dict[str, dict[str, Any]]) -> None:
    device, seen = torch.device(bench.device), {name: [] for name in ready}
    last: dict[str, Tensor] = {}

    def sample(name: str) -> float:
        def steps() -> None:
            for _ in range(bench.steps):
                last[name] = ready[name].step()

        return once(steps, device) / bench.steps

    for repeat in range(bench.repeats + 1):  # a round to warm up: the allocator has seen the systems apart only
        for name in list(ready):
            reason = attempt(lambda name=name: seen[name].append(sample(name)), ours=name == OURS)
            if reason is not None:
                cells[name] = {"reason": reason}
                del ready[name], seen[name]
                continue
            if not math.isfinite(float(last[name])):
                raise RuntimeError(f"{name} at {length:,} tokens: the loss became {float(last[name])}")
            if repeat == 0:
                seen[name].clear()
    tokens = bench.batch(length) * length
    for name, values in seen.items():
        found: Time = summarize(values)
        cells[name] |= {
            "step_ms": found.ms, "low": found.low, "high": found.high, "samples": len(values),
            "tokens_per_s": tokens * 1e3 / found.ms,
        }  # fmt: skip


def conclusions(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By length: tokens/s of ours over those of softmax as torch chooses, and over the fastest softmax."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        rates = {name: cell["tokens_per_s"] for name, cell in row["cells"].items() if "tokens_per_s" in cell}
        rivals = {name: rate for name, rate in rates.items() if name != OURS}
        if OURS not in rates or not rivals:
            continue
        at = found[str(row["length"])] = {"over_fastest_softmax": rates[OURS] / max(rivals.values())}
        if SOFTMAX in rivals:
            at["over_softmax"] = rates[OURS] / rivals[SOFTMAX]
    return found


def _clear(bench: TrainBench) -> None:
    """Nothing of an earlier length stays: no memory, and no graphs, of which the compiler allows a few per function."""
    torch.compiler.reset()
    gc.collect()
    if bench.device.startswith("cuda"):
        torch.cuda.synchronize(bench.device)
        torch.cuda.empty_cache()


def _allocated(bench: TrainBench) -> int:
    return torch.cuda.memory_allocated(bench.device) if bench.device.startswith("cuda") else 0


def _peak(bench: TrainBench, training: Training, before: int) -> int | None:
    """Most bytes at once in a step: weights, optimizer, activations; less what was there before. None on a CPU."""
    if not bench.device.startswith("cuda"):
        return None
    torch.cuda.reset_peak_memory_stats(bench.device)
    training.step()
    torch.cuda.synchronize(bench.device)
    return torch.cuda.max_memory_allocated(bench.device) - before
