"""What a queue consists of: names, recipes, who waits for whom, and what is refused."""

from pathlib import Path

import pytest
from training_data import tiny

from cosformer.sweeps import Variant, attention_variants, jobs_of
from cosformer.sweeps.arena import TASKS, arena_recipes
from cosformer.training import BadRecipe, load_recipe


def test_the_arena_has_five_tasks_in_two_sizes() -> None:
    assert TASKS == ("listops", "text", "retrieval", "image", "pathfinder")
    for large in (False, True):
        recipes = arena_recipes(TASKS, large=large, data={"text": "somewhere"}, assignments=["train.steps=7"])
        assert len(recipes) == 5
        assert all(recipe.train.steps == 7 for recipe in recipes.values())
        assert recipes["text-large" if large else "text"].data.path == ("somewhere",)


def test_common_settings_are_those_of_the_arena() -> None:
    wanted = {  # SPEC §6: length, batch, steps
        "listops": (2000, 32, 5_000), "text": (4000, 32, 20_000), "retrieval": (4000, 32, 30_000),
        "image": (1024, 256, 35_000), "pathfinder": (320, 256, 62_400),  # of these 1,024 pixels those that are lit
    }  # fmt: skip
    for task, recipe in arena_recipes(TASKS).items():
        assert (recipe.data.length, recipe.train.batch, recipe.train.steps) == wanted[task]
        shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_dropout",
                 "classifier_hidden_size")  # fmt: skip
        assert [recipe.model.config[name] for name in shape] == [64, 2, 2, 128, 0.1, 128]
        assert (recipe.model.config["positions"], recipe.model.config["pooling"]) == ("learned", "mean")
        rate = {"listops": 5e-4, "image": 2e-3}.get(task, 1e-4)  # of these others, told by validation
        assert (recipe.train.learning_rate, recipe.train.schedule) == (rate, "onecycle")
        assert recipe.data.valid_split == "valid"


def test_every_group_with_every_variant_and_seed() -> None:
    recipes = arena_recipes(["listops", "image"])
    jobs = jobs_of(recipes, attention_variants(["cosformer", "performer"]), [0, 3])
    assert [job.name for job in jobs] == [
        "listops-cosformer-0", "image-cosformer-0", "listops-performer-0", "image-performer-0",
        "listops-cosformer-3", "image-cosformer-3", "listops-performer-3", "image-performer-3",
    ]  # fmt: skip
    assert jobs[2].recipe.model.config["attention"] == "performer"
    assert [job.recipe.seed for job in jobs] == [0, 0, 0, 0, 3, 3, 3, 3]


def test_pretrained_ones_wait_for_their_own(tmp_path: Path) -> None:
    jobs = jobs_of(arena_recipes(["image"]), attention_variants(["cosformer"]), [0], pretrain=True)
    before, after = jobs
    assert (before.name, before.recipe.task, before.after) == ("image-pretrain-cosformer-0", "mlm", "")
    assert before.recipe.data.mask_share == 0.5
    assert after.after == before.name
    assert after.recipe_in(tmp_path).model.init == str(tmp_path / "runs" / before.name)


def test_one_pretraining_for_several_tasks(tmp_path: Path) -> None:
    recipes = {name: load_recipe(f"classify-{name}") for name in ("sst2", "imdb")}
    jobs = jobs_of(recipes, [Variant(name="plain")], [0], before={"mlm": load_recipe("mlm-wikitext2")})
    assert [(job.name, job.after) for job in jobs] == [
        ("mlm-plain-0", ""), ("sst2-plain-0", "mlm-plain-0"), ("imdb-plain-0", "mlm-plain-0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: arena_recipes(["listop"]), "no task 'listop': there are listops, text"),
        (lambda: arena_recipes(["listops"], data={"imag": "x"}), "no task 'imag'"),
        (lambda: attention_variants(["perfomer"]), "did you mean performer"),
        (lambda: jobs_of(arena_recipes(["listops"]), [], [0]), "without any variant"),
        (lambda: jobs_of(arena_recipes(["listops"]), attention_variants(["linear", "linear"]), [0]), "named twice"),
        (lambda: Variant(name="a/b"), "part of a file name"),
        (lambda: Variant(name="a", assignments=("seed=3",)), "take their seeds from --seeds"),
        (lambda: arena_recipes(["listops", "listops"]), "task 'listops' is named twice"),
        (lambda: arena_recipes(["listops"], assignments=["seed = 3"]), "take their seeds from --seeds"),
        (lambda: jobs_of(arena_recipes(["listops"]), attention_variants(["linear"]), [-1]), "seed=-1: from 0 to"),
        (lambda: jobs_of(arena_recipes(["listops"]), attention_variants(["linear"]), [2**32]), "from 0 to 4294967295"),
        (lambda: jobs_of({"a/b": load_recipe("lm-stdlib")}, [Variant(name="x")], [0]), "group 'a/b': a letter"),
        (
            lambda: jobs_of(
                {"a": load_recipe("lm-stdlib")}, [Variant(name="x", assignments=("model.attention=lnear",))], [0]
            ),
            "there is no attention 'lnear': did you mean linear",
        ),
    ],
)
def test_wrong_plans_are_refused(ask: object, words: str) -> None:
    assert callable(ask)
    with pytest.raises(BadRecipe, match=words):
        ask()


def test_a_model_starts_from_one_place() -> None:
    recipe = load_recipe("classify-sst2", "model.init=somewhere")
    with pytest.raises(BadRecipe, match=r"has model\.init='somewhere' and starts from mlm-x-0: leave one out"):
        jobs_of({"sst2": recipe}, [Variant(name="x")], [0], before={"mlm": load_recipe("mlm-wikitext2")})


def test_only_classifiers_are_self_pretrained(tmp_path: Path) -> None:
    variants = [Variant(name="plain")]
    with pytest.raises(BadRecipe, match="language models learn from text anyway"):
        jobs_of({"lm": load_recipe("lm-stdlib")}, variants, [0], pretrain=True)
    with pytest.raises(BadRecipe, match=r"has no pre-training: set pretrain\.steps"):
        jobs_of({"sst2": tiny("classify-sst2", tmp_path)}, variants, [0], pretrain=True)
