"""/explain of pictures against transformers in float64: occlusion of patches and words, shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load
from scipy.stats import spearmanr
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.api.wire.media import SAFETENSORS
from tests.service.documented import check_documented
from tests.service.harness import assert_problem, serving
from tests.service.pictures import element, picture
from tests.tower_oracle import Side, attributions

pytestmark = pytest.mark.anyio
TEXT, OTHER = "two cats", "a dog, asleep"
FILES = [picture(seed=1, width=50, height=40), picture(seed=2, width=33, height=60)]
PICTURES = [element(file) for file in FILES]


class Oracle:
    """transformers' model of a checkpoint, in float64."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
        self.length = 20 if self.model.config.model_type == "siglip" else None

    def side(self, given: str | bytes) -> Side:
        if isinstance(given, bytes):
            pixels = self.processor(Image.open(BytesIO(given)), return_tensors="pt")
            return Side(self.model, {"pixel_values": pixels["pixel_values"].double()})
        padding: Any = "max_length" if self.length else False
        ids = self.tokenizer(
            given, return_tensors="pt", padding=padding, max_length=self.length
        ).input_ids
        return Side(self.model, {"input_ids": ids})


@pytest.fixture(scope="module", params=["clip", "siglip"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(f"{request.param}_checkpoint")
    return folder


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Oracle:
    return Oracle(checkpoint)


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(checkpoint, checkpoint.name)) as client:
        yield client


async def asked(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    reply = await client.post("/explain", json=body)
    assert reply.status_code == 200, reply.text
    check_documented("ExplainReply", reply.json())
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


def cosine(one: Any, other: Any) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize(
    ("inputs", "sides"),
    [
        ([[TEXT, PICTURES[0]], [OTHER, PICTURES[1]]], [[TEXT, FILES[0]], [OTHER, FILES[1]]]),
        ([[PICTURES[0], TEXT]], [[FILES[0], TEXT]]),
        ([PICTURES], [FILES]),
        ([[TEXT, OTHER]], [[TEXT, OTHER]]),
    ],
    ids=["text and picture", "picture and text", "two pictures", "two texts"],
)
async def test_occlusion_and_sums_of_shares(
    client: httpx.AsyncClient, oracle: Oracle, inputs: Any, sides: Any
) -> None:
    body = {"include": ["occlusion", "decomposition"], "spans": "words"}
    results = await asked(client, inputs=inputs, **body)
    for pair, found in zip(sides, results, strict=True):
        own = [oracle.side(given) for given in pair]
        with torch.no_grad():
            vectors = [side.vector() for side in own]
            similarity = cosine(*vectors)
            assert found["similarity"] == pytest.approx(similarity, abs=1e-5)
            losses: list[float] = []
            for side, other, spans in zip(own, reversed(vectors), found["spans"], strict=True):
                for span in spans:
                    without = cosine(side.vector(without=span["tokens"]), other)
                    losses.append(similarity - without)
        np.testing.assert_allclose(np.concatenate(found["occlusion"]), losses, atol=2e-5)
        shares = np.array(found["decomposition"])
        assert shares.shape == tuple(side.states.shape[1] for side in own)
        assert shares.sum() == pytest.approx(similarity, abs=1e-4)
        assert found["decomposition_error"] < 1e-4
        sums = [
            axis[span["tokens"]].sum()
            for axis, spans in zip((shares.sum(1), shares.sum(0)), found["spans"], strict=True)
            for span in spans
        ]
        expected = spearmanr(sums, losses).statistic
        assert found["agreement"]["decomposition"] == pytest.approx(expected, abs=1e-6)
        assert not found["partial"]


async def test_spans_of_a_picture_are_squares_of_patches(
    client: httpx.AsyncClient, oracle: Oracle
) -> None:
    """All patches of one square: the picture's class token still sees itself; SigLIP has none."""
    one, two = [
        (await asked(client, inputs=[[TEXT, PICTURES[0]]], include=["occlusion"], block=block))[0]
        for block in (1, 2)
    ]
    text, seen = one["texts"]
    assert (text["tower"], seen["tower"]) == ("text", "vision")
    assert seen["size"] == [50, 40]
    rows, columns = seen["grid"]
    special = len(seen["tokens"]) - rows * columns
    assert [span["tokens"] for span in one["spans"][1]] == [
        [special + n] for n in range(rows * columns)
    ]
    assert two["spans"][1][0] == {
        "rows": [0, 2],
        "columns": [0, 2],
        "tokens": [special + n for n in (0, 1, columns, columns + 1)],
    }
    assert two["spans"][0] == one["spans"][0]
    side, other = oracle.side(FILES[0]), oracle.side(TEXT)
    tokens = two["spans"][1][0]["tokens"]
    with torch.no_grad():
        left = cosine(side.vector(without=tokens), other.vector()) if rows > 2 or special else 0.0
    assert two["occlusion"][1][0] == pytest.approx(two["similarity"] - left, abs=2e-5)


async def test_the_best_patches_and_the_binary_form(client: httpx.AsyncClient) -> None:
    body = {"inputs": [[TEXT, PICTURES[0]]], "include": ["occlusion", "decomposition"], "top": 2}
    (found,) = await asked(client, **body)
    assert [sum(loss is not None for loss in side) for side in found["occlusion"]] == [2, 2]
    reply = await client.post("/explain", json=body, headers={"accept": SAFETENSORS})
    tensors = load(reply.content)
    for side, losses in zip("ab", found["occlusion"], strict=True):
        expected = np.array(losses, np.float32)
        np.testing.assert_allclose(tensors[f"occlusion.0.{side}"], expected, atol=1e-6)
    np.testing.assert_allclose(tensors["decomposition.0"], found["decomposition"], atol=1e-6)


async def test_shares_are_the_default_and_second_order(
    client: httpx.AsyncClient, oracle: Oracle
) -> None:
    """Σ_d of both sides' gradient × state, with everything that is not linear frozen.

    The checkpoints have biases, which the gradients leave out and the decomposition shares out: so
    shares agree in their order.
    """
    (found,) = await asked(client, inputs=[[TEXT, PICTURES[0]]])
    own = oracle.side(TEXT), oracle.side(FILES[0])
    with torch.no_grad():
        vectors = own[0].vector(), own[1].vector()
    expected = attributions(own[0].frozen_shares(), own[1].frozen_shares(), vectors)
    order = spearmanr(np.ravel(found["decomposition"]), expected.detach().numpy().ravel())
    assert order.statistic > 0.8


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"include": ["pairs"]}, "pairs are shares of means over tokens"),
        ({"include": ["heads"]}, "heads are switched off in both sides of a pair"),
        ({"inputs": [[TEXT, OTHER]], "include": ["occlusion"], "block": 2}, "block is for pict"),
        ({"block": 2}, 'spans, block and top apply to occlusion: add "occlusion"'),
        ({"layer": 3}, "layer 3 is not in -3 … 2"),
    ],
    ids=str,
)
async def test_what_is_refused(client: httpx.AsyncClient, body: dict[str, Any], says: str) -> None:
    reply = await client.post("/explain", json={"inputs": [[TEXT, PICTURES[0]]]} | body)
    assert_problem(reply, 422, says)


async def test_shares_of_two_means_are_exact(
    exported: Callable[..., Artifact], picture_checkpoint: Path
) -> None:
    """Of two pictures by one encoder, whose special tokens are pooled too."""
    model = AutoModel.from_pretrained(picture_checkpoint).eval()
    processor = AutoImageProcessor.from_pretrained(picture_checkpoint, backend="pil")
    with torch.no_grad():
        x, y = (
            model(**processor(Image.open(BytesIO(file)), return_tensors="pt")).last_hidden_state[0]
            for file in FILES
        )
    norms = len(x) * len(y) * x.mean(dim=0).norm() * y.mean(dim=0).norm()
    async with serving(exported(picture_checkpoint, "pictures")) as client:
        body = {"include": ["pairs", "occlusion", "heads"], "pooling": "mean", "block": 2}
        (found,) = await asked(client, inputs=[PICTURES], **body)
        np.testing.assert_allclose(found["pairs"], x @ y.T / norms, atol=1e-5)
        assert found["completeness_error"] < 1e-5
        assert [len(side) for side in found["occlusion"]] == [2, 2]
        assert np.shape(found["heads"]) == (2, 3)
        reply = await client.post("/explain", json={"inputs": [PICTURES]})
        assert_problem(reply, 422, "pairs are shares of means over tokens, and this is pooling cls")
