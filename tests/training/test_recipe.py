"""A recipe is checked at birth: names, types and values, with the fix in the message."""

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosformer.training import BadRecipe, load_recipe
from cosformer.training.recipe import Recipe, to_toml
from cosformer.training.recipe_sections import TrainRecipe
from cosformer.training.schedule import rate_share


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.atention=softmax", "did you mean model.attention?"),
        ("trian.steps=3", "did you mean train.steps?"),
        ("train.step=3", "did you mean train.steps?"),
        ("sed=3", "did you mean seed?"),
        ("train.steps=many", "train.steps='many' is text: use a whole number"),
        ("train.steps=2.5", "train.steps=2.5 is a number: use a whole number"),
        ("train.steps=true", "is true or false: use a whole number"),
        ("train.compile=yes", "'yes' is unknown: use one of auto, on, off, graphs"),
        ("model.hidden_size=wide", "use a whole number"),
        ("model.attention=3", "use text or a list of texts"),
        ("model.vocab_size=100", "it follows from the tokenizer"),
        ("model.causal=false", "it follows from the task"),
        ("train=3", "train is a section with fields of its own: set one of them, as train.x"),
        ("train={step=3}", "did you mean train.steps?"),
        ("train.clip=nan", "train.clip=nan: a finite number"),
        ("train.eps=inf", "train.eps=inf: a finite number"),
        ("train.batch=0", "at least 1"),
        ("train.learning_rate=-1", "a positive number"),
        ("train.warmup_steps=-1", "0 for none"),
        ("train.schedule=inverse_sqrt", "needs train.warmup_steps"),
        ("tokenizer.kind=path", "a path goes with kind path"),
        ("data.length=1", "at least 2"),
        ("tokenizer={kind='word',vocab_size=2}", "3 specials come first"),
        ("sample.prompts=[1]", "a list of texts"),
        ("nonsense", "write a field"),
        ("train.schedule=cosin", "'cosin' is unknown: did you mean cosine? use one of cosine, linear, constant, "),
        ("eval.keep=bst", "'bst' is unknown: did you mean best? use one of best, last"),
        ("eval.keep=3", "eval.keep=3 is a whole number: use one of best, last"),
        ("task=guess", "use one of lm, mlm, classify, translate"),
    ],
    ids=str,
)
def test_refuses(assignment: str, message: str) -> None:
    more = ["train.warmup_steps=0", assignment] if "inverse" in assignment else [assignment]
    with pytest.raises(BadRecipe) as error:
        load_recipe("lm-stdlib", *more)
    assert message in str(error.value)


def test_unknown_recipes_get_the_nearest_name() -> None:
    with pytest.raises(BadRecipe, match="did you mean lm-stdlib"):
        load_recipe("lm-stdlb")
    with pytest.raises(BadRecipe, match="is not there"):
        load_recipe("mine.toml")


def test_values_are_toml_and_bare_words_are_text() -> None:
    recipe = load_recipe(
        "lm-stdlib", "model.attention=softmax", "train.learning_rate=1", "train.steps=1_000", "seed=7",
        'sample.prompts=["a = b", "c"]', "data.path=some/where.txt", "train.fsdp=true",
    )  # fmt: skip
    assert recipe.model.config["attention"] == "softmax"
    assert (recipe.train.learning_rate, type(recipe.train.learning_rate)) == (1.0, float)
    assert (recipe.train.steps, recipe.seed, recipe.train.fsdp) == (1000, 7, True)
    assert recipe.sample.prompts == ("a = b", "c")
    assert recipe.data.path == ("some/where.txt",)
    assert load_recipe("lm-stdlib", "train={batch=3, clip=2.0}").train.batch == 3
    mixed = load_recipe("lm-stdlib", 'model.attention=["cosformer", "softmax"]', "model.num_hidden_layers=2")
    assert mixed.model.config["attention"] == ["cosformer", "softmax"]


def test_steps_and_epochs_replace_each_other() -> None:
    recipe = load_recipe("classify-sst2", "train.steps=10")
    assert (recipe.train.steps, recipe.train.epochs) == (10, 0.0)
    again = recipe.with_values(["train.epochs=2"])
    assert (again.train.steps, again.train.epochs) == (0, 2.0)
    assert recipe.with_values(["train={epochs=1}"]).train.steps == 0


def test_softmax_differs_in_nothing_else() -> None:
    ours, theirs = load_recipe("lm-enwik8"), load_recipe("lm-enwik8", "model.attention=softmax")
    assert dataclasses.replace(theirs, model=ours.model) == ours
    assert {**theirs.model.config, "attention": "cosformer"} == dict(ours.model.config)


@given(st.text(), st.lists(st.text(), max_size=3), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_toml_gives_back_what_was_written(words: str, several: list[str], number: float, flag: bool) -> None:
    import tomllib

    table = {"words": words, "several": several, "part": {"number": number, "flag": flag}}
    assert tomllib.loads(to_toml(table)) == table


def test_a_recipe_cannot_be_changed() -> None:
    recipe = load_recipe("lm-stdlib")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.seed = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        recipe.model.config["hidden_size"] = 3  # pyright: ignore[reportIndexIssue]
    assert isinstance(recipe, Recipe)


def rates(steps: int, **options: object) -> list[float]:
    train = TrainRecipe(steps=steps, **options)  # pyright: ignore[reportArgumentType]
    return [rate_share(step, steps, train) for step in range(steps)]


def test_schedules() -> None:
    cosine = rates(100, warmup_steps=10)
    assert cosine[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert cosine[10] == 1.0
    assert cosine[55] == pytest.approx(0.5)
    assert all(a > b > 0 for a, b in pairwise(cosine[10:]))
    assert rates(100, schedule="constant") == [1.0] * 100
    linear = rates(100, schedule="linear", final_share=0.2)
    assert linear[0] == 1.0
    assert linear[50] == pytest.approx(0.6)
    root = rates(400, schedule="inverse_sqrt", warmup_steps=100)
    assert (max(root), root[399]) == (1.0, pytest.approx(math.sqrt(100 / 400)))
    cycle = rates(100, schedule="onecycle")
    assert cycle[0] == pytest.approx(1 / 25)
    assert max(cycle) == cycle[29] == pytest.approx(1.0)
    assert cycle[-1] == pytest.approx(1 / 250_000)
