"""Fixtures of the journeys: a real server process on the default model, and the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.process import Service

pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def running(*flags: str) -> Iterator[str]:
    """Run `headscope serve`, yield its URL, and check that it stops cleanly."""
    with Service.of_headscope(*flags) as service:
        service.wait_until_ready()
        yield service.url
        service.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Run the default service, with limits for a busy machine."""
    with running("--request-timeout-seconds", "300", "--queue-timeout-seconds", "300") as url:
        yield url


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def transformers_reference(minilm_checkpoint: Path) -> Any:
    """Return transformers' tokenizer and eager float32 model of the default checkpoint."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_checkpoint)
    model = AutoModel.from_pretrained(
        minilm_checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    return tokenizer, model.eval()


@pytest.fixture(scope="session")
def reference(transformers_reference: Any) -> Any:
    """Return transformers' results, computed once each."""
    from tests.journeys.reference import Reference

    return Reference(*transformers_reference)
