"""What stands beside the results of every reply in Cohere's form."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel

DOCUMENTS_PER_UNIT = 100
"""Of a query's documents that Cohere counts as one unit of search."""


class ApiVersion(BaseModel):
    """The version of the interface."""

    version: str


class BilledUnits(BaseModel):
    """What Cohere would count."""

    input_tokens: int | None = None
    search_units: int | None = None


class Meta(BaseModel):
    """Version and cost of a reply."""

    api_version: ApiVersion
    billed_units: BilledUnits


def new_id() -> str:
    """Of a reply."""
    return str(uuid.uuid4())


def searched(version: str, documents: int) -> dict[str, Any]:
    """The `meta` of a ranking."""
    units = -(-documents // DOCUMENTS_PER_UNIT)
    return {"api_version": {"version": version}, "billed_units": {"search_units": units}}


def embedded(version: str, tokens: int) -> dict[str, Any]:
    """The `meta` of embeddings."""
    return {"api_version": {"version": version}, "billed_units": {"input_tokens": tokens}}
