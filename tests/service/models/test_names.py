"""Names, limits and settings of models in a file's tables, as requests and admins load them."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact, load_artifact
from service.app import create_app
from service.cli import main
from service.errors import EngineUnavailable
from service.models.setup import aliases_of, check_content, check_names, names_of
from service.models.start import input_limits
from service.models.state import build_state, state_of
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.sources import read
from tests.service.cli.said import one_line
from tests.service.harness import CONFIG, Client, assert_problem
from tests.service.repositories import add, encode, load, states
from tests.service.several import variant

pytestmark = pytest.mark.anyio


FORGED = "a\n2026-01-01T00:00:00.000Z critical headscope: forged \x1b[31m"


@pytest.fixture
def twins(tiny_checkpoint: Path, tmp_path: Path) -> tuple[str, str]:
    """Return two folders of the same name, each with a checkpoint."""
    first, second = (tmp_path / parent / "name" for parent in "ab")
    for folder in (first, second):
        shutil.copytree(tiny_checkpoint, folder)
    return str(first), str(second)


@pytest.mark.parametrize("kind", ["models", "artifacts"])
def test_two_of_one_name_are_refused_before_any_is_opened_or_exported(
    twins: tuple[str, str],
    kind: str,
    tiny_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("service.cli.serve.open_artifact", None)  # whoever calls it fails
    two = [str(tiny_artifact.folder)] * 2 if kind == "artifacts" else twins
    name = f"{tiny_artifact.manifest.model}:fp32" if kind == "artifacts" else "name:fp32"
    assert main(["serve", *(flag for one in two for flag in (f"--{kind[:-1]}", one))]) == 1
    said = one_line(capsys, "serve")
    assert f"{name} is to be served 2 times" in said
    assert said.endswith("give each a name of its own with --served-model-name")


def test_names_of_their_own_tell_them_apart(twins: tuple[str, str]) -> None:
    check_names(Settings(model=twins, served_model_name=("first", "second")))
    with pytest.raises(ValueError, match=r"^second is to be served 2 times"):
        check_names(Settings(model=twins, served_model_name=("second", "second")))


def test_an_artifact_counts_by_its_precision(
    twins: tuple[str, str], tiny_artifact: Artifact, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_artifact.folder, tmp_path / "artifact"))
    manifest = variant(tiny_artifact, "name", 12).manifest
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    with pytest.raises(ValueError, match="name:fp32 is to be served 2 times"):
        check_names(Settings(model=twins[:1], artifact=(folder,)))
    (folder / "manifest.json").write_text("{")  # loading it raises an error
    check_names(Settings(model=twins[:1], artifact=(folder,)))


def test_a_name_that_does_not_print_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / FORGED))
    assert main(["serve", "--model", str(folder)]) == 1
    said = one_line(capsys, "serve")
    assert r"a\\n2026-01-01" in said
    assert "\x1b[31m" not in said
    assert said.endswith("give another with --served-model-name")
    check_names(Settings(model=(str(folder),), served_model_name=("a",)))


def test_names(artifact: Artifact) -> None:
    one, other = variant(artifact, "a", 8), variant(artifact, "b", 8)
    small = variant(artifact, "a", 8, precision="int8")
    assert names_of([variant(artifact, "org/Zweites Mödell", 8)]) == ["org/Zweites Mödell"]
    assert names_of([one, other]) == ["a", "b"]
    assert names_of([other, small, one]) == ["b", "a:int8", "a:fp32"]
    with pytest.raises(ValueError, match="a:fp32 is to be served 2 times"):
        names_of([one, other, one])
    with pytest.raises(ValueError, match="a:int8 is to be served 2 times"):
        names_of([one, small, variant(artifact, "a:int8", 8)])
    assert names_of([one, other], ["x", "a"]) == ["x", "a"]
    with pytest.raises(ValueError, match="x is to be served 2 times"):
        names_of([one, other], ["x", "x"])


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        (["x=c"], "--alias x=c: c is not served; there are a, b"),
        (["a=b"], "--alias a=b: a is the name of a model"),
        (["x=a", "x=b"], "--alias x=b: x is an alias of a already"),
    ],
)
def test_an_alias_that_names_no_single_model_is_refused(aliases: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        aliases_of(Settings(alias=aliases), ["a", "b"])


def test_aliases_of_models() -> None:
    def names(*aliases: str) -> dict[str, str]:
        settings = Settings(alias=aliases, models="models", pinned=("c@2",))
        found = aliases_of(settings, ["a", "b=c"])
        return {alias: str(target) for alias, target in found.items()}

    assert names() == {}
    assert names("x=a", "y/z=a", "x=a") == {"x": "a", "y/z": "a"}
    assert names("x=b=c") == {"x": "b=c"}
    assert names("x=c@2", "y=c") == {"x": "c@2", "y": "c"}


FILE = """
engine = "fake"
admin-keys = "admin"
models = "{root}/models"
max-length = 20
[model.pinned]
artifact = "{root}/one"
prompts = {{ query = "a b c " }}
default-prompt = "query"
[model.a]
version = "1"
load = "on-demand"
max-length = 8
max-queue-tokens = 1000
max-batch-tokens = 64
[model.off]
artifact = "{root}/one"
load = "off"
[alias]
other = "a"
"""


@pytest.fixture
async def client(
    tmp_path: Path, tiny_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[Client]:
    folder = add(tmp_path, "one", tiny_artifact)
    for place in ("models/a/1", "models/a/2", "models/b"):
        add(tmp_path, place, tiny_artifact)
    file = tmp_path / "headscope.toml"
    file.write_text(FILE.format(root=tmp_path))
    app = create_app(Settings(config=file), [load_artifact(folder)])
    async with app.router.lifespan_context(app), Client(app) as client:
        yield client


async def info(client: Client, model: str) -> dict[str, object]:
    content: dict[str, object] = (await client.get("/info", params={"model": model})).json()
    return content


async def test_each_has_the_settings_of_its_table(client: Client) -> None:
    assert await states(client, "a") == {"1": "available", "2": "available"}
    assert (await encode(client, "other")).headers["x-model"] == "a"
    assert await states(client, "a") == {"1": "serving", "2": "available"}
    told = await info(client, "a")
    limits = ("max_input_length", "max_queue_tokens", "max_batch_tokens")
    assert [told[name] for name in limits] == [8, 1000, 64]
    queue = state_of(client.app).models.named("a").inference.engines.limits
    assert (queue.max_queue_tokens, queue.max_batch_tokens) == (1000, 64)
    await load(client, "a", version="2")
    assert (await info(client, "a"))["max_input_length"] == 8  # of the name, whatever its version
    assert (await encode(client, "b")).status_code == 200
    assert (await info(client, "b"))["max_input_length"] == 20


async def test_a_model_that_is_off_is_loaded_by_an_admin_only(client: Client) -> None:
    assert_problem(await encode(client, "off"), 404, "there are: pinned, a, b")
    assert (await load(client, "off")).status_code == 200
    assert (await encode(client, "off")).headers["x-model"] == "off"
    listed = (await client.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["pinned", "off", "a", "b"]


async def test_prompts_of_the_table_are_before_texts(client: Client) -> None:
    told = await info(client, "pinned")
    assert (told["prompts"], told["default_prompt_name"]) == (["query"], "query")
    body = {"model": "pinned", "inputs": "a b", "outputs": ["tokens"]}
    with_default = (await client.post("/encode", json=body)).json()["results"][0]["token_ids"]
    plain = (await client.post("/encode", json=body | {"prompt_name": ""})).json()["results"][0]
    written = body | {"prompt_name": "", "inputs": "a b c a b"}
    by_hand = (await client.post("/encode", json=written)).json()["results"][0]["token_ids"]
    assert with_default == by_hand != plain["token_ids"]
    await load(client, "off")
    assert told["fingerprint"] != (await info(client, "off"))["fingerprint"]


def test_the_engine_gets_the_device_of_the_table(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[object, ...]] = []

    def engine(_: Artifact, *options: object) -> None:
        started.append(options)
        raise EngineUnavailable("no device")

    monkeypatch.setattr("service.models.start.OnnxEngine", engine)
    own = {"device": "cuda", "threads": 3, "device_id": 1}
    own |= {"device_memory_bytes": 2**30, "cuda_graphs": True}
    table = ModelTable.model_validate({"artifact": tiny_artifact.folder} | own)
    settings = Settings(threads=2, tables={"a": table})
    with pytest.raises(EngineUnavailable, match="no device"):
        build_state(settings, [tiny_artifact])
    assert started == [(*own.values(),)]


def test_a_limit_is_held_against_each_models_positions(artifact: Artifact) -> None:
    table = artifact.manifest.config.max_position_embeddings
    assert input_limits(Settings(max_length=table), artifact).max_tokens == table
    positions = CONFIG.model_copy(update={"max_position_embeddings": 16})
    short = variant(artifact, "short", 8, config=positions)
    with pytest.raises(ValueError, match=r"--max-length 17 is more than .*'s 16 of short"):
        create_app(Settings(engine="fake", max_length=17), [artifact, short])


EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "headscope.toml"
MODELS = "models = 'models'\n"


def check(path: Path) -> Settings:
    settings = Settings(config=path)
    check_content(settings, read(path, Settings))
    return settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with models in two versions and a file of keys."""
    monkeypatch.chdir(tmp_path)
    for version in ("1", "2"):
        for name in ("m", "bge-m3"):
            (tmp_path / "models" / name / version).mkdir(parents=True)
            (tmp_path / "models" / name / version / "manifest.json").touch()
    (tmp_path / "keys.txt").touch()
    return tmp_path


def test_the_example_is_valid_and_has_every_key(here: Path) -> None:
    (here / "artifacts" / "bge-small").mkdir(parents=True)
    settings = check(EXAMPLE)
    assert [*settings.tables] == ["minilm", "bge-small", "reranker", "bge-m3"]
    text = EXAMPLE.read_text("utf-8")
    for name in ModelTable.model_fields:
        key = name.replace("_", "-")
        assert re.search(rf"^(\[model\..+\.)?{key}\b", text, re.MULTILINE), name
    page = (EXAMPLE.parent / "models.md").read_text("utf-8")
    for name in ModelTable.model_fields:
        assert f"`{name.replace('_', '-')}`" in page, name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[model.'']\nsource = 'x'\n", "model.: the name of a model needs printable characters"),
        ("models = 'no'\n", "line 1, column 1: models no is not a folder"),
        ("artifact = ['models', 'no']\n", "line 1, column 1: artifact no is not a folder"),
        ("keys-file = 'no'\n", "line 1, column 1: keys-file no is not a file"),
        ("model.a.artifact = 'no'\n", "line 1, column 1: model.a: artifact no is not a folder"),
        ("[model.a]\nsource = './no'\n", "line 2, column 1: model.a: source ./no does not exist"),
        ("[model.a]\n", "line 1, column 1: model.a: give its source or artifact"),
        (MODELS + "[model.a]\n", "line 2, column 1: model.a: the folder models has no such model"),
        (MODELS + "model.m.version = '3'\n", "no version 3; there are 1, 2"),
        ("[model.a]\nsource = 'x'\nversion = '1'\n", "line 3, column 1: model.a: version is for"),
        (
            "[model.a]\nsource = 'x'\nartifact = 'models'\n",
            "source and artifact exclude",
        ),
        ("[model.a]\nartifact = 'models'\npooling = 'cls'\n", "an artifact has its own pooling"),
        ("model.a={source='x',devices='0,1',device-id=0}\n", "column 21: model.a: devices is for"),
        ("model.a={source='x',devices='all',device='cpu'}\n", "column 21: model.a: devices is for"),
        ("on-demand = false\n[model.a]\nsource = 'x'\nload = 'on-demand'\n", "line 4, column 1"),
        ("artifact = 'models'\n[model.a]\nsource = 'x'\n", "artifact is for models without tables"),
        ("model.a.source = 'x'\n[alias]\nb = 'c'\n", "line 3, column 1: alias.b: c is not a model"),
        ("model.a.source = 'x'\n[alias]\na = 'a'\n", "alias.a: this is the name of a model"),
        ("model.a={source='x',load='off'}\nalias.b='a'\n", "line 2, column 1: alias.b: a is off"),
    ],
)
def test_what_is_wrong_has_its_place(content: str, says: str, here: Path) -> None:
    file = here / "headscope.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        check(file)
    assert str(refused.value).startswith(f"--config {file}, line ")


def test_an_alias_of_a_pinned_version(here: Path) -> None:
    file = here / "headscope.toml"
    file.write_text(MODELS + "pinned = ['m@1']\nalias.prod = 'm@1'\nmodel.bge-m3.version = '1'\n")
    check(file)
