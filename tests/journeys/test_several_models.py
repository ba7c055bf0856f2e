"""Two models in one service: by name, at once, and from each of two workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from testing.process import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TEXT = "the cat . a b"


@pytest.fixture(scope="module")
def artifacts(
    exported: Callable[..., Artifact], small_checkpoint: Path, tiny_checkpoint: Path
) -> dict[str, Artifact]:
    """Return two artifacts of different hidden sizes, by name."""
    found = [exported(small_checkpoint, "small"), exported(tiny_checkpoint, "tiny")]
    assert len({one.manifest.config.hidden_size for one in found}) == 2
    return {one.manifest.model: one for one in found}


def last_states(checkpoint: Path) -> Any:
    """Return the last states `[S, H]` of the text, by transformers."""
    tokens = AutoTokenizer.from_pretrained(checkpoint)(TEXT, return_tensors="pt")
    model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(**tokens).last_hidden_state[0].numpy()


def test_each_answers_with_its_own_numbers(
    artifacts: dict[str, Artifact], small_checkpoint: Path, tiny_checkpoint: Path
) -> None:
    """Both models answer at once, over four connections, which are spread evenly over workers.

    The workers' numbers are transformers', and one another's but for the last bits.
    """
    checkpoints = (small_checkpoint, tiny_checkpoint)
    expected = dict(zip(artifacts, map(last_states, checkpoints), strict=True))
    first, second = artifacts

    def ask(client: httpx.Client, name: str | None) -> Any:
        body = {"inputs": TEXT, "model": name}
        reply = client.post("/encode", json=body)
        assert reply.json()["model"] == reply.headers["x-model"] == (name or first)
        (result,) = reply.json()["results"]
        assert np.abs(result["embeddings"] - expected[name or first]).max() < 1e-4
        listed = client.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == [first, second]
        unknown = client.post("/encode", json={"inputs": TEXT, "model": "other"})
        assert unknown.status_code == 404
        return result["embeddings"]

    flags = [flag for one in artifacts.values() for flag in ("--artifact", str(one.folder))]
    with Service.of_headscope("--workers", "2", *flags) as service:
        service.wait_until_ready()
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as threads:
            clients = [
                stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
                for _ in range(4)
            ]
            for client in clients:
                assert client.get("/health/live").status_code == 200
            for name in (first, second, None) * 2:
                found = np.array([*threads.map(ask, clients, [name] * len(clients))])
                assert np.ptp(found, axis=0).max() < 1e-6
        assert all(worker.num_threads() > 1 for worker in service.children)
        log = service.log
        assert service.stop() == 0
    for name in artifacts:
        assert log.count(f"{name} takes about ") == 1
    assert log.count("2 models") == 1
