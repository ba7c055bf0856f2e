from __future__ import annotations

from transformers import BertConfig

from model.families.keys import SharedKeys
from tests.model.checkpoints import TINY


def test_defaults_are_berts() -> None:
    keys, theirs = SharedKeys.model_validate(TINY), BertConfig(**TINY)
    shared = SharedKeys.model_fields.keys() & vars(theirs).keys()
    assert len(shared) > 10
    assert {name: getattr(keys, name) for name in shared} == {
        name: getattr(theirs, name) for name in shared
    }
