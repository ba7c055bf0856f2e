"""Settings of each model, and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from service.settings.served import of_model, prompts_given

FILE = """
max-length = 64
threads = 1
[model.a]
source = "all-MiniLM-L6-v2"
max-length = 128
max_batch_tokens = 7
[model.b]
artifact = "folder"
prompts = { query = "q: " }
[alias]
x = "a"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "headscope.toml"
    path.write_text(FILE)
    return path


def test_a_table_wins_over_the_top_of_the_file(file: Path) -> None:
    settings = Settings(config=file)
    assert settings.max_length == 64
    one, other = of_model(settings, "a"), of_model(settings, "b")
    assert (one.max_length, one.max_batch_tokens, one.threads) == (128, 7, 1)
    assert one.model == ("sentence-transformers/all-MiniLM-L6-v2",)
    assert (other.max_length, other.model, other.artifact) == (64, (), (Path("folder"),))
    assert of_model(settings, "c") is settings
    assert prompts_given(settings, "b")
    assert not prompts_given(settings, "a")


def test_flags_and_variables_win_over_a_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MAX_BATCH_TOKENS", "9")
    one = of_model(Settings(config=file, max_length=32), "a")
    assert (one.max_length, one.max_batch_tokens) == (32, 9)
    other = Settings(config=file, model="other", alias=("z=other",))
    assert other.tables == {}
    assert Settings(config=file).alias == ("x=a",)


def test_workers_get_the_tables(file: Path) -> None:
    settings = Settings(config=file).model_copy(update={"config": None})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
