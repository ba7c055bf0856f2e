"""The models of a service, each with its own parts, and which of them a request means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from model.artifact.manifest import Artifact
from service.errors import NoTaskHead, UnknownModel
from service.health.live_verification import LiveVerification
from service.health.readiness import ModelReadiness
from service.health.watch import Watch
from service.inference.core import Inference


@dataclass(frozen=True)
class ServedModel:
    """A model, and all that is its own."""

    name: str
    """By which requests choose it."""
    artifact: Artifact
    inference: Inference
    readiness: ModelReadiness
    live_verification: LiveVerification
    watch: Watch
    precision_note: str | None = None
    """Why another precision is likely faster on this processor."""

    @property
    def queued_tokens(self) -> dict[str, int]:
        """Tokens that wait for the model's own engine, by lane."""
        lanes = self.inference.engines.default.lanes
        return {name: lane.queued_tokens for name, lane in lanes.items()}

    @property
    def queued_texts(self) -> dict[str, int]:
        """Texts and maps that wait for the model's own engine, by lane."""
        lanes = self.inference.engines.default.lanes
        return {name: lane.queued_texts for name, lane in lanes.items()}


class Models:
    """At least one model; the first is the default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self.default = models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def several(self) -> bool:
        """Whether a request has a choice."""
        return len(self._models) > 1

    def named(self, name: str | None) -> ServedModel:
        """The model of a name, or the default; one model alone answers to every name.

        Raises:
            UnknownModel: there are several, and none of that name.

        """
        if name is None or not self.several:
            return self.default
        if name not in self._models:
            raise UnknownModel(f"there is no such model; there are: {', '.join(self._models)}")
        return self._models[name]

    def able(self, name: str | None, check: Callable[[Inference], object]) -> ServedModel:
        """The model of a name; without one the first that can answer, or else the default.

        Args:
            name: that the request has.
            check: raises `NoTaskHead` of a model that cannot answer.

        Raises:
            UnknownModel: there are several, and none of that name.

        """
        if name is None and self.several:
            for model in self:
                try:
                    check(model.inference)
                except NoTaskHead:
                    continue
                return model
        return self.named(name)


def names_of(artifacts: Sequence[Artifact]) -> list[str]:
    """The name of each: its model's; with the precision where several are of one model.

    Raises:
        ValueError: two have the same.

    """
    given = Counter(artifact.manifest.model for artifact in artifacts)
    names = [
        f"{manifest.model}:{manifest.precision}" if given[manifest.model] > 1 else manifest.model
        for manifest in (artifact.manifest for artifact in artifacts)
    ]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{name} is to be served {times} times: requests could not choose one")
    return names
