"""Limits of a model's inputs, requests, queues and batches, by its settings."""

from __future__ import annotations

from dataclasses import replace

from model.artifact.manifest import Artifact
from service.inference.tokenization.tokenizer import Limits
from service.scheduler.lanes import BatchLimits
from service.settings import Settings

CHARACTERS_PER_INPUT_TOKEN = 64
CHARACTERS_PER_QUEUED_TOKEN = 2
"""Maximum number of characters of a request per token of the queue's limit."""


def batch_limits(settings: Settings, batch_tokens: int) -> BatchLimits:
    """Return the limits of a queue and its batches."""
    return BatchLimits(
        batch_tokens,
        settings.max_queue_tokens,
        settings.max_queue_texts,
        settings.queue_timeout_seconds,
        settings.queue_target_seconds,
        settings.batch_timeout_seconds,
    )


def input_limits(settings: Settings, artifact: Artifact) -> Limits:
    """Return the limits of inputs: the settings, or the checkpoint's own; of pictures, their own.

    Raises:
        ValueError: `--max-length` exceeds the position table.

    """
    manifest, most = artifact.manifest, settings.max_client_batch_size
    table = manifest.config.max_position_embeddings
    if manifest.images:  # whose number of tokens is fixed
        return Limits(table, settings.max_image_bytes, most)
    tokens = settings.max_length or manifest.sentence.max_length
    if tokens > table:
        raise ValueError(
            f"--max-length {tokens} is more than the position table's {table} of {manifest.model}"
        )
    together = settings.max_request_characters
    if together is None:
        together = CHARACTERS_PER_QUEUED_TOKEN * settings.max_queue_tokens
    limits = Limits(
        tokens, settings.max_characters or CHARACTERS_PER_INPUT_TOKEN * tokens, most, together
    )
    if (decoder := manifest.decoder) is None:
        return limits
    return replace(limits, max_target_tokens=decoder.layers.max_position_embeddings)
