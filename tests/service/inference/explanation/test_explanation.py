"""Shares through modules after pooling, beside a prompt that is not pooled."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from model.artifact.manifest import Artifact
from service.scheduler.scheduler import Scheduler
from tests.service.harness import Client, assert_problem, serving

pytestmark = pytest.mark.anyio
PAIR = ["the cat.", "a cat and the cat"]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with a linear Dense with a bias after a mean without the prompt."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("linear")
    pooling = Pooling(12, "mean", include_prompt=False)
    dense = Dense(12, 9, activation_function=nn.Identity())
    nn.init.normal_(dense.linear.bias)
    SentenceTransformer(
        modules=[Transformer(str(tiny_checkpoint)), pooling, dense, Normalize()],
        prompts={"query": "the query: ", "document": ""},
        truncate_dim=7,
        device="cpu",
    ).save(str(folder))
    return folder


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[Client]:
    async with serving(exported(checkpoint, "linear")) as client:
        yield client


async def test_shares_through_a_linear_module_sum_to_the_similarity(
    client: Client, checkpoint: Path
) -> None:
    reference = SentenceTransformer(str(checkpoint), device="cpu")
    body = {"inputs": [PAIR], "include": ["pairs", "decomposition", "occlusion"]}
    for prompt in (None, "query"):
        reply = await client.post("/explain", json=body | {"prompt_name": prompt})
        (found,) = reply.json()["results"]
        one, other = reference.encode(PAIR, prompt_name=prompt)
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found["similarity"] == pytest.approx(cosine, abs=1e-5)
        for name, error in (("pairs", 1e-5), ("decomposition", 1e-4)):
            assert np.sum(found[name]) == pytest.approx(cosine, abs=error)
        pairs, offsets = np.array(found["pairs"]), found["texts"][0]["offsets"]
        left_out = (
            offsets.index([0, 3]) if prompt else 0
        )  # the offsets of [CLS] and the prompt are [0, 0]
        assert bool(left_out) == bool(prompt)
        assert [len(text["tokens"]) for text in found["texts"]] == list(pairs.shape)
        assert not pairs[:left_out].any()
        assert not pairs[:, :left_out].any()
        assert pairs[left_out:, left_out:].all()
        assert np.array(found["decomposition"]).all()
        assert all(np.any(losses) for losses in found["occlusion"])


async def test_modules_that_are_not_linear_have_no_shares(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.numerics.vector_modules.Dense.additive", False)
    for name in ("pairs", "decomposition"):
        response = await client.post("/explain", json={"inputs": [PAIR], "include": [name]})
        assert_problem(response, 422, "modules after pooling that are not linear")
    body = {"inputs": [PAIR], "include": ["occlusion"]}
    assert (await client.post("/explain", json=body)).status_code == 200


async def test_time_is_asked_for_what_is_still_to_come(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token occluded once; one layer of two decomposed."""
    asked: list[tuple[int, int]] = []
    submit = Scheduler.submit

    async def spied(*args: Any) -> Any:
        asked.append((args[-1].promise.tokens, args[-1].promise.needed))
        return await submit(*args)

    async def measured(*_: Any) -> float:
        return 1.2

    monkeypatch.setattr(Scheduler, "submit", spied)
    monkeypatch.setattr("service.inference.explanation.towers.part_cost", measured)
    for include, layer in ((["occlusion"], 2), (["decomposition"], 1)):
        body = {"inputs": [["a", "a cat and the cat"]], "include": include, "layer": layer}
        reply = await client.post("/explain", json=body)
        assert reply.status_code == 200, reply.text
    sizes = [len(text["tokens"]) for text in reply.json()["results"][0]["texts"]]
    steps = sum(math.ceil(1.2 * size * (size + 1) / 2) for size in sizes)
    passes, own = sum(size * size for size in sizes), sum(sizes)
    assert asked == [
        (own + passes, math.ceil(0.5 * (own + passes))),
        (own + steps, own + steps),
    ]
