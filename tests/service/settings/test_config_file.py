"""Settings from a file: their precedence, and the place of each mistake."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from service.cli.options import settings_of
from service.settings import Settings
from service.settings.sources import MAX_BYTES, places_of
from tests.service.settings.conftest import from_command_line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headscope.toml"


def test_flags_and_variables_win(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('port = 1\nmax-length = 2\nmax_batch_tokens = 3\nlog-level = "debug"\n')
    monkeypatch.setenv("HEADSCOPE_MAX_LENGTH", "20")
    settings = from_command_line("--config", str(file), "--port", "10")
    assert (settings.port, settings.max_length, settings.max_batch_tokens) == (10, 20, 3)
    assert settings.log_level == "debug"
    monkeypatch.setenv("HEADSCOPE_CONFIG", str(file))
    assert Settings().port == 1


def test_lists_tables_and_what_is_served(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        'model = ["org/a", "b"]\nserved-model-name = ["x", "y"]\n'
        '[alias]\n"text-embedding-3" = "x"\n'
    )
    settings = from_command_line("--config", str(file))
    assert (settings.model, settings.served_model_name) == (("org/a", "b"), ("x", "y"))
    assert settings.alias == ("text-embedding-3=x",)
    chosen = from_command_line("--config", str(file), "--artifact", "folder")
    assert (chosen.model, chosen.artifact) == ((), (Path("folder"),))
    monkeypatch.setenv("HEADSCOPE_MODEL", "other")
    assert from_command_line("--config", str(file)).model == ("other",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("port = 1\n  prot = 2\n", "line 2, column 3: prot is not a setting: did you mean port?"),
        ("xyzzy = 2\n", "line 1, column 1: xyzzy is not a setting"),
        ("config = 'other'\n", "config is not a setting"),
        ("[limits]\nport = 1\n", "line 1, column 1: limits is not a setting"),
        ("port = 1\nport = 2\n", "line 2, column"),
        ("a = [\n", "line 2, column 1: "),
        ("port = 80 80\n", "line 1, column 11: "),
        ("# ok\nport = 70000\n", "line 2, column 1: port=70000"),
        ("max-length = 'many'\n", "line 1, column 1: max-length=many must be a valid integer"),
        ("engine = 'fak'\n", "engine=fak must be onnx, torch or fake: did you mean fake?"),
        ("port = [1, 2]\n", "line 1, column 1: port="),
        ("max-length = 1\nmax_length = 2\n", "line 2, column 1: max-length is given twice"),
        (
            "[model.a]\nmax-length = 1\nmax_length = 2\n",
            "line 3, column 1: model.a.max-length is given twice, with - and with _: leave one out",
        ),
        (f"port = {'9' * 5000}\n", "has a number with too many digits"),
    ],
)
def test_a_mistake_has_a_line_and_a_column(file: Path, content: str, says: str) -> None:
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"--config {file}")) as refused:
        from_command_line("--config", str(file))
    assert says in str(refused.value)


def test_a_key_is_never_shown(file: Path) -> None:
    file.write_text('api-keys = "c4n4ry,,b"\n')
    with pytest.raises(ValueError, match="line 1, column 1: api-keys") as refused:
        from_command_line("--config", str(file))
    assert "c4n4ry" not in str(refused.value)


def test_a_file_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        from_command_line("--config", str(file))
    file.write_bytes(b"port = 1 # \xff")
    with pytest.raises(ValueError, match="is not UTF-8"):
        from_command_line("--config", str(file))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="is a pipe"):
        from_command_line("--config", str(file))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc"])
def test_a_device_or_folder_is_refused_before_it_is_read(path: str) -> None:
    with pytest.raises(ValueError, match=f"--config {path} is a pipe, device or folder: name a"):
        from_command_line("--config", str(Path(path)))


def test_a_long_file_is_refused_before_it_is_read(file: Path) -> None:
    file.write_bytes(b"port = 1\n".ljust(MAX_BYTES, b"\n"))
    assert from_command_line("--config", str(file)).port == 1
    file.write_bytes(b"port = 1\n".ljust(MAX_BYTES + 1, b"\n"))
    with pytest.raises(ValueError, match="has 2097153 bytes, and at most 2097152 are read"):
        from_command_line("--config", str(file))


def test_deep_values_are_refused(file: Path) -> None:
    file.write_text(f"port = {'[' * 100_000}{']' * 100_000}\n")
    with pytest.raises(ValueError, match="has values in too many levels"):
        from_command_line("--config", str(file))


def test_the_first_mistakes_are_enough(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("".join(f"unknown-{number} = 1\n" for number in range(500)))
    with pytest.raises(ValueError, match=r"unknown-9 is not a setting$"):
        from_command_line("--config", str(file))
    file.write_text("".join(f"[model.a{number}]\nmax-length = -1\n" for number in range(500)))
    reads = []

    def counted(text: str) -> object:
        reads.append(text)
        return places_of(text)

    monkeypatch.setattr("service.settings.sources.places_of", counted)
    with pytest.raises(ValueError, match=r"model\.a9\.max-length=-1 must be greater than 0$"):
        from_command_line("--config", str(file))
    assert len(reads) == 2


def test_a_byte_order_mark_is_skipped(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfport = 1\r\n")
    assert from_command_line("--config", str(file)).port == 1


def test_a_wrong_variable_beside_a_file_is_the_variables(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("port = 1\n")
    monkeypatch.setenv("HEADSCOPE_PORT", "http")
    with pytest.raises(ValueError, match="HEADSCOPE_PORT=http must be a valid integer"):
        from_command_line("--config", str(file))


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
