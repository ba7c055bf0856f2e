"""Limits of a model's inputs, requests, queues and batches, by its settings."""

from __future__ import annotations

from model.artifact.manifest import Artifact
from service.inference.tokenization.request_tokenizer import CHARACTERS_PER_TOKEN, RequestLimits
from service.inference.tokenization.tokenizer import Limits
from service.scheduler.lanes import BatchLimits
from service.settings import Settings

CHARACTERS_PER_INPUT_TOKEN = 64


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


def request_limits(settings: Settings) -> RequestLimits:
    """Return the limits of a request."""
    characters = settings.max_request_characters
    if characters is None:
        characters = CHARACTERS_PER_TOKEN * settings.max_queue_tokens // 2
    return RequestLimits(settings.max_client_batch_size, characters)


def token_limits(settings: Settings, artifact: Artifact) -> Limits:
    """Return the limits of an input: the settings, or the checkpoint's own; of a picture, its own.

    Raises:
        ValueError: `--max-length` exceeds the position table.

    """
    table = artifact.manifest.config.max_position_embeddings
    if artifact.manifest.images:  # whose number of tokens is fixed
        return Limits(table, settings.max_image_bytes)
    tokens = settings.max_length or artifact.manifest.sentence.max_length
    if tokens > table:
        raise ValueError(
            f"--max-length {tokens} is more than the position table's {table} "
            f"of {artifact.manifest.model}"
        )
    return Limits(tokens, settings.max_characters or CHARACTERS_PER_INPUT_TOKEN * tokens)
