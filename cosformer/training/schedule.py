"""The learning rate as a function of the step: a share of the peak."""

import math

from cosformer.training.recipe_sections import TrainRecipe


def rate_share(step: int, steps: int, train: TrainRecipe) -> float:
    """For the update number `step` (from 0) of `steps`. Warm-up is linear and never 0, so that every step counts."""
    warmup, final = min(train.warmup_steps, steps), train.final_share
    if train.schedule == "onecycle":
        return _onecycle(step, steps, warmup or round(0.3 * steps))
    if step < warmup:
        return (step + 1) / warmup
    if train.schedule == "inverse_sqrt":
        return math.sqrt(warmup / (step + 1))
    done = (step - warmup) / max(1, steps - warmup)
    if train.schedule == "linear":
        return final + (1 - final) * max(0.0, 1 - done)
    if train.schedule == "cosine":
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return 1.0


def _onecycle(step: int, steps: int, rise: int) -> float:
    """From 1/25 up to 1 and down to 1/250,000, both by cosines, as torch's OneCycleLR and so Long-Range Arena runs."""
    low, last = 1 / 25, 1 / 250_000
    if step < rise:
        start, end, done = low, 1.0, step / max(1, rise - 1) if rise > 1 else 1.0
    else:
        start, end, done = 1.0, last, (step - rise + 1) / max(1, steps - rise)
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
