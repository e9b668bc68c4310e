"""How a rival is named in a config, what its options are, and what is refused with which words."""

import re
import subprocess
import sys
from typing import Any

import pytest
from small_models import small_config
from transformers import AutoConfig

from cosformer.models import CosformerConfig


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
    "no such kind": ({"attention": "linaer"}, "attention='linaer' is unknown: use one of cosformer, softmax"),
    "option of none": ({"attention_options": {"features": 8}}, "unknown to attention='cosformer': it takes none"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_refused(case: str) -> None:
    options, words = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        small_config(**options)


def test_the_error_names_the_rivals() -> None:
    with pytest.raises(ValueError, match="linear, cosformer_nocos"):
        small_config(attention="softmin")


def test_options_are_saved_with_the_config(tmp_path: Any) -> None:
    config = small_config(attention=["linear", "cosformer"], attention_options={})
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, CosformerConfig)
    assert again.attention == ["linear", "cosformer"]
    assert again.attention_options == {}
