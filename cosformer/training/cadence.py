"""When a run logs, evaluates, saves and stops; what each of its steps draws."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from cosformer.tasks.keyed_random import key_of

if TYPE_CHECKING:
    from cosformer.training.engine import RunTrainer


class Cadence(TrainerCallback):
    """When to log, evaluate and save; the seed of each step; a stop that was asked for."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer.is_fsdp_enabled and not self.trainer.sharded:
            raise RuntimeError(
                "FSDP was asked for and no weight is sharded: these versions of torch and accelerate do not"
            )
        self.trainer.restore_untold()
        self.trainer.window_begin = time.perf_counter()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        seed_step(self.trainer.recipe.seed, state.global_step, args.process_index, args.device)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        recipe, step = self.trainer.recipe, state.global_step
        last = step >= state.max_steps
        control.should_log = step % recipe.train.log_every == 0 or last
        control.should_evaluate = step % recipe.eval.every == 0 or last
        control.should_save = step % recipe.train.save_every == 0 or last
        if self._stop(args, step):
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Trainer looks at the flags of the last step once more: it has been logged, evaluated and saved."""
        control.should_log = control.should_evaluate = control.should_save = False

    def _stop(self, args: Any, step: int) -> bool:
        """Processes agree before any of them stops, or the others would wait for it."""
        if args.world_size == 1:
            return self.trainer.interrupted
        if step % self.trainer.recipe.train.log_every:
            return False
        asked = torch.full((1,), float(self.trainer.interrupted), device=args.device)
        self.trainer.interrupted = bool(self.trainer.accelerator.reduce(asked, "sum").item())
        return self.trainer.interrupted


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Dropout is a function of (seed, step, process): a run that goes on draws what it would have drawn.

    Not by torch.manual_seed: for every kind of device that is not in use it keeps the seed and a printed stack for
    later, at every call, which took a millisecond a step and would fill the memory of a long run.
    """
    number = int(key_of("step", seed, step, rank) >> 1)  # pyright: ignore[reportOperatorIssue]
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
