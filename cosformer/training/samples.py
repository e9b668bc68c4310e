"""Text from the model while it is trained."""

from collections.abc import Iterator
from typing import Any

from cosformer.models.decoding import Sampling
from cosformer.models.writing import continue_text
from cosformer.training.held_out import at_rest


def write_samples(trainer: Any, *, seed: int) -> Iterator[tuple[str, str]]:
    """What follows each prompt of the recipe; of translation, the answer. A sharded model writes in all processes."""
    recipe = trainer.recipe
    if recipe.task not in ("lm", "translate") or not recipe.sample.prompts:
        return
    if not (trainer.is_fsdp_enabled or trainer.args.process_index == 0):
        return
    sample = recipe.sample
    drawn = recipe.task == "lm" and sample.temperature > 0  # a translation is the likeliest
    sampling = Sampling(temperature=sample.temperature, top_p=sample.top_p) if drawn else Sampling()
    with at_rest(trainer.model):
        for prompt in sample.prompts:
            yield (
                prompt,
                continue_text(
                    trainer.model,
                    trainer.data.tokenizer,
                    prompt,
                    max_new_tokens=sample.tokens,
                    sampling=sampling,
                    seed=seed,
                ),
            )
