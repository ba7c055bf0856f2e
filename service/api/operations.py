"""Routes of health, information and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from model.artifact.manifest import Manifest
from model.config.precision import Precision
from model.numerics.pooling import modes_of
from service.api.wire.media import prefers
from service.api.wire.replies import PROBLEMS
from service.api.wire.route import ApiExchange
from service.engines.contract import BatchCost
from service.health.readiness import ANSWER_SECONDS, SILENT
from service.inference.outputs.declared import names_of
from service.models.served import ServedModel
from service.settings import Settings
from service.system.distribution import version

DTYPES: Mapping[Precision, str] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
}

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

router = APIRouter(tags=["operations"])


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live() -> dict[str, str]:
    """Return 200 while the process answers."""
    return {"status": "live"}


@router.get("/health/ready", responses={503: PROBLEMS[503]})
@router.get("/health", responses={503: PROBLEMS[503]})
@router.head("/health/ready", include_in_schema=False)
@router.head("/health", include_in_schema=False)
async def ready(exchange: ApiExchange) -> dict[str, str]:
    """Return 200 if the engine computed a batch recently, or computes one now, in every worker.

    `status` is "degraded" while PyTorch serves in place of a failed engine. `detail` names lost
    devices while the model's other devices serve.
    """
    state = exchange.service
    degraded = await state.readiness.check()
    if degraded:
        return {"status": "degraded", "backend": "torch", "detail": degraded}
    lost = state.readiness.lost_devices
    return {"status": "ready", "detail": lost} if lost else {"status": "ready"}


@router.get("/metrics", response_class=Response)
async def metrics(exchange: ApiExchange) -> Response:
    """Return Prometheus metrics, aggregated over all workers."""
    state = exchange.service
    await state.refresh_metrics()
    accepted = exchange.headers.get(b"accept", b"").decode("latin-1")
    if prefers(accepted, "application/openmetrics-text", "text/plain"):
        render, media_type = state.metrics.render_openmetrics, OPENMETRICS
    else:
        render, media_type = state.metrics.render, TEXT
    if state.peers:
        answers = await state.peers.ask("refresh", ANSWER_SECONDS)
        if SILENT in answers.values():
            state.metrics.registry.ready.set(0)
    content = await asyncio.to_thread(render)  # takes 20 ms for the metrics of all routes
    return Response(content, media_type=media_type)


@router.get("/info", responses={404: PROBLEMS[404]})
async def info(exchange: ApiExchange, model: str | None = None) -> JSONResponse:
    """Describe a model, its engine and its verification; by default the first model and all."""
    state = exchange.service
    chosen = state.models.named(model)
    content = describe(state.settings, chosen)
    if state.models.several and model is None:
        content["models"] = [describe(state.settings, served) for served in state.models]
    if model is not None or not state.models.several:
        exchange.bind_model(chosen, model)
    return JSONResponse(content)


def describe(settings: Settings, model: ServedModel) -> dict[str, object]:
    """Return the content of `/info` about a model: TEI's fields, native fields, current status."""
    manifest, engines = model.artifact.manifest, model.inference.engines
    engine, vectors = engines.default.engine, model.inference.vectors
    limits, sentence = model.inference.limits, manifest.sentence
    return {
        "model_id": model.name,
        "model_sha": manifest.weights_sha256,
        "model_dtype": DTYPES[manifest.precision],
        "served_model_name": model.name,
        "model_type": model_type(manifest),
        "max_concurrent_requests": model.settings.max_queue_texts,
        "max_input_length": limits.max_tokens,
        "max_batch_tokens": model.settings.max_batch_tokens or engine.batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_client_batch_size,
        "auto_truncate": settings.auto_truncate,
        "tokenization_workers": 1,
        "max_queue_tokens": model.settings.max_queue_tokens,
        "workers": settings.workers,
        "version": version(),
        "sha": None,
        "docker_label": None,
        **_of_encoder(manifest),
        "normalize": sentence.normalize,
        "prompts": sorted(sentence.prompts),
        "default_prompt_name": sentence.default_prompt_name,
        "tasks": list(sentence.tasks),
        "embedding_dimension": vectors.kept(),
        "truncate_dim": sentence.truncate_dim,
        "vector_ranges": vectors.has_ranges,
        "matryoshka_dims": sentence.matryoshka_dims,
        "similarity_fn_name": sentence.similarity_fn_name,
        "outputs": names_of(manifest),
        "max_characters": None if manifest.images else limits.max_characters,
        "fingerprint": model.fingerprint,
        **_of_engine(model),
        **_of_pictures(model),
    }


def _of_engine(model: ServedModel) -> dict[str, object]:
    """Return the engine of a model or tower, its precision, verification and current status."""
    manifest, engines = model.artifact.manifest, model.inference.engines
    engine = engines.default.engine
    cost = asdict(engine.cost)
    milliseconds = {name: round(1000 * seconds, 6) for name, seconds in cost.items()}
    return {
        "engine": engine.name,
        "provider": engine.provider,
        "attention_kernels": list(engine.attention_kernels),
        "cuda_graphs": model.settings.cuda_graphs,
        "devices": [asdict(device) for device in engine.devices] or None,
        "precision": manifest.precision,
        "precision_note": model.precision_note,
        "batch_cost_ms": None if engine.cost == BatchCost() else milliseconds,
        "weight_bits": manifest.weight_bits,
        "artifact_sha256": model.artifact.sha256,
        "verification": manifest.verification.model_dump(),
        "status": "degraded" if engines.stand_in else "failed" if engines.failure else "working",
        "backend": engines.stand_in or engines.name,
        "failure": engines.failure or model.health.live_verification.problem or None,
    }


def _of_pictures(model: ServedModel) -> dict[str, object]:
    """Return how a model sees pictures, and its vision tower; null for a model of texts."""
    manifest, vision = model.towers[-1].artifact.manifest, model.vision
    steps, patches = manifest.images, manifest.config.embeddings.patches
    return {
        "modalities": model.modalities,
        "images": {
            "height": steps.size[0],
            "width": steps.size[1],
            "patch_size": patches.size,
            "grid": (patches.rows, patches.columns),
            "special_tokens": patches.special_tokens,
            "tokens": patches.tokens,
            "max_bytes": model.settings.max_image_bytes,
            "max_pixels": model.settings.max_image_pixels,
        }
        if steps and patches
        else None,
        "towers": [tower.inference.tower for tower in model.towers] if vision else None,
        "vision": {**_of_encoder(manifest), **_of_engine(vision)} if vision else None,
    }


def _of_encoder(manifest: Manifest) -> dict[str, object]:
    """Return the shapes and functions of the encoder, and of a decoder.

    Null for a static embedding, which has no layers, or without a decoder.
    """
    config, static = manifest.config, manifest.static
    decoder = manifest.decoder.layers if manifest.decoder else None
    return {
        "runtime": manifest.runtime,
        "layers": config.num_hidden_layers or None,
        "heads": config.num_attention_heads or None,
        "decoder_layers": decoder.num_hidden_layers if decoder else None,
        "decoder_heads": decoder.num_attention_heads if decoder else None,
        "hidden_size": config.hidden_size,
        "attention_score": None if static else config.attention_score,
        "attention_normalizer": None if static else config.attention_normalizer,
    }


def model_type(manifest: Manifest) -> dict[str, object]:
    """Return TEI's model type, from the task head or the pooling."""
    task = manifest.task
    if task is not None and task.kind == "sequence_classification":
        labels = {
            "id2label": {str(number): label for number, label in enumerate(task.labels)},
            "label2id": {label: number for number, label in enumerate(task.labels)},
        }
        return {"reranker" if task.outputs == 1 else "classifier": labels}
    sparse = task is not None and task.kind == "sparse"
    return {
        "embedding": {
            "pooling": "splade" if sparse else "+".join(modes_of(manifest.sentence.pooling))
        }
    }
