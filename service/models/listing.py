"""State of every model and version that a service has or can load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from service.artifacts.repository import Source, Target
from service.models.control import ModelControl
from service.models.served import ServedModel

State = Literal["serving", "loaded", "loading", "draining", "available", "failed"]


@dataclass(frozen=True)
class VersionState:
    """State of a version of a model."""

    name: str
    version: str
    state: State
    """`serving` is the version of requests for the bare name, `loaded` answers to NAME@VERSION,
    `draining` finishes its last requests, `available` can be loaded."""
    reason: str | None = None
    """Reason of the last failed load."""
    fingerprint: str | None = None
    """Fingerprint of a loaded version."""
    requests: int = 0
    """Number of requests that a loaded version answers now."""
    memory_bytes: int | None = None
    """Memory of a loaded version: measured, or predicted for a model of the start."""
    pinned: bool = False
    """Whether the version is never unloaded to make room."""


def versions(control: ModelControl, sources: Sequence[Source]) -> list[VersionState]:
    """Return the state of all versions, sorted as the repository sorts them."""
    models = control.models
    keys = [(source.name, source.version) for source in sources]
    loaded = {(model.name, model.version): model for model in models}
    states = []
    for name, version in dict.fromkeys([*keys, *loaded]):
        target = Target(name, version)
        if model := loaded.get((name, version)):
            current = models.find(Target(name)) is model
            states.append(_loaded(control, model, "serving" if current else "loaded"))
        elif target in control.loads:
            states.append(VersionState(name, version, "loading"))
        else:
            reason = control.failure(target)
            state: State = "failed" if reason else "available"
            states.append(VersionState(name, version, state, reason or None))
    return states + [_loaded(control, model, "draining") for model in control.loader.draining]


def of_name(states: Iterable[VersionState], name: str) -> list[VersionState]:
    """Return the states of the versions of a model."""
    return [state for state in states if state.name == name]


def _loaded(control: ModelControl, model: ServedModel, state: State) -> VersionState:
    return VersionState(
        model.name,
        model.version,
        state,
        fingerprint=model.fingerprint,
        requests=model.uses.count,
        memory_bytes=control.loader.budget.of(model.artifact, model.settings),
        pinned=model.name in control.setup.pinned,
    )
