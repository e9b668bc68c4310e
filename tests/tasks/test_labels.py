"""Which classes a column holds, and which columns hold none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cosformer.tasks import BadData, ExampleFiles
from cosformer.tasks.pieces import Place
from cosformer.tasks.sources.labels import label_number


def table(path: Path, labels: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps({"text": f"text {i}", "label": label}) for i, label in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([30000000, 30000001], ("30000000", "30000001")),
        (list(range(1990, 2020)), tuple(map(str, range(1990, 2020)))),
        ([1, 2, 3, 4, 5], ("1", "2", "3", "4", "5")),
        (["4", "0", "2"], ("0", "2", "4")),
        ([2, 0, 1], ("0", "1", "2")),
        ([9, 10, -1], ("-1", "9", "10")),
        ([1.0, 0.0, 2], ("0", "1", "2")),
        (["1.0", "3"], ("1", "3")),
        ([True, False], ("False", "True")),
        (["b", " a ", "10"], ("10", "a", "b")),
    ],
)
def test_classes_are_those_that_there_are(tmp_path: Path, labels: list[Any], classes: tuple[str, ...]) -> None:
    source = ExampleFiles([table(tmp_path / "a.jsonl", labels * 4)], held_out=(0, 0))
    assert source.classes == classes
    found = [example.label for example in source.examples("train")]
    names = [str(label).strip().removesuffix(".0") for label in labels] * 4
    assert [classes[label] for label in found if label is not None] == names


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (None, "line 7: column 'label' holds None, which is no class"),
        ("", "line 7: column 'label' holds '', which is no class"),
        ("  ", "holds '  ', which is no class"),
        (float("nan"), "line 7: column 'label' holds nan, which is no class"),
        ("NaN", "holds 'NaN', which is no class"),
        (3.25, "line 7: column 'label' holds 3.25: is it a number to predict? This task wants classes"),
        ("3.25", "line 7: column 'label' holds 3.25: is it a number to predict?"),
        (float("inf"), "holds inf: is it a number to predict?"),
        (["a", "b"], "one class per row was expected"),
    ],
)  # fmt: skip
def test_what_is_no_class_is_refused(tmp_path: Path, wrong: Any, words: str) -> None:
    path = table(tmp_path / "a.jsonl", [*[0, 1] * 3, wrong])
    with pytest.raises(BadData, match=re.escape(words)) as error:
        ExampleFiles([path])
    assert str(error.value).startswith(str(path))
    with pytest.raises(BadData, match=re.escape("line 7")):
        list(ExampleFiles([path], classes=("0", "1"), held_out=(0, 0)).examples("train"))


def test_numbers_that_are_classes_are_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", [0.5, 1.5, 1.5])
    source = ExampleFiles([path], classes=("0.5", "1.5"), held_out=(0, 0))
    assert [example.label for example in source.examples("train")] == [0, 1, 1]


def test_labels_that_never_come_back_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", [f"name {i}" for i in range(600)])
    with pytest.raises(BadData, match=r"600 different labels in 600 rows, and 600 of them occur once.*--label"):
        ExampleFiles([path])
    table(path, list(range(600)))
    with pytest.raises(BadData, match="occur once"):
        ExampleFiles([path])
    rare = [f"rare {i}" for i in range(12)]
    assert len(ExampleFiles([table(path, [*["a", "b"] * 500, *rare])]).classes) == 14
    with pytest.raises(BadData, match="more than 1000 different labels in column 'label': name another with --label"):
        ExampleFiles([table(path, list(range(2000)))])


def test_numbers_stand_for_names_but_not_for_other_numbers() -> None:
    place = Place("a.csv", 3)
    assert label_number(place, {"label": 1}, "label", ("no", "yes")) == 1
    assert label_number(place, {"label": "1"}, "label", ("1", "2")) == 0
    with pytest.raises(BadData, match=r"label 0 in column 'label' is none of the 2 classes \(1, 2\); .* --classes"):
        label_number(place, {"label": 0}, "label", ("1", "2"))
    with pytest.raises(BadData, match=r"19, … 80 more\) nor a number from 0 on"):
        label_number(place, {"label": "x"}, "label", (*map(str, range(99)), "word"))


def test_classes_that_are_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", ["neg", "pos", "neg"])
    assert ExampleFiles([path], classes=("neg", " pos")).classes == ("neg", "pos")
    for wrong in (("neg",), ("neg", "neg "), ("neg", "")):
        with pytest.raises(ValueError, match="name two at least, each once"):
            ExampleFiles([path], classes=wrong)
    source = ExampleFiles([path], valid=[table(tmp_path / "v.jsonl", ["new"])])
    with pytest.raises(BadData, match=r"v\.jsonl, line 1: label 'new' .* named with --classes, all of them"):
        list(source.examples("valid"))


def test_columns_that_are_one(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", ["neg", "pos", "neg"])
    with pytest.raises(ValueError, match="a pair of a text with itself; name two different columns with --column"):
        ExampleFiles([path], columns=("text", "text"))
    with pytest.raises(ValueError, match="the class would be read as text"):
        ExampleFiles([path], columns=("label",))
