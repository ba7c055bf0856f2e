"""Tables of models beside the settings of the service."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from service.cli.options import choices
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.served import OPTIONS


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_takes_what_the_setting_takes(name: str) -> None:
    ours, theirs = ModelTable.model_fields[name], Settings.model_fields[name]
    assert choices(ours) == choices(theirs)
    if not choices(theirs):
        assert int in get_args(ours.annotation) or int in get_args(get_args(ours.annotation)[0])
    wrong: Any
    for wrong in ("x", -1, True, 1.5):
        with pytest.raises(ValidationError):
            ModelTable(**{name: wrong})


@pytest.mark.parametrize(
    "table",
    [
        {"prompts": {"query": "x" * 2049}},
        {"prompts": {str(number): "" for number in range(33)}},
        {"version": "0"},
        {"source": ""},
        {"load": "ondemand"},
        {"port": 1},
    ],
)
def test_what_a_table_cannot_have(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelTable(**table)
