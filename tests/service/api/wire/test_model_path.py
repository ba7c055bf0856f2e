"""Names of models in paths."""

from __future__ import annotations

import pytest
from starlette.routing import compile_path

from service.api.wire.model_path import MODEL_PARAMETER


@pytest.mark.parametrize("name", ["a", "org/a", "", "a\n", "\n", "a\nb/c", "a b", "\x85"])
def test_any_text_is_a_name(name: str) -> None:
    for ending in ("", "/ready"):
        regex, template, convertors = compile_path(f"/models/{MODEL_PARAMETER}{ending}")
        found = regex.match(f"/models/{name}{ending}")
        assert found is not None
        assert convertors["model"].convert(found["model"]) == name
        assert template == f"/models/{{model}}{ending}"
