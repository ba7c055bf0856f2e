"""Artifact that is opened, by settings and environment, or from a repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from model.artifact.manifest import Artifact, load_artifact
from model.artifact.verification import Verdict
from model.errors import ArtifactError, ProviderError
from model.sources.files import HYBRID_HEADS
from service.artifacts.opening import (
    export_source,
    find_checkpoint,
    open_artifact,
    open_source,
    report_limits,
)
from service.artifacts.repository import Repository, Source, Target
from service.cli import main
from service.errors import UnknownModel
from service.settings import Settings
from service.settings.model_group import ModelTable
from tests.model.checkpoints import edit_json
from tests.model.hybrid_checkpoints import write_hybrid
from tests.model.static_checkpoints import write_model2vec

LIMITS = "this is a static embedding: a table of vectors without layers and attention"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path))


def copying(artifact: Artifact) -> Callable[..., Artifact]:
    """Return an export that copies an artifact."""

    def export(_: Path, out: Path, *__: object) -> Artifact:
        shutil.copytree(artifact.folder, out)
        return load_artifact(out)

    return export


def test_an_export_is_of_the_model_whatever_artifact_the_environment_names(
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("model.export.exporter.export", copying(artifact))
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", str(artifact.folder))
    assert main(["export", "--model", str(small_checkpoint)]) == 0
    found = Path(capsys.readouterr().out.strip())
    assert found.parent == tmp_path / "artifacts"


def test_another_process_was_faster_with_the_same_export(
    artifact: Artifact, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(_: Path, out: Path, *__: object) -> Artifact:
        shutil.copytree(artifact.folder, out)
        raise ArtifactError(f"{out} was taken while this export ran")

    monkeypatch.setattr("model.export.exporter.export", export)
    found = open_artifact(Settings(model=str(small_checkpoint)))
    assert found.sha256 == artifact.sha256


def test_the_missing_files_of_what_may_be_bge_m3_are_named(tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path / "model")
    settings, said = Settings(model=str(folder)), list[str]()
    find_checkpoint(settings, said.append)
    for name in HYBRID_HEADS:
        (folder / name).unlink()
    find_checkpoint(settings, said.append)
    assert said == []  # an XLM-RoBERTa of 64 tokens is not bge-m3
    edit_json(folder / "config.json", max_position_embeddings=8194)
    find_checkpoint(settings, said.append)
    assert said == [
        f"{folder} gives dense vectors alone: if it is bge-m3, its colbert_linear.pt and "
        "sparse_linear.pt are missing, which give multivector and sparse vectors"
    ]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a static embedding without a Dense module; read only."""
    return write_model2vec(tmp_path_factory.mktemp("static") / "somebodys")


def test_a_static_embedding_is_made_an_artifact_once(static: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = open_artifact(Settings(model=str(static)), said.append)
    assert said == ["reading somebodys", LIMITS]
    again: list[str] = []
    assert open_artifact(Settings(model=str(static)), again.append) == made
    assert made.manifest.model == "somebodys"
    assert made.folder.parent == tmp_path / "artifacts"
    assert open_artifact(Settings(artifact=made.folder), again.append) == made
    assert again == [LIMITS, LIMITS]


def test_a_static_embedding_needs_no_torch(static: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxscript', 'onnxruntime'): sys.modules[name] = None\n"
        "from service.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, "export", "--model", str(static), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert load_artifact(out).manifest.static


def test_a_static_embedding_refuses_what_needs_layers(
    static: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProviderError, match="a static embedding runs on the CPU only"):
        open_artifact(Settings(model=str(static), device="cuda"))
    artifact = open_artifact(Settings(model=str(static)))
    assert main(["verify", "--artifact", str(artifact.folder)]) == 1
    assert "not what PyTorch computes with" in capsys.readouterr().err


def test_an_artifact_that_passed_one_use_says_which(artifact: Artifact) -> None:
    lines: list[str] = []
    failed = Verdict(passed=False, failed="hidden state 6: min cosine 0.4 (at least 0.5)")
    record = artifact.manifest.verification.model_copy(update={"heads": failed})
    manifest = artifact.manifest.model_copy(update={"verification": record})
    report_limits(manifest, lines.append)
    report_limits(artifact.manifest, lines.append)
    assert lines == [f"served for vectors only, as the other use failed: heads: {failed.failed}"]


def test_a_model_of_a_table_is_exported_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> CompletedProcess[str]:
        commands.append(command)
        return CompletedProcess(command, 1, "", "the log\nno such model")

    monkeypatch.setattr("subprocess.run", run)
    tables = {"a": ModelTable(source="x/y@v1", precision="int8", pooling="cls")}
    settings = Settings(tables=tables, cache_folder=tmp_path)
    with pytest.raises(ArtifactError, match=r"^no such model$"):
        export_source(settings, Source("a", "1", Path("x/y@v1"), "named"))
    expected = ["export", "--model", "x/y@v1", "--precision", "int8", "--pooling", "cls"]
    assert commands[0][-7:] == expected


def test_an_export_in_the_cache_is_found_without_the_hub(
    artifact: Artifact,
    small_checkpoint: Path,
    static: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model.export.exporter.export", copying(artifact))
    monkeypatch.setattr("model.sources.hub.download.download", None)  # whoever calls it fails
    tables = {"hub": ModelTable(source="nobody/has-this-model")}
    settings = Settings(tables=tables, cache_folder=tmp_path)
    assert open_source(settings, Source("hub", "1", Path("nobody"), "named")) is None
    for folder in (small_checkpoint, static):
        source = Source(folder.name, "1", folder, "checkpoint")
        assert open_source(settings, source) is None
        assert open_source(settings, source) is None, "looking exports nothing"
        made = open_artifact(Settings(model=str(folder), cache_folder=tmp_path))
        assert open_source(settings, source) == made
    assert open_source(settings, Source("a", "1", made.folder)) == made


def made(root: Path, *files: str) -> Repository:
    """Return a repository with some empty files."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Repository(root)


def test_names_versions_and_kinds(tmp_path: Path) -> None:
    repository = made(
        tmp_path,
        "plain/manifest.json",
        "many/2/manifest.json",
        "many/10/config.json",
        "org/name/manifest.json",
        "org/other/3/config.json",
    )
    assert [(one.name, one.version, one.kind) for one in repository.sources()] == [
        ("many", "2", "artifact"),
        ("many", "10", "checkpoint"),
        ("org/name", "1", "artifact"),
        ("org/other", "3", "checkpoint"),
        ("plain", "1", "artifact"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        ".hidden/manifest.json",
        "a/b/c/manifest.json",
        "bell\a/manifest.json",
        "manifest.json",
        "empty/readme.txt",
    ],
)
def test_what_is_no_model_of_it(tmp_path: Path, name: str) -> None:
    assert made(tmp_path, name).sources() == []


def test_a_link_inside_is_followed_and_one_that_leads_out_is_not(tmp_path: Path) -> None:
    repository = made(tmp_path / "root", "real/manifest.json")
    made(tmp_path / "outside", "model/manifest.json")
    (tmp_path / "root" / "inside").symlink_to(tmp_path / "root" / "real")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside" / "model")
    (tmp_path / "root" / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "root" / "itself").symlink_to(tmp_path / "root" / "itself")
    assert [one.name for one in repository.sources()] == ["inside", "real"]


def test_a_folder_that_may_not_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = made(tmp_path, "lost+found/manifest.json", "real/manifest.json")
    monkeypatch.setattr("os.access", lambda path, _: path.name != "lost+found")
    assert [one.name for one in repository.sources()] == ["real"]


def test_the_newest_version_is_found_unless_one_is_named(tmp_path: Path) -> None:
    repository = made(tmp_path, "many/2/manifest.json", "many/10/manifest.json")
    assert repository.find(Target("many")).folder == tmp_path / "many" / "10"
    assert repository.find(Target("many", "2")).folder == tmp_path / "many" / "2"
    with pytest.raises(UnknownModel, match="many has no such version; it has: 2, 10"):
        repository.find(Target("many", "3"))
    for name in ("../many", "many/2", "", "/", "other"):
        with pytest.raises(UnknownModel, match="it has: many"):
            repository.find(Target(name))


def test_a_model_of_the_settings_hides_one_of_the_folder(tmp_path: Path) -> None:
    made(tmp_path, "named/5/manifest.json", "other/manifest.json")
    fixed = Source("named", "1", Path("elsewhere"))
    repository = Repository(tmp_path, (fixed,))
    assert repository.find(Target("named")) == fixed
    assert [one.name for one in repository.sources()] == ["named", "other"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        Repository(tmp_path / "missing").sources()


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("bge-m3", Target("bge-m3")),
        ("bge-m3@3", Target("bge-m3", "3")),
        ("org/a@b@3", Target("org/a@b", "3")),
        ("@3", Target("@3")),
        ("bge-m3@", Target("bge-m3@")),
    ],
)
def test_targets_are_parsed(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert str(target) == text
