"""Prompts of a checkpoint for the input types of other services."""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import Unprocessable
from service.inference.core import Inference

_QUERY = ("search_query", "query", "retrieval.query")
_DOCUMENT = ("search_document", "document", "passage", "corpus", "retrieval.passage")
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "search_query": _QUERY,
    "search_document": _DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
    "query": _QUERY,
    "document": _DOCUMENT,
    "retrieval.query": ("retrieval.query", *_QUERY),
    "retrieval.passage": ("retrieval.passage", *_DOCUMENT),
    "text-matching": ("text-matching",),
    "separation": ("separation", "clustering"),
}
"""Input type of Cohere or Jina → names of the prompt in a checkpoint, best first."""


def without_prompt(inference: Inference) -> str | None:
    """Return the `prompt_name` that disables the default prompt, for dialects without prompts."""
    return None if inference.sentence.default_prompt_name is None else ""


def known_prompt(inference: Inference, kind: str) -> str | None:
    """Return the name of the checkpoint's prompt for an input type; None if it has none."""
    return next(
        (name for name in PROMPTS.get(kind, ()) if name in inference.sentence.prompts), None
    )


def prompt_for(inference: Inference, kind: str | None, field: str) -> str | None:
    """Return the name of the checkpoint's prompt for an input type.

    Args:
        inference: inference of the model.
        kind: input type, a key of `PROMPTS` or the name of a prompt of the checkpoint.
        field: name of the request's field, for the error.

    Returns:
        None without an input type, or if the checkpoint has no prompt for it.

    """
    prompts = inference.sentence.prompts
    if kind is None or kind in prompts:
        return kind
    found = known_prompt(inference, kind)
    if found is None and inference.sentence.tasks:
        known = ", ".join(inference.sentence.tasks)
        raise Unprocessable(f"{field}: this model has no task for it; its tasks are {known}")
    if kind not in PROMPTS:
        known = ", ".join([*PROMPTS, *sorted(prompts)])
        raise Unprocessable(f"{field}: unknown; it is one of {known}")
    return found
