from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ElectraConfig, ElectraForMultipleChoice, ElectraModel

from model.checkpoint import load_checkpoint
from tests.model.families.parity import SIZES, assert_equal_to, saved


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_size": 16},
        {"embedding_size": 24},
        {"embedding_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(ElectraModel(ElectraConfig(**SIZES | changes)), tmp_path)


def test_what_summarises_choices_lies_outside(tmp_path: Path) -> None:
    choices = ElectraForMultipleChoice(ElectraConfig(**SIZES))
    load_checkpoint(saved(choices, tmp_path))
