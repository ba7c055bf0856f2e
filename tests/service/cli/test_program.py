"""The program: help, failures, exit codes, users without a home, and shell completion."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import tokenizers
import torch

from model.artifact.manifest import Artifact
from model.errors import VerificationError
from service.cli import main
from service.cli import program as program_module
from service.cli.program import COMMANDS
from service.settings import Settings
from service.system.distribution import LIBRARIES
from tests.service.cli.said import one_line, run_without


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: headscope [OPTIONS] COMMAND")
    assert all(f"  {name:8}{reported}\n" in out for name, reported in COMMANDS.items())
    assert err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_is_named_after_its_file(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert importlib.import_module(f"service.cli.{name}").command.name == name
    for flag in ("-h", "--help"):
        assert main([name, flag]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"Usage: headscope {name} [OPTIONS]")
        assert "\nExamples:\n  " in out
        assert "\x1b" not in out
        assert err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serv"], "headscope: No such command 'serv'. Did you mean 'serve'?"),
        (["bake"], "headscope: No such command 'bake'."),
        ([""], "headscope: No such command ''."),
        (["serve "], "headscope: No such command 'serve '. Did you mean 'serve'?"),
        (["--port", "1"], "headscope: No such option '--port'."),
        (
            ["serve", "--prt", "1"],
            "headscope serve: No such option '--prt'. Did you mean '--port'?",
        ),
        (["serve", "x"], "headscope serve: Got unexpected extra argument (x)"),
        (["bench", "--artifact"], "headscope bench: Option '--artifact' requires an argument."),
        (["verify"], "headscope verify: Missing option '--artifact'."),
        (
            ["verify", "--artifact", "x", "--device", "gpu"],
            "headscope verify: --device gpu must be",
        ),
    ],
)
def test_a_wrong_use_is_two_lines(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    line, hint = err.splitlines()
    assert line.startswith(says)
    assert hint == f"see {says.partition(':')[0]} --help"
    assert out == ""


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("serve", ["--artifact", "{tmp}/nothing"], "is not an artifact: it holds no manifest.json"),
        ("serve", ["--artifact", "{artifact}", "--artifact", "{artifact}"], "served 2 times"),
        ("serve", ["--model", "{tmp}"], "holds no checkpoint: there is no config.json"),
        ("serve", ["--model", "no/such-model"], "no/such-model, and HF_HUB_OFFLINE forbids"),
        ("serve", ["--model", "not a name!"], "neither a folder nor a model's name"),
        (
            "serve",
            ["--artifact", "{artifact}", "--max-length", "513"],
            "--max-length 513 is more than the position table's 512",
        ),
        ("export", ["--model", "{tmp}", "--out", "{tmp}/new"], "config.json"),
        ("export", ["--model", "no/such-model", "--out", "{tmp}/new"], "HF_HUB_OFFLINE forbids"),
        ("export", ["--model", "{small}", "--out", "{artifact}"], "is not an empty folder"),
        ("verify", ["--artifact", "{tmp}"], "is not an artifact"),
        ("bench", ["--artifact", "{artifact}", "--pairs", "{tmp}/no.csv"], "No such file or dir"),
        ("fetch", ["no/such-model"], "no/such-model, and HF_HUB_OFFLINE forbids"),
    ],
)
def test_what_goes_wrong_is_one_line(
    command: str,
    arguments: list[str],
    says: str,
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"tmp": tmp_path, "artifact": artifact.folder, "small": small_checkpoint}
    assert main([command, *(argument.format(**places) for argument in arguments)]) == 1
    assert says in one_line(capsys, command)


@pytest.mark.parametrize(
    ("failure", "code", "says"),
    [
        (VerificationError("too far"), 4, "headscope fetch: too far\n"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device\n"),
        (BrokenPipeError(32, "of a socket"), 1, "headscope fetch: [Errno 32] of a socket\n"),
        (KeyboardInterrupt(), 130, "headscope fetch: interrupted\n"),
    ],
)
def test_how_a_command_ends(
    failure: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> None:
        raise failure

    monkeypatch.setattr("service.cli.fetch.locate_checkpoint", fails)
    assert main(["fetch", "x"]) == code
    assert capsys.readouterr().err.endswith(says)


def test_a_reader_that_leaves_is_no_failure_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `| true`: the pipe is closed before anything is written, through a buffer."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with subprocess.Popen(
        [sys.executable, "-m", "service", "serve", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 0


def test_the_versions_and_no_library_are_loaded() -> None:
    done = run_without("torch rich pydantic onnxruntime openvino", "--version")
    assert done.returncode == 0
    ours, python, *others = done.stdout.splitlines()
    assert ours == f"headscope-server {importlib.metadata.version('headscope-server')}"
    assert python == f"python {sys.version.split()[0]} ({sysconfig.get_platform()})"
    assert f"torch {torch.__version__}" in others
    assert f"tokenizers {tokenizers.__version__}" in others
    assert [line.partition(" ")[0] for line in others] == sorted(
        name
        for name in LIBRARIES
        if name in {found.name for found in importlib.metadata.distributions()}
    )


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("headscope se", ["serve"]),
        ("headscope serve --log-l", ["--log-level"]),
        ("headscope serve --log-level ", ["debug", "info", "warning", "error"]),
        ("headscope export --precision ", ["fp32", "fp16", "bf16", "int8"]),
        ("headscope bench --device c", ["cpu", "cuda"]),
    ],
)
def test_what_a_shell_completes(
    words: str,
    answer: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the protocol of click's scripts for bash, zsh and fish."""
    typed = words.split(" ")
    monkeypatch.setenv("COMP_WORDS", words)
    forms = {"bash": "plain,{}", "zsh": "plain\n{}\n", "fish": "plain,{}"}
    for shell, form in forms.items():
        monkeypatch.setenv("COMP_CWORD", typed[-1] if shell == "fish" else str(len(typed) - 1))
        monkeypatch.setenv("_HEADSCOPE_COMPLETE", f"{shell}_complete")
        assert main([]) == 0
        out = capsys.readouterr().out
        assert [one for one in answer if form.format(one) in out] == answer
        assert out.count("plain") == len(answer)


def test_every_example_can_be_parsed() -> None:
    """The commands and options in the examples of every help exist."""
    for name in COMMANDS:
        lines = importlib.import_module(f"service.cli.{name}").EXAMPLES.strip().splitlines()
        for line in lines:
            words = line.partition("   ")[0].split()
            words = words[words.index("headscope") + 1 :]
            with program_module.program.make_context("headscope", words) as context:
                found = program_module.program.get_command(context, words[0])
                assert found is not None
                assert isinstance(found.make_context(words[0], words[1:]), click.Context)


def test_serve_gets_the_artifact_and_the_settings(
    artifact: Artifact, served: list[tuple[Settings, Artifact]]
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder), "--port", "7"]) == 0
    ((settings, found),) = served
    assert (settings.port, found) == (7, artifact)


@pytest.mark.parametrize("command", ["serve", "export", "fetch"])
def test_a_misspelt_variable_is_one_line_too(
    command: str,
    served: list[tuple[Settings, Artifact]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADSCOPE_API_KEY", "s3cret")
    assert main([command]) == 2
    line = one_line(capsys, command)
    assert line.endswith("HEADSCOPE_API_KEY is not a setting: did you mean HEADSCOPE_API_KEYS?")
    assert served == []


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("port = 1\nworkers = 2\n", 0, "2 settings, all valid"),
        ("port = 1\n", 0, "1 setting, all valid"),
        ("port = 'x'\n", 2, "line 1, column 1: port=x"),
        ("port = \n", 1, "line 1, column"),
    ],
)
def test_a_file_of_settings_is_checked(
    content: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headscope.toml"
    file.write_text(content)
    assert main(["config", "check", str(file)]) == code
    assert says in "".join(capsys.readouterr())


def test_an_artifact_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--artifact", "a", "--model", "b"]) == 2
    assert "--artifact and --model exclude each other" in one_line(capsys, "bench")


def no_user(uid: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user without a passwd entry, as of `docker run --user 12345`."""
    names = ("HOME", "HEADSCOPE_CACHE_FOLDER", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    for name in (*names, "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_user)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.usefixtures("homeless")
def test_an_artifact_needs_no_home(
    artifact: Artifact, served: list[tuple[Settings, Artifact]], tmp_path: Path
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder)]) == 0
    assert len(served) == 1
    Path("texts.txt").write_text("a text\n", encoding="utf-8")
    command = ["encode", "texts.txt", "--out", "out.npy", "--artifact", str(artifact.folder)]
    assert main(command) == 0
    assert {path.name for path in Path.cwd().iterdir()} == {"texts.txt", "out.npy"}


@pytest.mark.usefixtures("homeless", "exporter")
def test_a_folder_with_a_given_cache_needs_no_home(
    small_checkpoint: Path, served: list[tuple[Settings, Artifact]], tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert main(["serve", "--model", str(small_checkpoint), "--cache-folder", cache]) == 0
    assert served[0][0].cache_folder == Path(cache)


NEEDS_A_HOME = [
    (["export", "--model", "CHECKPOINT"], "HEADSCOPE_CACHE_FOLDER"),
    (["export", "--model", "CHECKPOINT", "--pooling", "cls"], "HEADSCOPE_CACHE_FOLDER"),
    (["serve", "--model", "CHECKPOINT"], "--cache-folder"),
    (["fetch", "someone/model"], "HF_HOME"),
]


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("home", [None, "/dev/null"])
@pytest.mark.parametrize(("command", "setting"), NEEDS_A_HOME)
def test_a_cache_needs_one_and_names_its_setting(
    home: str | None,
    command: list[str],
    setting: str,
    small_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A home that cannot be written to is as good as none."""
    says = "needs a home folder, which this user does not have"
    if home:
        monkeypatch.setenv("HOME", home)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        says = "cannot be written to (Not a directory)"
    words = [str(small_checkpoint) if word == "CHECKPOINT" else word for word in command]
    assert main(words) == 1
    line = one_line(capsys, command[0])
    assert says in line
    assert setting in line
    assert [*Path.cwd().iterdir()] == []


def test_a_start_begins_before_the_imports_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[str]()

    def imported(name: str) -> SimpleNamespace:
        steps.append(name)
        return SimpleNamespace(command=None)

    monkeypatch.setattr("service.system.resources.begin_start", lambda: steps.append("begin"))
    monkeypatch.setattr(importlib, "import_module", imported)
    for name in ("verify", "serve"):
        program_module.program.get_command(click.Context(program_module.program), name)
    assert steps == ["service.cli.verify", "begin", "service.cli.serve"]
