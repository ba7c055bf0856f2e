"""Health, information and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from model.artifact.manifest import Precision
from service.api.reply import PROBLEMS
from service.distribution import version
from service.engines.contract import Pooling, TextTask
from service.errors import EngineUnavailable, ServiceError
from service.health.peers import Answers
from service.inference.engine_pool import Backends
from service.scheduler.batching import Batcher

DTYPES: Mapping[Precision, str] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
}
DEGRADED = "degraded: "
"""How a worker's answer begins if a stand-in serves there."""
FRESH_SECONDS = 5.0
PROBE_SECONDS = 2.0
ANSWER_SECONDS = 1.0
"""How long another worker may take to answer, beyond what it was asked to do."""

router = APIRouter(tags=["operations"])


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "live"}


@router.get("/health/ready", responses={503: PROBLEMS[503]})
@router.get("/health", responses={503: PROBLEMS[503]})
async def ready(request: Request) -> dict[str, str]:
    """The engine's real path works in every worker: a batch was computed just now, or is.

    `status` is "degraded" while PyTorch serves in place of an engine that has failed.
    """
    state = request.app.state
    degraded = await _check(state)
    if state.peers:
        found = await state.peers.ask("ready", PROBE_SECONDS + ANSWER_SECONDS)
        for index, said in found.items():
            if said.startswith(DEGRADED):
                degraded = degraded or f"worker {index}: {said.removeprefix(DEGRADED)}"
            elif said:
                raise EngineUnavailable(f"worker {index}: {said}", retry_after_seconds=5)
    if degraded:
        return {"status": "degraded", "backend": "torch", "detail": degraded}
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics, of all workers together."""
    state = request.app.state
    _refresh(state)
    if state.peers:
        await state.peers.ask("refresh", ANSWER_SECONDS)
        content = await asyncio.to_thread(state.metrics.render)
    else:
        content = state.metrics.render()
    return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/info")
async def info(request: Request) -> JSONResponse:
    """What is served, by what, and how it was verified."""
    state = request.app.state
    backends = state.predictor.backends
    now = {
        "status": "degraded" if backends.stand_in else "failed" if backends.failure else "working",
        "backend": backends.stand_in or backends.name,
        "failure": backends.failure or state.sampling.problem or None,
    }
    return JSONResponse(state.info | now)


def answers(state: Any) -> Answers:
    """What this worker tells the others."""

    async def ready() -> str:
        try:
            degraded = await _check(state)
        except ServiceError as error:
            return error.detail
        return DEGRADED + degraded if degraded else ""

    async def refresh() -> str:
        _refresh(state)
        return ""

    return {"ready": ready, "refresh": refresh}


def _refresh(state: Any) -> None:
    """Bring those metrics up to date that are not kept as things happen."""
    for name, lane in state.predictor.backends.default.lanes.items():
        state.metrics.queue_tokens.labels(name).set(lane.queued_tokens)


async def _check(state: Any) -> str:
    """Raise unless requests are answered, and rightly; returns why only a stand-in does, if so."""
    if state.draining:
        raise EngineUnavailable("the service is stopping", retry_after_seconds=5)
    if state.sampling.problem:
        raise EngineUnavailable(state.sampling.problem, retry_after_seconds=5)
    backends: Backends = state.predictor.backends
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            batcher = await backends.get(None)
    except TimeoutError:
        raise EngineUnavailable("PyTorch is starting", retry_after_seconds=5) from None
    if batcher.failure:
        raise EngineUnavailable(batcher.failure, retry_after_seconds=5)
    if time.monotonic() - batcher.last_success > FRESH_SECONDS:
        await _probe(batcher)
    return backends.failure


async def _probe(batcher: Batcher) -> None:
    one = np.zeros(1, np.int64)
    task = TextTask(one, one, pooling=Pooling(0, "cls"))
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await batcher.submit("encode", [task])
    except TimeoutError:
        raise EngineUnavailable(
            f"the engine did not answer a probe within {PROBE_SECONDS:g} s", retry_after_seconds=5
        ) from None
    except ServiceError as error:
        raise EngineUnavailable(
            f"the engine failed a probe: {error.detail}", retry_after_seconds=5
        ) from None


def describe(state: Any) -> dict[str, Any]:
    """The content of `/info`: TEI's fields, then ours."""
    settings, artifact, engine = (state.settings, state.artifact, state.engine)
    manifest = artifact.manifest
    limits = state.tokenizer.limits
    return {
        "model_id": manifest.model,
        "model_sha": manifest.files["weights.safetensors"].sha256,
        "model_dtype": DTYPES[manifest.precision],
        "model_type": {"embedding": {"pooling": manifest.sentence.pooling}},
        "max_concurrent_requests": settings.max_queue_tokens,
        "max_input_length": limits.max_tokens,
        "max_batch_tokens": settings.max_batch_tokens or engine.batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_client_batch_size,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "workers": settings.workers,
        "version": version(),
        "sha": None,
        "docker_label": None,
        "layers": manifest.config.num_hidden_layers,
        "heads": manifest.config.num_attention_heads,
        "hidden_size": manifest.config.hidden_size,
        "attention_score": manifest.config.attention_score,
        "attention_normalizer": manifest.config.attention_normalizer,
        "normalize": manifest.sentence.normalize,
        "prompts": sorted(manifest.sentence.prompts),
        "max_characters": limits.max_characters,
        "engine": engine.name,
        "provider": engine.provider,
        "precision": manifest.precision,
        "artifact_sha256": artifact.sha256,
        "verification": manifest.verification.model_dump(),
    }
