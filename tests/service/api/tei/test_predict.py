"""`POST /predict` in TEI's forms: texts, pictures, labels of a request, spans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from scipy.special import expit, softmax
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
)

from model.artifact.manifest import Artifact
from service.api.drop_in.scores import predictions
from service.api.tei.scores import PredictRequest, span_bytes
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.tokenizer import Options
from tests.model.families.parity import saved
from tests.model.picture_checkpoints import PROCESSOR
from tests.model.tower_checkpoints import VISION
from tests.service.api.tei.tasks import LABELS, RANKS, TOKENS, scores_of, serving_task
from tests.service.harness import reserved_replies, serving, state_of
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio


TEXTS: list[Any] = ["a text", ("a text", "its pair"), "another"]


def labelled(logits: Any, scores: Any) -> list[dict[str, Any]]:
    order = np.argsort(-logits)
    return [
        {"label": LABELS.labels[i], "score": pytest.approx(float(scores[i]), abs=1e-6)}
        for i in order
    ]


async def test_a_batch_is_sorted_softmax_of_texts_and_pairs(artifact: Artifact) -> None:
    expected = [labelled(row, softmax(row)) for row in scores_of(artifact, LABELS, TEXTS)]
    batch = [["a text"], ["a text", "its pair"], ["another"]]
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": batch})
    assert response.status_code == 200
    assert response.json() == expected
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["x-compute-tokens"]) > 0


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("a text", "a text"),
        (["a text"], "a text"),
        (["a text", "its pair"], TEXTS[1]),
        (["", "b"], ("", "b")),
    ],
)
async def test_one_text_or_pair_is_answered_alone(
    artifact: Artifact, inputs: Any, text: Any
) -> None:
    (row,) = scores_of(artifact, LABELS, [text])
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": inputs})
        raw = await client.post("/predict", json={"inputs": inputs, "raw_scores": True})
    assert response.json() == labelled(row, softmax(row))
    assert raw.json() == labelled(row, row)


async def test_one_label_is_a_sigmoid(artifact: Artifact) -> None:
    (row,) = scores_of(artifact, RANKS, ["a text"])
    async with serving_task(artifact, RANKS) as client:
        (found,) = (await client.post("/predict", json={"inputs": "a text"})).json()
    assert found == {"label": "LABEL_0", "score": pytest.approx(float(expit(row[0])), abs=1e-6)}


async def test_a_long_text_is_cut_by_the_setting_or_on_request(artifact: Artifact) -> None:
    body = {"inputs": "a " * 600}
    async with serving_task(artifact, LABELS) as client:
        cut_by_default = await client.post("/predict", json=body)
        refused = await client.post("/predict", json=body | {"truncate": False})
    async with serving_task(artifact, LABELS, auto_truncate=False) as client:
        null = await client.post("/predict", json=body | {"truncate": None})
        cut = await client.post("/predict", json=body | {"truncate": True})
        left = {"truncate": True, "truncation_direction": "Left", "inputs": "b " + body["inputs"]}
        right = left | {"truncation_direction": "Right"}
        sides = [(await client.post("/predict", json=each)).json() for each in (left, right)]
    assert refused.status_code == null.status_code == 422
    assert refused.json()["error_type"] == "Tokenizer"
    assert cut.status_code == 200
    assert cut.json() == cut_by_default.json()
    assert sides[0] == cut.json() != sides[1]


PICTURE = {"image": "aGk="}


@pytest.mark.parametrize(
    ("inputs", "batch", "pictures"),
    [
        (PICTURE, False, [True]),
        ([PICTURE, PICTURE], True, [True, True]),
        ([PICTURE, ["a"]], True, [True, False]),
        ([["a", "b"]], True, [False]),
        (["a", "b"], False, [False]),
    ],
)
def test_a_picture_is_an_input_and_a_list_of_them_a_batch(
    inputs: Any, batch: bool, pictures: list[bool]
) -> None:
    found = PredictRequest.model_validate({"inputs": inputs}).inputs
    assert found.batch == batch
    assert [isinstance(given, Picture) for given in found.texts] == pictures


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [PICTURE, "a"]},
        {"inputs": {"picture": "aGk="}},
        {"inputs": PICTURE, "labels": []},
        {"inputs": PICTURE, "labels": [""]},
        {"inputs": PICTURE, "labels": ["a", "a"]},
        {"inputs": PICTURE, "top_k": 0},
    ],
    ids=str,
)
def test_what_is_refused(fields: Any) -> None:
    with pytest.raises(ValidationError):
        PredictRequest.model_validate(fields)


def test_the_best_label_is_first_and_ties_keep_their_order() -> None:
    logits, scores = np.array([1.0, 2.0, 2.0]), np.array([0.2, 0.4, 0.4])
    assert [(label["label"], label["score"]) for label in predictions(logits, "abc", scores)] == [
        ("b", 0.4),
        ("c", 0.4),
        ("a", 0.2),
    ]


FILES = [picture(seed=1, width=50, height=40), picture(seed=2, width=33, height=60)]
NAMES = {0: "cat", 1: "dog", 2: "fox"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a DeiT with a class token and a distillation token, whose logits are a mean."""
    config = DeiTConfig(**VISION, id2label=NAMES)
    folder = saved(DeiTForImageClassificationWithTeacher(config), tmp_path_factory.mktemp("deit"))
    processor = PROCESSOR | {"crop_size": {"height": 28, "width": 28}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(checkpoint, "deit")) as client:
        yield client


async def test_labels_are_transformers(client: httpx.AsyncClient, checkpoint: Path) -> None:
    model = DeiTForImageClassificationWithTeacher.from_pretrained(checkpoint).eval()
    processor = AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    with torch.no_grad():
        pixels = processor([Image.open(BytesIO(f)) for f in FILES], return_tensors="pt")
        logits = model(**pixels).logits.numpy()
    body = {"inputs": [element(file) for file in FILES]}
    for raw, expected in ((True, logits), (False, softmax(logits, axis=1))):
        reply = await client.post("/predict", json=body | {"raw_scores": raw})
        assert reply.status_code == 200, reply.text
        for row, found in zip(expected, reply.json(), strict=True):
            assert [label["label"] for label in found] == [NAMES[n] for n in np.argsort(-row)]
            scores = [label["score"] for label in found]
            np.testing.assert_allclose(scores, np.sort(row)[::-1], atol=1e-4)
    best = await client.post("/predict", json={"inputs": body["inputs"][0], "top_k": 1})
    assert best.json() == [reply.json()[0][0]]


async def test_pictures_that_are_refused(client: httpx.AsyncClient) -> None:
    for body, says in (
        ({"inputs": "a text"}, "inputs[0] is a text, and the model reads pictures"),
        ({"inputs": element(FILES[0]), "labels": ["a"]}, "labels: this model has labels"),
        ({"inputs": {"image": "%"}}, "inputs.image is not base64"),
    ):
        reply = await client.post("/predict", json=body)
        assert reply.status_code == 422, reply.text
        assert says in reply.json()["error"]


CHOSEN_LABELS = ["two cats", "a dog", "3 boxes"]
BODY = {"inputs": [element(file) for file in FILES], "labels": CHOSEN_LABELS}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def clip_checkpoint(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(f"{request.param}_checkpoint")
    return folder


@pytest.fixture(scope="module")
async def clip_client(
    exported: Callable[..., Artifact], clip_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(clip_checkpoint, clip_checkpoint.name)) as clip_client:
        yield clip_client


def logits_of(folder: Path, template: str) -> Any:
    """Return transformers' logits `[B, C]`."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor([Image.open(BytesIO(f)) for f in FILES], return_tensors="pt")
    tokenizer, texts = AutoTokenizer.from_pretrained(folder), map(template.format, CHOSEN_LABELS)
    if model.config.model_type == "siglip":
        whole = {"padding": "max_length", "max_length": 20, "truncation": True}
        ids = tokenizer([*texts], return_tensors="pt", **whole).input_ids
        with torch.no_grad():
            return model(input_ids=ids, **pixels).logits_per_image.numpy()
    rows = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=20).input_ids
        with torch.no_grad():
            rows.append(model(input_ids=ids, **pixels).logits_per_image.numpy())
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("template", [None, "{}!"])
async def test_scores_are_transformers(
    clip_client: httpx.AsyncClient, clip_checkpoint: Path, template: str | None
) -> None:
    logits = logits_of(clip_checkpoint, template or "This is {}.")
    body = BODY | ({"template": template or "This is {}."})
    scores = softmax(logits, axis=1) if clip_checkpoint.name == "clip" else expit(logits)
    for raw, expected in ((True, logits), (False, scores)):
        reply = await clip_client.post("/predict", json=body | {"raw_scores": raw})
        assert reply.status_code == 200, reply.text
        for row, found in zip(expected, reply.json(), strict=True):
            assert [label["label"] for label in found] == [
                CHOSEN_LABELS[n] for n in np.argsort(-row)
            ]
            np.testing.assert_allclose(
                [label["score"] for label in found], np.sort(row)[::-1], atol=1e-4
            )


async def test_a_form_is_a_batch(clip_client: httpx.AsyncClient) -> None:
    files: list[Any] = [("inputs", (f"{n}.png", file)) for n, file in enumerate(FILES)]
    files.append(("labels", (None, json.dumps(CHOSEN_LABELS))))
    form = await clip_client.post("/predict", files=files)
    batch = await clip_client.post("/predict", json=BODY)
    assert form.status_code == 200
    for own, expected in zip(form.json(), batch.json(), strict=True):
        scores = {label["label"]: label["score"] for label in expected}
        assert {label["label"]: label["score"] for label in own} == pytest.approx(scores, abs=1e-5)


async def test_one_picture_and_its_best_label(clip_client: httpx.AsyncClient) -> None:
    batch = await clip_client.post("/predict", json=BODY)
    alone = await clip_client.post(
        "/predict", json=BODY | {"inputs": BODY["inputs"][0], "top_k": 1}
    )
    (best,) = alone.json()
    assert best["label"] == batch.json()[0][0]["label"]
    assert best["score"] == pytest.approx(batch.json()[0][0]["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": None}, "labels: this model has none of its own: name those to choose from"),
        ({"inputs": "a text"}, "inputs[0] is no picture: `labels` are for pictures"),
        ({"template": "a photo"}, "template: put {} once, where the label goes"),
        ({"aggregation": "first"}, "aggregation applies to token labels, not to `labels`"),
        ({"labels": ["x" * 50], "truncate": False}, "labels[0] has"),
    ],
    ids=str,
)
async def test_labels_that_are_refused(
    clip_client: httpx.AsyncClient, changes: dict[str, Any], says: str
) -> None:
    reply = await clip_client.post("/predict", json=BODY | changes)
    assert reply.status_code == 422, reply.text
    assert says in reply.json()["error"]


SPANNED = ["The cats of Bamberg", "", 'no \U0001f600 \x01 "quotes" \ud7ff']
MEMBERS = ["score", "label", "start", "end", "text"]


def tokens_of(artifact: Artifact, text: str) -> list[tuple[str, float]]:
    """Return each token's label and logit, without [CLS], [SEP] and label O."""
    (logits,) = scores_of(artifact, TOKENS, [text])
    best = logits[1:-1].argmax(axis=-1)
    return [
        (TOKENS.labels[label], float(row[label]))
        for label, row in zip(best, logits[1:-1], strict=True)
        if label
    ]


async def test_texts_have_lists_of_spans(artifact: Artifact) -> None:
    body = {"inputs": [[text] for text in SPANNED], "aggregation": "none", "raw_scores": True}
    async with serving_task(artifact, TOKENS) as client:
        response = await client.post("/predict", json=body)
        alone = await client.post("/predict", json=body | {"inputs": SPANNED[0]})
        joined = [
            (await client.post("/predict", json={"inputs": SPANNED[0]} | simple)).json()
            for simple in ({}, {"aggregation": "simple"})
        ]
    assert response.status_code == 200, response.text
    found = response.json()
    assert alone.json() == found[0]
    assert joined[0] == joined[1]
    assert {span["label"] for span in joined[0]} == {"X"}
    for text, of_text in zip(SPANNED, found, strict=True):
        expected = tokens_of(artifact, text)
        assert [(s["label"], pytest.approx(s["score"])) for s in of_text] == expected
        for span in of_text:
            assert list(span) == MEMBERS
            assert span["text"] == text[span["start"] : span["end"]] != ""
    assert found[1] == []


@pytest.mark.parametrize(
    "text", ["\x01 \U0001f600 a " * 80, "cat " * 100, "unbelievable " * 60], ids=["long", "", "cut"]
)
async def test_a_reply_weighs_no_more_than_is_predicted(
    artifact: Artifact, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction is close, even if labels and characters are long in JSON."""
    task = TOKENS.model_copy(update={"labels": ("B-Ä" * 9, "B-X" * 9, "B-Y" * 9)})
    async with serving_task(artifact, task) as client:
        state, sizes = state_of(client.app), reserved_replies(monkeypatch)
        tokens = state.models.default.inference.tokenizer.tokenize([text], Options())
        response = await client.post("/predict", json={"inputs": text, "aggregation": "none"})
        size = span_bytes([text], tokens, task)
        assert (state.replies.held, sizes) == (0, [size])
    assert len(response.json()) == len(tokens[0].input_ids) - 2
    assert size / 4 < len(response.content) < size
