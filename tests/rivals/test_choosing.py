"""How a rival is named in a config, what its options are, and what is refused with which words."""

import dataclasses
import re
import subprocess
import sys
from typing import Any

import pytest
from small_models import small_config
from transformers import AutoConfig

from cosformer.models import CosformerConfig
from cosformer.models.kinds import make_options


def test_models_know_rivals_by_name_without_importing_them() -> None:
    program = (
        "import sys; from cosformer.models import CosformerConfig, KINDS; "
        "assert 'cosformer.rivals' not in sys.modules; CosformerConfig(attention='softmax'); "
        "assert 'cosformer.rivals' not in sys.modules; "
        "print(CosformerConfig(attention='linear', num_hidden_layers=1).layer_types)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cosformer_attention']"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such kind": ({"attention": "linaer"}, "did you mean linear? use one of cosformer, softmax, "),
    "option of none": ({"attention_options": {"features": 8}}, "unknown to attention='cosformer': it takes none"),
}


def wrong(attention: str, words: str, **options: Any) -> tuple[dict[str, Any], str]:
    return {"attention": attention, "causal": attention != "bigbird", "attention_options": options}, words


WRONG |= {
    "half a feature": wrong(
        "performer",
        "attention_options: features=2.5 is a float: features is a whole number or None",
        features=2.5,
    ),
    "features by name": wrong("performer", "features='a' is a str: features is a whole number or None", features="a"),
    "a yes for a number": wrong("performer", "redraw=True is a bool: redraw is a whole number", redraw=True),
    "none for a number": wrong("rfa", "redraw=None is a NoneType: redraw is a whole number", redraw=None),
    "half a seed": wrong("performer", "seed=1.5 is a float: seed is a whole number", seed=1.5),
    "a number for a name": wrong("linear", "spe=3 is a int: spe is a name", spe=3),
    "a list of blocks": wrong("bigbird", "block=[8] is a list: block is a whole number", block=[8]),
    "a seed below zero": wrong("reformer", "seed=-1: use a whole number from 0 to 65,535", seed=-1),
    "a seed too large": wrong("bigbird", f"seed={2**70}: use a whole number from 0 to 65,535", seed=2**70),
    "a seed of features too large": wrong("rfa", "seed=65536: use a whole number from 0 to 65,535", seed=2**16),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_refused(case: str) -> None:
    options, words = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        small_config(**options)


def test_the_error_names_the_rivals() -> None:
    with pytest.raises(ValueError, match="linear, cosformer_nocos"):
        small_config(attention="softmin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignOptions:
    share: float = 0.5
    sides: tuple[int, ...] = (1, 2)
    sharp: bool = False
    either: int | str = 1


@pytest.mark.parametrize("told", [{"share": 1}, {"share": 0.1}, {"sides": [3]}, {"sharp": True}, {"either": "a"}])
def test_options_of_kinds_elsewhere_may_be_of_other_types(told: dict[str, Any]) -> None:
    assert dataclasses.asdict(make_options(ForeignOptions, told)).items() >= told.items()


@pytest.mark.parametrize("told", [{"share": "a"}, {"share": True}, {"sharp": 1}, {"either": 1.5}])
def test_what_is_none_of_the_types_is_refused(told: dict[str, Any]) -> None:
    (name,) = told
    with pytest.raises(ValueError, match=f"^{name}=.* is a "):
        make_options(ForeignOptions, told)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForTypeCheckers:
    share: "NowhereToBeFound" = None  # type: ignore[name-defined] # noqa: F821


def test_types_that_only_a_type_checker_knows_are_not_checked() -> None:
    assert make_options(ForTypeCheckers, {"share": "anything"}).share == "anything"


def test_options_are_saved_with_the_config(tmp_path: Any) -> None:
    config = small_config(attention=["linear", "cosformer"], attention_options={})
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, CosformerConfig)
    assert again.attention == ["linear", "cosformer"]
    assert again.attention_options == {}
