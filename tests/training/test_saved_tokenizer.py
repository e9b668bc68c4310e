"""The tokenizer of a run gives a text the ids that training gave it, so that others ask the model as it was taught."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from training_data import TINY, WORDS, make_data, tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer, pipeline

import cosformer.models  # (registers the classes)
from cosformer.tasks import encoder_of
from cosformer.training import EvalSettings, evaluate, load_recipe, open_data, train
from cosformer.training.data import RunData
from cosformer.training.run_folder import stored_recipe
from cosformer.training.saved_tokenizer import save_tokenizer


def saved(data: RunData, folder: Path) -> Any:
    save_tokenizer(data, folder)
    return AutoTokenizer.from_pretrained(folder)


def texts_of(data: RunData, example: int) -> list[str]:
    """Read back from the tokens, which are those of the text alone."""
    shards = data.shards["train"]
    count = shards.manifest.texts
    return [data.tokenizer.decode(shards.read(*shards.document(count * example + i))) for i in range(count)]


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("length", [96, 24])
@pytest.mark.parametrize("name", ["classify-sst2", "classify-qqp", "classify-text"])
def test_a_classifier_is_asked_as_it_was_taught(name: str, length: int, pooling: str, tmp_path: Path) -> None:
    recipe = tiny(name, tmp_path / "data", f"model.pooling={pooling}", f"data.length={length}", "model.horizon=96")
    data = open_data(recipe, tmp_path / "cache")
    tokenizer, examples = saved(data, tmp_path / "tokenizer"), data.dataset("train")
    assert tokenizer.model_max_length == length
    cut = 0
    for i in range(20):
        texts, want = texts_of(data, i), examples[i]["input_ids"].tolist()
        whole = len(tokenizer(*texts)["input_ids"]) <= length
        cut += not whole
        if whole or len(texts) == 1:  # of two long texts, a tokenizer cuts by a rule of its own
            assert tokenizer(*texts, truncation=True)["input_ids"] == want
    assert (cut > 0) == (length == 24)


def test_sources_and_targets_end_as_in_training(tmp_path: Path) -> None:
    data = open_data(tiny("translate-multi30k", tmp_path / "data", "data.length=96"), tmp_path / "cache")
    tokenizer, pairs = saved(data, tmp_path / "tokenizer"), data.dataset("train")
    for i in range(5):
        source, target = texts_of(data, i)
        assert tokenizer(source)["input_ids"] == pairs[i]["input_ids"].tolist()
        assert tokenizer(text_target=target)["input_ids"] == pairs[i]["labels"].tolist()


@pytest.mark.parametrize("name", ["lm-text", "mlm-wikitext2", "lra-listops"])
def test_where_training_puts_no_marks_there_are_none(name: str, tmp_path: Path) -> None:
    data = open_data(tiny(name, tmp_path / "data"), tmp_path / "cache")
    text = "[MAX 4 2 ]" if name == "lra-listops" else "a small cat"
    tokenizer = saved(data, tmp_path / "tokenizer")
    assert tokenizer(text)["input_ids"] == encoder_of(data.tokenizer).encode([text.encode()])[0].tolist()
    assert tokenizer.model_max_length == (64 if name == "lm-text" else 32)  # the horizon; what a step of training read


def test_another_task_takes_the_marks_away_again(tmp_path: Path) -> None:
    """And says how long its own texts may be."""
    train(tiny("classify-text", tmp_path / "data", "data.length=24"), tmp_path / "classifier", device="cpu")
    init = f"model.init={tmp_path / 'classifier'}"
    data = open_data(tiny("mlm-wikitext2", tmp_path / "more", init, "tokenizer.kind=bytes"), tmp_path / "cache")
    assert data.tokenizer("cat")["input_ids"][-1] == data.tokenizer.eos_token_id
    tokenizer = saved(data, tmp_path / "tokenizer")
    assert (len(tokenizer("cat")["input_ids"]), tokenizer.model_max_length) == (3, 32)


def test_a_tokenizer_of_another_kind_keeps_the_marks_of_training(tmp_path: Path) -> None:
    """BERT's puts [CLS] before a text whenever it is read back, which no text of this training begins with."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    given = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=512)
    given.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    recipe = tiny("classify-sst2", tmp_path / "data", "tokenizer.kind=path", f"tokenizer.path={tmp_path / 'bert'}")
    data = open_data(recipe, tmp_path / "cache")
    assert isinstance(data.tokenizer, BertTokenizer)
    tokenizer, want = saved(data, tmp_path / "tokenizer"), data.dataset("train")[0]["input_ids"].tolist()
    assert tokenizer(texts_of(data, 0)[0], truncation=True)["input_ids"] == want
    assert encoder_of(tokenizer).fingerprint == encoder_of(data.tokenizer).fingerprint
    for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "padding_side", "model_input_names"):
        assert getattr(tokenizer, name) == getattr(given, name)


def test_marks_do_not_make_other_data(tmp_path: Path) -> None:
    """A run that goes on reads its tokenizer back, and tokens are known by it."""
    data = open_data(tiny("classify-sst2", tmp_path / "data"), tmp_path / "cache")
    again = saved(data, tmp_path / "tokenizer")
    assert again("a cat")["input_ids"] != data.tokenizer("a cat")["input_ids"]
    assert encoder_of(again).fingerprint == encoder_of(data.tokenizer).fingerprint
    assert encoder_of(again).encode([b"a cat"])[0].tolist() == encoder_of(data.tokenizer).encode([b"a cat"])[0].tolist()


def said_by_card(run: Path) -> str:
    code = (run / "README.md").read_text().split("```python\n")[1].split("```")[0].replace("this folder", str(run))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(code, {})
    return told.getvalue()


@pytest.mark.parametrize(
    ("name", "said"),
    [("lm-text", "Once"), ("classify-sst2", "'score'"), ("mlm-wikitext2", "'token_str'"), ("translate-multi30k", "\n"),
     ("lra-listops", "")],
)  # fmt: skip
def test_a_model_is_asked_as_its_card_says(name: str, said: str, tmp_path: Path) -> None:
    train(tiny(name, tmp_path / "data"), tmp_path / "run", device="cpu")
    assert said in said_by_card(tmp_path / "run")


def test_pipelines_take_long_texts_of_a_finished_run(tmp_path: Path) -> None:
    train(tiny("classify-sst2", tmp_path / "data"), tmp_path / "run", device="cpu")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    asked = pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert asked("a small cat " * 100, truncation=True)[0]["label"] in model.config.label2id


def test_how_texts_begin_is_the_same_in_training_and_after(tmp_path: Path) -> None:
    """Where the recipe leaves it open and the model started from says it."""
    train(tiny("classify-text", tmp_path / "data", "model.pooling=first"), tmp_path / "one", device="cpu")
    shipped = Path(cosformer.__file__).parent / "recipes" / "classify-text.toml"
    left_open = tmp_path / "classify-text.toml"
    left_open.write_text(shipped.read_text().replace('pooling = "mean"\n', ""))
    values = [*TINY, f"data.path={json.dumps(make_data('examples', tmp_path / 'data'))}", "eval.batches=0"]
    run, init = tmp_path / "two", f"model.init={tmp_path / 'one'}"
    summary = train(load_recipe(left_open, *values, init), run, device="cpu")
    assert stored_recipe(run).model.config["pooling"] == "first"  # pyright: ignore[reportOptionalMemberAccess]
    assert AutoTokenizer.from_pretrained(run)("a")["input_ids"][0] == 1
    again = evaluate(run, EvalSettings(split="valid"), device="cpu")
    assert again["metrics"]["loss"] == pytest.approx(summary.metrics["loss"], rel=1e-5)
