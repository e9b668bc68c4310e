"""Text from the model while it is trained."""

from collections.abc import Iterator
from typing import Any

from cosformer.models import CosformerConfig
from cosformer.models.decoding import Sampling
from cosformer.models.writing import continue_text, prompt_ids
from cosformer.training.held_out import at_rest
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe


def check_samples(recipe: Recipe, tokenizer: Any, config: CosformerConfig) -> None:
    """Before training: what cannot be written would end the run at its first evaluation."""
    if recipe.task not in ("lm", "translate"):
        return
    for prompt in recipe.sample.prompts:
        try:
            read = len(prompt_ids(tokenizer, prompt, source=recipe.task == "translate"))
        except ValueError as error:
            raise BadRecipe(f"sample.prompts={list(recipe.sample.prompts)}: {error}") from error
        longest = max(read, recipe.sample.tokens) if recipe.task == "translate" else read + recipe.sample.tokens - 1
        if config.has_longest and longest > config.horizon:
            raise BadRecipe(
                f"sample.tokens={recipe.sample.tokens} after the prompt {prompt!r} of {read} tokens, but the model's "
                f"horizon is {config.horizon}: set fewer sample.tokens, or a larger model.horizon"
            )


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
