"""Messages about invalid settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.cli.options import settings_of


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[model.a]\nsorce = 1\n", "2, column 1: model.a.sorce is not a setting of a model: did"),
        ("[model.a]\n max-length = 'x'\n", "2, column 2: model.a.max-length=x must be a valid int"),
        ("[model.a]\nmax-length = true\n", "2, column 1: model.a.max-length=True must be a valid"),
        ("[model.a]\nload = 'pined'\n", "must be pinned, on-demand or off: did you mean pinned?"),
        ("model.a.precision = 'auto'\n", "1, column 1: model.a.precision=auto must be fp32, fp16"),
        ("model.a = 3\n", "line 1, column 1: model.a needs a table of settings"),
        ("[model.a]\nprompts = { q = 3 }\n", "2, column 13: model.a.prompts.q must be a valid str"),
        ("[alias]\nx = 5\n", "line 2, column 1: alias.x needs the name of a model"),
        ("[alias]\nx = { a = 1 }\n", "line 2, column 1: alias.x needs the name of a model"),
        ("[model.a]\n[model.a]\n", "line 2, column 9: Cannot declare"),
        ("x = " + 1000 * "[" + 1000 * "]", "too many levels"),
    ],
)
def test_a_mistake_in_a_table_has_its_place(content: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "headscope.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        settings_of({"config": file})
    assert str(refused.value).startswith(f"--config {file}")


def test_a_prompt_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "headscope.toml"
    file.write_text(f"model.a.prompts.q = '{'c4n4ry' * 400}'")
    with pytest.raises(ValueError, match=r"prompts\.q: String should have at most") as refused:
        settings_of({"config": file})
    assert "c4n4ry" not in str(refused.value)
