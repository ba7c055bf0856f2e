"""`POST /attention` of encoder–decoders and of pictures, against transformers."""

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
from transformers import AutoImageProcessor, CLIPModel, Dinov2WithRegistersModel

from model.artifact.manifest import Artifact
from service.api.wire.media import SAFETENSORS
from service.engines.onnx import OnnxEngine
from tests.model.encoder_decoders import Pair, transformers_says
from tests.service import plain
from tests.service.documented import check_documented
from tests.service.harness import assert_problem, serving
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio


ALL = ["encoder", "decoder", "cross"]
TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "", "w9", "w3 w3", " ".join(f"w{n}" for n in range(40))]
TARGETS = ["w7 w8", "w4 w5 w6", "", " ".join(f"w{n}" for n in range(30, 55)), "w11 w12"]
"""Targets of mixed lengths, with an empty source and an empty target."""
BODY = {"inputs": TEXTS, "targets": TARGETS, "maps": ALL}


@pytest.fixture(scope="module")
async def served(
    translator: tuple[Path, Artifact], anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(translator[1], OnnxEngine(translator[1], "cpu", threads=2)) as client:
        yield client


async def results_of(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/attention", json=body)
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def expected_of(checkpoint: Path, result: dict[str, Any]) -> Pair:
    ids = [np.array(result[name]) for name in ("token_ids", "target_token_ids")]
    return transformers_says(checkpoint, *ids)


def close(found: Any, wanted: Any, atol: float) -> None:
    assert np.shape(found) == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


async def test_all_kinds_of_maps_are_transformers(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    await assert_maps(served, translator[0])


@pytest.mark.nightly
async def test_those_of_marian_too(
    exported: Callable[..., Artifact], encoder_decoders: Callable[[str], Path]
) -> None:
    checkpoint = encoder_decoders("marian")
    artifact = exported(checkpoint, "marian")
    async with serving(artifact, OnnxEngine(artifact, "cpu", threads=2)) as client:
        await assert_maps(client, checkpoint)


async def assert_maps(client: httpx.AsyncClient, checkpoint: Path) -> None:
    """Compare all kinds of maps, and the values derived from them, with transformers'."""
    include = ["weights", "stats", "rollout", "logprobs"]
    every = await results_of(client, **BODY, include=include)
    assert [len(one["tokens"]) for one in every] == [9, 1, 2, 3, 41]
    assert [len(one["target_tokens"]) for one in every] == [3, 4, 1, 26, 3]
    for found in every:
        wanted = expected_of(checkpoint, found)
        encoder = np.stack(wanted.encoder_maps)
        close(found["attention"], encoder, 1e-5)
        close(found["decoder_attention"], wanted.maps, 1e-5)
        close(found["cross_attention"], wanted.cross_maps, 1e-5)
        assert not np.triu(np.array(found["decoder_attention"]), 1).any()
        close(found["target_logprobs"], wanted.logprobs, 1e-4)
        close(found["rollout"], plain.rollout(encoder), 1e-5)
        for name, values in plain.cross_statistics(wanted.cross_maps, [-1]).items():
            close(found["cross_stats"][name], values, 1e-4)


async def test_norms_of_what_heads_add_are_transformers(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    """Norms are checked for both kinds of decoder heads, for encoder heads, and for some heads."""
    asked = BODY | {"include": ["norms"]}
    every = await results_of(served, **asked)
    some = await results_of(served, **asked, layers=[-1], heads=[1, 0])
    binary = await served.post("/attention", json=asked, headers={"accept": SAFETENSORS})
    tensors = load(binary.content)
    for i, (found, chosen) in enumerate(zip(every, some, strict=True)):
        wanted = expected_of(translator[0], found)
        for name, norms in (("decoder_norms", wanted.norms), ("cross_norms", wanted.cross_norms)):
            largest = norms.max()
            close(found[name] / largest, norms / largest, 1e-5)
            close(chosen[name] / largest, norms[-1:, [1, 0]] / largest, 1e-5)
            np.testing.assert_array_equal(tensors[f"{name}.{i}"], np.array(found[name], "f4"))
        assert np.shape(found["norms"]) == np.stack(wanted.encoder_maps).shape
        assert "cross_attention" not in found


async def test_parts_are_of_each_kind(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    """Pooled as torch does it: rows among the target's tokens, or the text's of its own maps."""
    asked = BODY | {"queries": [-1, 0], "max_size": 4}
    asked |= {"inputs": TEXTS[3:], "targets": TARGETS[3:]}
    every = await results_of(served, **asked)
    binary = await served.post("/attention", json=asked, headers={"accept": SAFETENSORS})
    tensors = load(binary.content)
    for i, found in enumerate(every):
        wanted = expected_of(translator[0], found)
        check_documented("AttentionResult", found)
        source, target = len(found["tokens"]), len(found["target_tokens"])
        kinds = (
            ("", np.stack(wanted.encoder_maps), source, source),
            ("decoder_", wanted.maps, target, target),
            ("cross_", wanted.cross_maps, target, source),
        )
        for prefix, maps, rows, columns in kinds:
            chosen, size = torch.tensor(maps[:, :, [-1, 0]]), (2, min(columns, 4))
            pooled = torch.nn.functional.adaptive_max_pool2d(chosen, size).numpy()
            close(found[f"{prefix}attention"], pooled, 1e-5)
            assert found[f"{prefix}queries"] == [rows - 1, 0]
            bins = found[f"{prefix}bins"]
            assert (bins["queries"], bins["keys"][-1][1]) == ([[0, 1], [1, 2]], columns)
            assert tensors[f"{prefix}queries.{i}"].tolist() == [rows - 1, 0]
            assert tensors[f"{prefix}bins.{i}.keys"].tolist() == bins["keys"]
            name = f"{prefix}attention.{i}"
            np.testing.assert_array_equal(tensors[name], np.array(found[name[:-2]], "f4"))


@pytest.mark.parametrize("of", ALL)
async def test_an_ablated_head_changes_what_the_target_is_worth(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact], of: str
) -> None:
    """The reported shift is the difference of the log-probabilities with and without the head."""
    asked = {"inputs": TEXTS, "targets": TARGETS, "include": ["logprobs"]}
    heads = [{"layer": 0, "head": 1, "map": of}]
    before = await results_of(served, **asked)
    after = await results_of(served, **asked, ablate=heads)
    shifts = []
    for one, other in zip(before, after, strict=True):
        close(one["target_logprobs"], expected_of(translator[0], one).logprobs, 1e-4)
        shift = np.mean(other["target_logprobs"]) - np.mean(one["target_logprobs"])
        assert other["target_logprob_shift"] == pytest.approx(shift, abs=1e-5)
        shifts.append(shift)
        assert (other["pooled_shift"] > 1e-6) == (of == "encoder")
    assert max(map(abs, shifts)) > 1e-3


async def test_a_text_alone_is_as_in_company(served: httpx.AsyncClient) -> None:
    together = await results_of(served, **BODY)
    for text, target, found in zip(TEXTS, TARGETS, together, strict=True):
        (alone,) = await results_of(served, inputs=text, targets=target, maps=ALL)
        close(alone["cross_attention"], np.array(found["cross_attention"]), 1e-6)


async def test_vectors_are_the_encoders(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    reply = (await served.post("/encode", json={"inputs": TEXTS})).json()
    for result in reply["results"]:
        ids = np.array(result["token_ids"])
        wanted = transformers_says(translator[0], ids, np.array([2])).encoded[-1]
        close(result["embeddings"], wanted, 1e-4 * max(1, np.abs(wanted).max()))


FILE = picture(seed=3, width=70, height=40)
INPUT = element(FILE)
SPECIAL = ["[CLS]", "[REG 1]", "[REG 2]"]


@pytest.fixture(scope="module")
async def picture_client(
    exported: Callable[..., Artifact], picture_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(picture_checkpoint, "pictures")) as picture_client:
        yield picture_client


@pytest.fixture(scope="module")
def maps(picture_checkpoint: Path) -> Any:
    """Return transformers' maps of the picture, `[L, N, S, S]`: eager, in float32."""
    model = Dinov2WithRegistersModel.from_pretrained(
        picture_checkpoint, attn_implementation="eager"
    )
    processor = AutoImageProcessor.from_pretrained(picture_checkpoint, backend="pil")
    pixels = processor(Image.open(BytesIO(FILE)), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = model.eval()(pixels, output_attentions=True).attentions
    return torch.stack(found)[:, 0].numpy()


async def asked(picture_client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await picture_client.post("/attention", json={"inputs": INPUT} | body)
    assert reply.status_code == 200, reply.text
    check_documented("AttentionReply", reply.json())
    (result,) = reply.json()["results"]
    found: dict[str, Any] = result
    return found


async def test_maps_are_transformers_and_tokens_are_patches(
    picture_client: httpx.AsyncClient, maps: Any
) -> None:
    found = await asked(picture_client, include=["weights", "stats", "rollout", "norms"])
    np.testing.assert_allclose(found["attention"], maps, atol=1e-5)
    patches = [f"{row},{column}" for row in range(2) for column in range(3)]
    assert found["tokens"] == [*SPECIAL, *patches]
    assert (found["grid"], found["size"]) == ([2, 3], [70, 40])
    np.testing.assert_allclose(found["stats"]["cls"], maps[..., 0].mean(axis=-1), atol=1e-5)


async def test_rows_of_patches_and_special_tokens(
    picture_client: httpx.AsyncClient, maps: Any
) -> None:
    asked_for = {"queries": ["[REG 2]", [1, 0], [-1, -1]], "keys": [[0, 1], "[CLS]"]}
    found = await asked(picture_client, **asked_for)
    assert (found["queries"], found["keys"]) == ([2, 6, 8], [4, 0])
    np.testing.assert_allclose(found["attention"], maps[:, :, [2, 6, 8]][..., [4, 0]], atol=1e-5)
    scores = await picture_client.post(
        "/attention/scores", json={"inputs": INPUT, "layer": 1, "head": 2} | asked_for
    )
    (head,) = scores.json()["results"]
    np.testing.assert_allclose(head["weights"], maps[1, 2][[2, 6, 8]][:, [4, 0]], atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
async def test_maps_over_the_pixels_of_the_picture(
    picture_client: httpx.AsyncClient, maps: Any, mode: str
) -> None:
    """The centre crop of 42 × 28 of the picture resized to 84 × 48 is 35 × 23.3 of its pixels."""
    body = {"inputs": INPUT, "queries": ["[CLS]", [0, 2]], "enlarge": mode, "include": ["weights"]}
    found = await asked(picture_client, **body)
    reply = await picture_client.post("/attention", json=body, headers={"accept": SAFETENSORS})
    enlarged = load(reply.content)["attention.0"]
    assert enlarged.shape == (2, 3, 2, 40, 70)
    np.testing.assert_allclose(found["attention"], enlarged, atol=1e-6)
    left, top, right, bottom = found["crop"]
    assert (left, right) == pytest.approx((17.5, 52.5), abs=0.5)
    rows, columns = range(round(top), round(bottom)), range(round(left), round(right))
    outside = np.delete(np.delete(enlarged, columns, axis=-1), rows, axis=-2)
    assert not outside.any()
    patches = torch.from_numpy(maps[:, :, [0, 5], 3:].reshape(6, 2, 2, 3))
    x = (np.arange(70) + 0.5 - left) / (right - left) * 2 - 1
    y = (np.arange(40) + 0.5 - top) / (bottom - top) * 2 - 1
    places = torch.tensor(np.stack(np.meshgrid(x, y), axis=-1)[None], dtype=torch.float32)
    expected = torch.nn.functional.grid_sample(
        patches, places.expand(6, -1, -1, -1), mode, padding_mode="border", align_corners=False
    ).numpy()
    inside = (((y >= -1) & (y < 1))[:, None] & ((x >= -1) & (x < 1))).astype("f4")
    np.testing.assert_allclose(enlarged.reshape(6, 2, 40, 70), expected * inside, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"queries": [[2, 0]]}, "queries: row 2 is not in -2 … 1, the rows of a picture"),
        ({"queries": ["[SEP]"]}, "the special tokens of a picture are [CLS], [REG 1], [REG 2]"),
        ({"queries": [0, "[CLS]"]}, "queries: one of inputs[0] is listed twice"),
        ({"enlarge": "nearest"}, "enlarge needs `queries`, whose maps are enlarged"),
        ({"enlarge": "nearest", "queries": [0], "keys": [1]}, "and no keys or max_size"),
        ({"enlarge": "nearest", "queries": [0], "top_k": 1}, "enlarge and top_k both choose keys"),
        ({"tower": "vision"}, "tower: this model has one encoder; leave it out"),
        ({"enlarge": "cubic", "queries": [0]}, "enlarge"),
    ],
)
async def test_what_is_refused(
    picture_client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    assert_problem(
        await picture_client.post("/attention", json={"inputs": INPUT} | body), 422, says
    )


async def test_too_many_pixels_are_refused_beforehand(picture_client: httpx.AsyncClient) -> None:
    large = element(picture(width=1000, height=800, kind="JPEG"))
    body = {"inputs": [large], "enlarge": "nearest", "queries": [0, 1, 2]}
    reply = await picture_client.post("/attention", json=body)
    problem = assert_problem(reply, 413, "ask for fewer pictures, queries, layers or heads")
    assert not problem["retryable"]


async def test_a_tower_is_chosen_by_the_inputs(
    exported: Callable[..., Artifact], clip_checkpoint: Path
) -> None:
    model = CLIPModel.from_pretrained(clip_checkpoint, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(clip_checkpoint, backend="pil")
    pixels = processor(Image.open(BytesIO(FILE)), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = model.vision_model(pixels, output_attentions=True).attentions
    async with serving(exported(clip_checkpoint, "clip")) as picture_client:
        seen = await asked(picture_client, tower="vision")
        np.testing.assert_allclose(seen["attention"], torch.stack(found)[:, 0], atol=1e-5)
        assert (seen["tower"], seen["tokens"][:2]) == ("vision", ["[CLS]", "0,0"])
        text = await asked(picture_client, inputs="two cats", tower="text", heads=[2])
        assert text["tower"] == "text"
        for body, says in (
            ({"tower": "text"}, "tower: the inputs are for the vision tower; leave `tower` out"),
            ({"inputs": [INPUT, "two cats"]}, "send texts and pictures in requests of their own"),
            ({"heads": [2]}, "heads: 2 is not in -2 … 1"),
            (
                {"inputs": "two cats", "queries": [[0, 0]]},
                "queries: names and [row, column] are for pictures",
            ),
            (
                {"inputs": "two cats", "queries": [0], "enlarge": "nearest"},
                "enlarge is for pictures, and these inputs are texts",
            ),
        ):
            reply = await picture_client.post("/attention", json={"inputs": INPUT} | body)
            assert_problem(reply, 422, says)
