"""Prompts of a checkpoint for the kinds of input that other services' requests name."""

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
    "clustering": ("clustering",),
    "query": _QUERY,
    "document": _DOCUMENT,
    "retrieval.query": ("retrieval.query", *_QUERY),
    "retrieval.passage": ("retrieval.passage", *_DOCUMENT),
    "text-matching": ("text-matching",),
    "separation": ("separation", "clustering"),
}
"""Names that a checkpoint may give its prompt for each kind of input of Cohere, Voyage and Jina."""


def without_prompt(inference: Inference) -> str | None:
    """Return the `prompt_name` of a text without a prompt, for dialects without prompts."""
    return None if inference.sentence.default_prompt_name is None else ""


def prompt_for(inference: Inference, kind: str | None, field: str) -> str | None:
    """Return the name of the checkpoint's prompt for a kind of input.

    Args:
        inference: of the model.
        kind: a key of `PROMPTS`, or the name of a prompt of the checkpoint.
        field: the request's field that names the kind.

    Returns:
        None without a kind, or where the checkpoint has no prompt for it.

    Raises:
        Unprocessable: the kind is unknown.

    """
    prompts = inference.sentence.prompts
    if kind is None or kind in prompts:
        return kind
    if kind not in PROMPTS:
        known = ", ".join([*PROMPTS, *sorted(prompts)])
        raise Unprocessable(f"{field}: unknown; it is one of {known}")
    return next((name for name in PROMPTS[kind] if name in prompts), None)
