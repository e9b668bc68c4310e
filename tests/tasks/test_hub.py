"""Data sets by name go through `datasets`; here they are local files behind its own builders."""

import json
from pathlib import Path

import pytest

from cosformer.tasks import BadData, HubExamples, HubText, SourceMissing

pytest.importorskip("datasets", reason="hub data sets: pip install cosformer[data]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = tmp_path / "set"
    data.mkdir()
    for split, count in (("train", 5), ("validation", 2)):
        lines = [json.dumps({"text": f"{split} {i}", "other": "é", "label": i % 2}) for i in range(count)]
        (data / f"{split}.jsonl").write_text("\n".join(lines))
    return data


def test_text(folder: Path) -> None:
    source = HubText(str(folder))
    assert source.splits == ("train", "valid")
    assert [piece.data for piece in source.pieces("valid")] == [b"validation 0", b"validation 1"]
    assert json.dumps(source.stamp("train"))
    with pytest.raises(BadData, match="train, line 1: there is no column 'body'"):
        list(HubText(str(folder), column="body").pieces("train"))


def test_examples(folder: Path) -> None:
    source = HubExamples(str(folder), columns=("text", "other"), classes=("no", "yes"))
    found = list(source.examples("train"))
    assert [(e.texts, e.label) for e in found[:2]] == [(("train 0", "é"), 0), (("train 1", "é"), 1)]
    with pytest.raises(BadData, match="name them with --classes"):
        HubExamples(str(folder))


def test_an_unknown_name_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceMissing, match="Check the name, the configuration and the network"):
        HubText(str(tmp_path / "nowhere"))
