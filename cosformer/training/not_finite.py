"""NaN and infinity: seen at the step they appear, named by tensor, before any weight has changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NORM = "the norm of the gradient"
WEIGHT = "the weight"


class NotFinite(RuntimeError):
    """The loss or a gradient is not a number. The weights are still those before the step."""


class Guard:
    """Watches the norm of the gradient, which no NaN in loss or gradients escapes.

    Where looking costs nothing (CPU), it looks at every step. On CUDA, looking would make the CPU wait for the GPU at
    every step: instead, the fused optimizer is told (by its `found_inf`) to change nothing from the first bad norm on,
    and `look` is called where the run waits anyway (deferred). Either way the weights are those that met the bad batch.
    """

    def __init__(self, optimizer: Callable[[], Any], *, deferred: bool) -> None:
        self.optimizer, self.deferred = optimizer, deferred
        self.first_bad: Tensor | None = None
        """The step of the first bad norm, −1 while there is none."""

    def see(self, norm: Any, step: int) -> int | None:
        """Before an update: the step, where it is bad and that is known at once."""
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not self.deferred or not isinstance(norm, Tensor):
            return None if bool(torch.isfinite(torch.as_tensor(norm))) else step
        if self.first_bad is None:
            self.first_bad = torch.full((), -1, dtype=torch.int64, device=norm.device)
        new = (self.first_bad < 0) & ~torch.isfinite(norm)
        self.first_bad.masked_fill_(new, step)
        inner = getattr(self.optimizer(), "optimizer", self.optimizer())  # accelerate wraps it
        inner.grad_scale, inner.found_inf = None, (self.first_bad >= 0).float()
        return None

    def look(self) -> int | None:
        """The step of the first bad norm so far; waits for the GPU."""
        if self.first_bad is None:
            return None
        step = int(self.first_bad)
        return step if step >= 0 else None


def in_words(step: int, found: str, epoch: int, examples: list[int], last: Path | None, init: str) -> str:
    """Where it was met, what is kept, and what to try; last: the newest checkpoint; init: the model started from."""
    if found.startswith(WEIGHT) and step == 0:  # no update came before it, and no example is at fault
        why = "as it was drawn: try a smaller model.initializer_range"
        if init:
            why = f"as model.init={init!r} has it: start from another model, or an earlier checkpoint of it"
        return f"step 1: {found} is not finite, {why}"
    shown = ", ".join(str(i) for i in examples[:8]) + (f" and {len(examples) - 8} more" if len(examples) > 8 else "")
    kept = "there is no checkpoint yet"
    if last is not None:
        kept = f"the last good checkpoint is {last.name}, from which a new run starts by --set model.init={last}"
    changed = "The weights were not changed and nothing was saved after it"
    if found.startswith(WEIGHT):
        changed = "The update before it made it so"
        kept = f"the newest checkpoint is {last.name}, which may hold it too" if last is not None else kept
    return (
        f"step {step + 1}: {found} is not finite (epoch {epoch}, examples {shown}). {changed}; {kept}. Try a smaller "
        "train.learning_rate, more train.warmup_steps, train.precision=fp32, or look at these examples"
    )


def find_tensor(model: nn.Module, run: Callable[[], Tensor]) -> str:
    """The first tensor that is not finite: a weight, an output in the forward, a gradient in the backward.

    `run` computes the loss of the bad batch again.
    """
    for name, p in model.named_parameters():
        if not _finite(p):
            return f"{WEIGHT} {name}"
    seen: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for part in output if isinstance(output, tuple | list) else (output,):
                if not seen and isinstance(part, Tensor) and part.is_floating_point() and not _finite(part):
                    seen.append(f"the output of {name or 'the model'} ({type(module).__name__})")

        return hook

    leaves = [(n, m) for n, m in model.named_modules() if not any(m.children()) or hasattr(m, "kind")]
    hooks = [module.register_forward_hook(watch(name)) for name, module in leaves]
    try:
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = run()
            if not seen and not _finite(loss):
                seen.append("the loss")
            if seen:
                return seen[0]
            loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    return find_gradient(model)


def find_gradient(model: nn.Module) -> str:
    """The last one of the model that is not finite: where the backward, which goes from the end, met it first."""
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    return f"the gradient of {bad[-1]}" if bad else f"{NORM} (each alone is finite: too large)"


def _finite(x: Any) -> bool:
    x = x.full_tensor() if hasattr(x, "full_tensor") else x
    return bool(torch.isfinite(x.detach()).all())
