"""Models of a file's tables, as requests and admins load them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact, load_artifact
from service.app import create_app
from service.errors import EngineUnavailable
from service.models.build import build_state
from service.models.state import state_of
from service.settings import Settings
from service.settings.model_group import ModelTable
from tests.service.harness import Client, assert_problem
from tests.service.repositories import add, encode, load, states

pytestmark = pytest.mark.anyio

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

    monkeypatch.setattr("service.models.engine_start.OnnxEngine", engine)
    own = {"device": "cuda", "threads": 3, "device_id": 1, "device_memory_bytes": 2**30}
    table = ModelTable.model_validate({"artifact": tiny_artifact.folder} | own)
    settings = Settings(threads=2, tables={"a": table})
    with pytest.raises(EngineUnavailable, match="no device"):
        build_state(settings, [tiny_artifact])
    assert started == [(*own.values(),)]
