"""What stands beside the results of every reply in Cohere's form."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel, Field

from service.inference.timings import Timings

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
    warnings: list[str] | None = Field(None, description="Absent without notices.")


def new_id() -> str:
    """Of a reply."""
    return str(uuid.uuid4())


def searched(version: str, documents: int, timings: Timings) -> dict[str, Any]:
    """Return the `meta` of a ranking."""
    units = -(-documents // DOCUMENTS_PER_UNIT)
    return _meta(version, {"search_units": units}, timings)


def embedded(version: str, timings: Timings) -> dict[str, Any]:
    """Return the `meta` of embeddings."""
    return _meta(version, {"input_tokens": timings.tokens}, timings)


def _meta(version: str, units: dict[str, int], timings: Timings) -> dict[str, Any]:
    meta = {"api_version": {"version": version}, "billed_units": units}
    warnings = timings.notices.sentences()
    return meta | {"warnings": warnings} if warnings else meta
