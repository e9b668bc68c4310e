"""Text from the model while it is trained."""

from collections.abc import Iterator
from typing import Any

from cosformer.models import CosformerConfig
from cosformer.models.decoding import Sampling
from cosformer.models.writing import continue_text, prompt_ids, token_ids
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
            tokenizer = trainer.data.tokenizer
            text = continue_text(
                trainer.model, tokenizer, prompt, max_new_tokens=sample.tokens, sampling=sampling, seed=seed
            )
            yield prompt, text if recipe.task == "translate" else space_between(tokenizer, prompt, text) + text


def space_between(tokenizer: Any, prompt: str, text: str) -> str:
    """What the tokenizer puts there: words are decoded with spaces between them, and the first new one has none."""
    if not prompt or not text or prompt[-1].isspace() or text[0].isspace():
        return ""
    try:
        before, first = token_ids(tokenizer, prompt), token_ids(tokenizer, text)[:1]
    except ValueError:  # it wrote what it cannot read: a sample is not worth a run
        return ""
    alone, both = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (before, [*before, *first]))
    rest = both.removeprefix(alone)
    return rest[: len(rest) - len(rest.lstrip())] if both.startswith(alone) else ""
