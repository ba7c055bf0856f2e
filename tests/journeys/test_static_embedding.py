"""Static embeddings from their files to replies, against sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from model.export.static_embedding import export_static
from service.artifacts.opening import export_once, find_checkpoint, open_artifact
from service.errors import EngineNotInstalled, NotExported
from service.files.local import plan_of
from service.files.options import Encoding, Kind
from service.settings import Settings
from tests.model.static_checkpoints import write_model2vec, write_static
from tests.service.harness import assert_problem, serving

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
TEXTS = ["the cat . x", "a", "y z the the zzz", "q " * 300]


@pytest.mark.parametrize("write", [write_static, write_model2vec])
async def test_its_vectors_are_sentence_transformers(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    """Token vectors are rows of the table; routes of attention say why there is none."""
    folder = write(tmp_path / "a")
    reference = SentenceTransformer(str(folder), device="cpu")
    expected, table = reference.encode(TEXTS), reference[0].embedding.weight.detach().numpy()
    said: list[str] = []
    settings = Settings(model=str(folder), cache_folder=tmp_path / "cache")
    artifact = open_artifact(settings, said.append)
    found = find_checkpoint(settings, print)  # as after a download
    assert export_once(settings, found, print) == artifact
    assert said[-1] == "this is a static embedding: a table of vectors without layers and attention"
    pair: dict[str, Any] = {"inputs": [TEXTS[:2]]}
    async with serving(artifact) as client:
        reply = (await client.post("/encode", json={"inputs": TEXTS})).json()
        for result, vector in zip(reply["results"], expected, strict=True):
            np.testing.assert_allclose(result["pooled"], vector, atol=1e-6)
            np.testing.assert_array_equal(
                np.array(result["embeddings"], np.float32), table[result["token_ids"]]
            )
        body = {"input": TEXTS, "model": "any"}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        np.testing.assert_allclose([one["embedding"] for one in data], expected, atol=1e-6)
        for path, body in (
            ("/attention", pair),
            ("/attention/scores", {"inputs": TEXTS, "layer": 0, "head": 0}),
            ("/explain", pair | {"include": ["heads"]}),
            ("/encode", {"inputs": TEXTS, "backend": "torch"}),
            ("/verify", {"inputs": TEXTS}),
        ):
            refused = await client.post(path, json=body)
            assert refused.status_code == 501, path
            assert "a static embedding, a table without layers and heads" in refused.text
        layer = await client.post("/encode", json={"inputs": TEXTS, "layer": 1})
        assert_problem(layer, 422, "layer 1 is not in -1 … 0")
        info = (await client.get("/info")).json()
        assert (info["runtime"], info["engine"], info["precision"]) == ("static", "onnx", "fp32")
        unknown = ("layers", "heads", "attention_score", "attention_normalizer")
        assert [info[name] for name in unknown] == [None] * 4
        described = (await client.get(f"/v2/models/{info['model_id']}")).json()
        names = {output["name"] for output in described["outputs"]}
        assert "pooled" in names
        assert not {name for name in names if "attention" in name}


@pytest.mark.parametrize("settings", [{"fallback": "torch"}, {"verify_share": 0.5}])
async def test_what_needs_pytorch_does_not_start(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    artifact = export_static(write_model2vec(tmp_path / "a"), tmp_path / "out", "a")
    with pytest.raises(EngineNotInstalled, match="not what PyTorch computes with"):
        async with serving(artifact, **settings):
            pass


@pytest.mark.parametrize("kind", ["stats", "importance"])
def test_files_of_heads_are_refused(tmp_path: Path, kind: Kind) -> None:
    artifact = export_static(write_model2vec(tmp_path / "a"), tmp_path / "out", "a")
    with pytest.raises(NotExported, match="a static embedding, a table without layers and heads"):
        plan_of(artifact, Encoding(kind=kind))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": "int8"}, "a static embedding, which is served in fp32"),
        ({"pooling": "cls"}, "a static embedding, whose pooling is the mean"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = write_static(tmp_path / "a")
    settings = Settings(model=str(folder), cache_folder=tmp_path / "cache", **changes)
    for opens in (open_artifact, find_checkpoint):
        with pytest.raises(ValueError, match=says):
            opens(settings, print)
