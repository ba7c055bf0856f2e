"""All outputs of `POST /encode`, in the order of replies."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.manifest import Manifest
from service.inference.outputs.output import Output
from service.inference.outputs.spans import SpansOutput
from service.inference.outputs.task_head import MultivectorOutput, SparseOutput
from service.inference.outputs.vectors import PooledOutput, TokensOutput, WindowsOutput

OUTPUTS: Mapping[str, type[Output]] = {
    kind.name: kind
    for kind in (
        TokensOutput,
        PooledOutput,
        SpansOutput,
        SparseOutput,
        MultivectorOutput,
        WindowsOutput,
    )
}
NAMED = tuple(name for name, kind in OUTPUTS.items() if not kind.implied)
"""Names that the field `outputs` of a request takes."""


def names_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the outputs that a model has."""
    return tuple(name for name in NAMED if OUTPUTS[name].offered(manifest))
