"""evaluate(): the numbers are those of the definition, whatever the batches, and what cannot be read is refused."""

import errno
import json
import math
from pathlib import Path

import pytest
import torch
from training_data import tiny

from cosformer.compare.quality import read_quality
from cosformer.models.writing import continue_text, load_model, prompt_ids
from cosformer.report import read_run, report_page
from cosformer.sweeps.outcomes import measured
from cosformer.tasks import bleu
from cosformer.training import EvalSettings, RunSummary, evaluate, evaluation, open_data, train

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for name, more in {
        "lm-text": ["eval.batches=0"], "classify-sst2": ["eval.batches=0"], "translate-multi30k": [],
        "mlm-wikitext2": [],
    }.items():  # fmt: skip
        train(tiny(name, root / f"{name}-data", *more), root / name, device="cpu")
    return {path.name: path for path in root.iterdir() if (path / "run.json").is_file()}


def test_on_the_split_of_training_it_says_what_training_said(runs: dict[str, Path]) -> None:
    for name in ("lm-text", "classify-sst2"):
        said = RunSummary.read(runs[name]).metrics
        settings = EvalSettings(split="valid", stride=32 if name == "lm-text" else 0)
        got = evaluate(runs[name], settings, device="cpu")["metrics"]
        measure = "bits_per_byte" if name == "lm-text" else "accuracy"
        assert got[measure] == pytest.approx(said[measure], rel=1e-6)
        assert got["loss"] == pytest.approx(said["loss"], rel=1e-5)


@pytest.mark.parametrize(("context", "stride"), [(32, 0), (32, 5), (16, 16), (7, 3)])
def test_every_token_counts_once_with_what_stands_before_it(runs: dict[str, Path], context: int, stride: int) -> None:
    run = runs["lm-text"]
    result = evaluate(run, EvalSettings(context=context, stride=stride, batch=5), device="cpu")
    stride = stride or context // 2
    assert result["settings"] == {"context": context, "batch": 5, "batches": "all", "stride": stride}
    assert result["split"] == "test"
    data = open_data(_recipe(run), run.parent / "data-cache", splits=["test"], tokenizer=_tokenizer(run))
    shards, model = data.shards["test"], load_model(run)
    text = [data.tokenizer.eos_token_id, *shards.read(0, shards.tokens).tolist()]
    nats, at, end = 0.0, 0, min(context, shards.tokens)
    while at < shards.tokens:  # by the definition, a window at a time
        begin = max(0, end - context)
        with torch.no_grad():
            logits = model(torch.tensor([text[begin:end]])).logits[0].double()
        logp = logits.log_softmax(-1)
        nats -= sum(float(logp[t - begin, text[t + 1]]) for t in range(at, end))
        at, end = end, min(end + stride, shards.tokens)
    assert result["metrics"]["tokens"] == shards.tokens
    assert result["metrics"]["loss"] == pytest.approx(nats / shards.tokens, rel=1e-5)
    assert result["metrics"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / shards.manifest.bytes, rel=1e-5)
    assert json.loads(Path(result.pop("file")).read_text()) == result


WORDS = ("tokenizer.kind=word", 'sample.prompts=["the cat"]')


def test_text_whose_words_are_unknown_has_no_bits_per_byte(tmp_path: Path) -> None:
    """<unk> does not spell the bytes it was divided by: 0.758 bits per byte after 30 steps."""
    train(tiny("lm-text", tmp_path / "data", *WORDS, "tokenizer.vocab_size=8"), tmp_path / "run", device="cpu")
    said = RunSummary.read(tmp_path / "run").metrics
    tokens = open_data(_recipe(tmp_path / "run"), tmp_path / "data-cache", splits=["valid"]).shards["valid"]
    share = (tokens.read(0, tokens.tokens) == 2).mean()
    assert said["unknown_share"] == share > 0.5
    assert said["perplexity"] > 1
    found = evaluate(tmp_path / "run", EvalSettings(split="valid", stride=32), device="cpu")["metrics"]
    for numbers in (said, found):
        assert not {"bits_per_byte", "word_perplexity"} & numbers.keys()
    assert dict(evaluation.own_numbers(found))["unknown share"].startswith(f"{share:.2%} of the tokens are <unk>")
    # whatever shows or compares runs has perplexity left
    row = read_quality([tmp_path / "run"]).rows[0]
    assert (row.metric, row.value, row.better) == ("perplexity", found["perplexity"], "lower")
    queued = measured(
        tmp_path / "run", RunSummary.read(tmp_path / "run"), tested=True, path=(), device="cpu",
        cache=tmp_path / "data-cache", parallel=1,
    )  # fmt: skip
    assert (queued["metric"], queued["valid"]) == ("perplexity", said["perplexity"])
    assert queued["value"] > 1
    page = report_page(read_run(tmp_path / "run"))
    assert "held-out perplexity" in page
    assert f"split valid; {share:.1%} of its tokens are &lt;unk&gt;" in page


def test_text_that_writes_unk_itself_has_bits_per_byte(tmp_path: Path) -> None:
    """As WikiText does: the word is known, by that name."""
    recipe = tiny("lm-wikitext2-word", tmp_path / "data")
    for path in (tmp_path / "data").iterdir():
        path.write_text(path.read_text().replace("cat", "<unk>"))
    train(recipe, tmp_path / "run", device="cpu")
    metrics = evaluate(tmp_path / "run", device="cpu")["metrics"]
    assert metrics["bits_per_byte"] > 0
    assert "unknown_share" not in metrics


def test_accuracy_has_an_interval_and_does_not_depend_on_the_batch(runs: dict[str, Path]) -> None:
    each = [evaluate(runs["classify-sst2"], EvalSettings(batch=n), device="cpu") for n in (1, 7)]
    assert [r["split"] for r in each] == ["valid", "valid"]  # GLUE's test has no labels
    for name, value in each[0]["metrics"].items():
        assert each[1]["metrics"][name] == pytest.approx(value, rel=1e-5)
    found = each[0]["metrics"]
    assert found["accuracy_low"] < found["accuracy"] < found["accuracy_high"]
    assert found["examples"] == 60


def test_bleu_is_that_of_translations_one_by_one(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["translate-multi30k"]
    seen: list[tuple] = []
    monkeypatch.setattr("cosformer.training.evaluation.bleu", lambda a, b: seen.append((a, b)) or bleu(a, b))
    result = evaluate(run, EvalSettings(batch=4), device="cpu")
    data = open_data(_recipe(run), run.parent / "data-cache", splits=["test"], tokenizer=_tokenizer(run))
    model, dataset = load_model(run), data.dataset("test")
    alone = [
        data.tokenizer.decode(
            model.generate(dataset[i]["input_ids"][None], max_new_tokens=32, do_sample=False)[0],
            skip_special_tokens=True,
        ).strip()
        for i in range(len(dataset))
    ]  # fmt: skip
    ((said, true),) = seen
    assert said == alone
    assert true == [example.texts[1].strip() for example in data.source.examples("test")]  # type: ignore[attr-defined]
    assert result["metrics"]["bleu"] == bleu(alone, true)["bleu"]
    assert "version" in str(result["metrics"]["signature"])


def test_a_prompt_is_translated_as_the_same_source_of_a_split(runs: dict[str, Path]) -> None:
    """With the <eos> that ends every source."""
    run = runs["translate-multi30k"]
    data = open_data(_recipe(run), run.parent / "data-cache", splits=["test"], tokenizer=_tokenizer(run))
    model, ids = load_model(run), data.dataset("test")[0]["input_ids"]
    prompt = data.tokenizer.decode(ids[:-1])
    assert prompt_ids(data.tokenizer, prompt, source=True) == ids.tolist()
    wanted = model.generate(ids[None], max_new_tokens=9, do_sample=False)[0, 1:]
    words = data.tokenizer.decode(wanted, skip_special_tokens=True)
    assert continue_text(model, data.tokenizer, prompt, max_new_tokens=9) == words


def test_a_context_cuts_sources_and_no_targets(runs: dict[str, Path]) -> None:
    results = [
        evaluate(runs["translate-multi30k"], EvalSettings(split="valid", context=n), device="cpu") for n in (0, 16)
    ]
    assert results[0]["metrics"]["tokens"] == results[1]["metrics"]["tokens"]
    assert results[0]["metrics"]["loss"] != results[1]["metrics"]["loss"]


def test_a_part_is_a_part(runs: dict[str, Path]) -> None:
    result = evaluate(runs["mlm-wikitext2"], EvalSettings(batch=2, batches=3), device="cpu")
    assert "3 batches spread over test" in result["how"]
    assert 1 < result["metrics"]["perplexity"] < 1e4
    part = evaluate(runs["translate-multi30k"], EvalSettings(batch=3, batches=2, beams=2), device="cpu")
    assert "2 beams" in part["how"]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lm-text", {"context": 65}, "horizon is 64"),
        ("lm-text", {"stride": 40}, "passed over"),
        ("lm-text", {"beams": 2}, "only translation"),
        ("lm-text", {"split": "tset"}, "no split 'tset'"),
        ("classify-sst2", {"stride": 4}, "only text that streams"),
        ("lm-text", {"batch": -1}, "a count"),
        ("lm-text", {"beams": 0}, "beams=0"),
    ],
)
def test_what_cannot_be_read_so_is_refused(
    runs: dict[str, Path], name: str, settings: dict, words: str, tmp_path: Path
) -> None:
    before = sorted(path.name for path in runs[name].iterdir())
    with pytest.raises(ValueError, match=words):
        evaluate(runs[name], EvalSettings(**settings), device="cpu")
    assert sorted(path.name for path in runs[name].iterdir()) == before
    with pytest.raises(ValueError, match="holds no finished run"):
        evaluate(tmp_path, device="cpu")


def test_a_device_that_is_not_here_is_refused_in_words(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "gpu"):
        with pytest.raises(ValueError, match=f"'{device}' is not on this machine: use one of cpu"):
            evaluate(runs["lm-text"], device=device)


def test_other_classes_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["classify-sst2"]
    config = json.loads((run / "config.json").read_text())
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (changed / path.name).write_bytes(path.read_bytes())
    config["id2label"] = {"0": "bad", "1": "good"}
    config["label2id"] = {"bad": 0, "good": 1}
    (changed / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="the model bad, good"):
        evaluate(changed, device="cpu", cache=tmp_path / "cache")


def _recipe(run: Path):
    from cosformer.training.run_folder import stored_recipe

    return stored_recipe(run)


def _tokenizer(run: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(run)


def test_the_numbers_are_not_lost_where_nothing_can_be_written(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(evaluation, "write_atomically", refuse)
    result = evaluate(runs["classify-sst2"], EvalSettings(split="valid"), device="cpu")
    assert result["file"] is None
    assert 0 <= result["metrics"]["accuracy"] <= 1


def test_files_of_ones_own_are_tested_whole(runs: dict[str, Path], tmp_path: Path) -> None:
    mine = tmp_path / "other.txt"
    mine.write_text("the cat sees a dog .\n" * 40)
    result = evaluate(runs["lm-text"], EvalSettings(test_path=(str(mine),)), device="cpu")
    assert (result["split"], result["metrics"]["tokens"]) == ("test", len(mine.read_bytes()))
    # tables of runs read eval-test.json as the number of the run's own data
    assert Path(result["file"]).name == "eval-test-own.json"
    with pytest.raises(ValueError, match=r"--test-data .*the run is of sst2"):
        evaluate(runs["classify-sst2"], EvalSettings(test_path=(str(mine),)), device="cpu")


@pytest.mark.parametrize("name", ["classify-sst2", "translate-multi30k"])
def test_lengths_that_are_no_multiple_are_read_to_the_horizon(name: str, tmp_path: Path) -> None:
    """Rounding up what is padded would pass it, wherever a text is as long as texts may be."""
    short = ("data.length=21", "model.horizon=21", "train.steps=4", "sample.prompts=[]")
    train(tiny(name, tmp_path / "data", *short), tmp_path / "run", device="cpu")
    model = load_model(tmp_path / "run")
    assert model.config.horizon == 21
    for context in (21, 19):
        result = evaluate(tmp_path / "run", EvalSettings(split="valid", context=context), device="cpu")
        assert math.isfinite(result["metrics"]["loss"])


def test_some_batches_are_not_taken_for_the_whole(runs: dict[str, Path]) -> None:
    for batches, name in ((0, "eval-valid.json"), (1, "eval-valid-part.json")):
        result = evaluate(runs["lm-text"], EvalSettings(split="valid", batches=batches), device="cpu")
        assert Path(result["file"]).name == name


def test_files_that_lack_a_class_are_tested_by_the_models_classes(tmp_path: Path) -> None:
    def rows(path: Path, labels: str) -> str:
        path.write_text("".join(json.dumps({"text": f"word {i}", "label": c}) + "\n" for i, c in enumerate(labels)))
        return str(path)

    recipe = tiny("classify-text", tmp_path / "data", f'data.path="{rows(tmp_path / "mine.jsonl", "abc" * 40)}"')
    train(recipe, tmp_path / "run", device="cpu")
    other = rows(tmp_path / "other.jsonl", "ca" * 30)
    (tmp_path / "mine.jsonl").unlink()  # it is not wanted any more
    result = evaluate(tmp_path / "run", EvalSettings(test_path=(other,)), device="cpu")
    assert result["metrics"]["examples"] == 60
    strange = rows(tmp_path / "strange.jsonl", "cd" * 30)
    with pytest.raises(ValueError, match=r"'d' in column 'label' is none of the 3 classes .* knows no others") as told:
        evaluate(tmp_path / "run", EvalSettings(test_path=(strange,)), device="cpu")
    assert "--classes" not in str(told.value)


def test_own_files_are_refused_by_options_that_there_are(runs: dict[str, Path], tmp_path: Path) -> None:
    """Messages named --data, which was not given, and --column, which only training has."""
    absent, table = tmp_path / "none.txt", tmp_path / "c.csv"
    with pytest.raises(FileNotFoundError, match=r"^--test-data .*none\.txt: there is no such file"):
        evaluate(runs["lm-text"], EvalSettings(test_path=(str(absent),)), device="cpu")
    table.write_text("body,n\nthe cat,1\n")
    with pytest.raises(ValueError, match="no column 'text'; there are body, n: give the one to read that name") as told:
        evaluate(runs["lm-text"], EvalSettings(test_path=(str(table),)), device="cpu")
    assert "--column" not in str(told.value)
