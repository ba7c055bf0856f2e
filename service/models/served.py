"""Models of a service, each with its own parts, and the choice of a request's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from model.artifact.manifest import Artifact
from service.errors import NoTaskHead, UnknownModel
from service.health.live_verification import LiveVerification
from service.health.readiness import ModelReadiness
from service.health.watch import Watch
from service.inference.core import Inference
from service.inference.fingerprint import FINGERPRINT_HEADER, fingerprint_of
from service.system import resources


@dataclass(frozen=True)
class ServedModel:
    """A model with its own parts."""

    name: str
    """Name by which requests choose the model."""
    artifact: Artifact
    inference: Inference
    readiness: ModelReadiness
    live_verification: LiveVerification
    watch: Watch
    precision_note: str | None = None
    """Note that another precision is likely faster on this processor, with the reason."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model and the engine that computes it now."""
        return self.fingerprint_header()[1].decode()

    def fingerprint_header(self, engine: str | None = None) -> tuple[bytes, bytes]:
        """Return the fingerprint header of an engine's replies, as the server sends it.

        Args:
            engine: name of the engine; the current one if None.

        """
        engines = self.inference.engines
        return self._fingerprint_headers[
            (engine or engines.stand_in or engines.name) != engines.name
        ]

    @cached_property
    def _fingerprint_headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """Headers of the model's own engine and of its stand-in."""
        provider, name = self.inference.engines.default.engine.provider, FINGERPRINT_HEADER.encode()
        own = fingerprint_of(self.artifact, provider)
        other = fingerprint_of(self.artifact, provider, stand_in=True)
        return (name, own.encode()), (name, other.encode())

    @property
    def queued_tokens(self) -> dict[str, int]:
        """Tokens in the queue of the model's own engine, by lane."""
        lanes = self.inference.engines.default.lanes
        return {name: lane.queued_tokens for name, lane in lanes.items()}

    @property
    def queued_texts(self) -> dict[str, int]:
        """Texts and maps in the queue of the model's own engine, by lane."""
        lanes = self.inference.engines.default.lanes
        return {name: lane.queued_texts for name, lane in lanes.items()}


class Models:
    """Served models and the fp32 twins of some of them; the first model is the default."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        aliases: Mapping[str, str] | None = None,
        twins: Mapping[str, str] | None = None,
    ) -> None:
        """Initialise with the served models.

        Args:
            models: at least one model, then the twins.
            aliases: names of models by alias; see `aliases_of`.
            twins: names of twins by the name of their model; see `service.models.twins`.

        """
        self._models = {model.name: model for model in models}
        served = {alias: self._models[name] for alias, name in (aliases or {}).items()}
        self.by_name = self._models | served
        """Models by their names and aliases."""
        self._twins = {name: self._models[twin] for name, twin in (twins or {}).items()}
        self.default = models[0]
        own = self._models.keys() - {twin.name for twin in self._twins.values()}
        self.several = len(own) > 1
        """Whether requests can choose among models; twins, chosen by the service, do not count."""
        self.several_answer = len(self._models) > 1
        """Whether a reply has to name the model or twin that computed it."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def release_memory(self) -> None:
        """Return memory that engines and the allocator keep, and is free now, to the system."""
        for model in self:
            model.inference.engines.default.engine.release_memory()
        resources.release_memory()

    def twin_of(self, model: ServedModel) -> ServedModel | None:
        """Return the fp32 twin that computes a model's heads; None if it has no twin."""
        return self._twins.get(model.name)

    def named(self, name: str | None) -> ServedModel:
        """Return the model of a name, or the default; a single model has every name.

        Raises:
            UnknownModel: there are several models, and none has the name.

        """
        if name is None:
            return self.default
        if model := self.by_name.get(name):
            return model
        if self.several:
            raise UnknownModel(f"there is no such model; there are: {', '.join(self.by_name)}")
        return self.default

    def supporting(self, name: str | None, check: Callable[[Inference], object]) -> ServedModel:
        """Return the model of a name; without a name the first that passes a check, or the default.

        Args:
            name: the request's name of the model.
            check: raises `NoTaskHead` if a model does not support the request.

        Raises:
            UnknownModel: there are several models, and none has the name.

        """
        if name is None and self.several:
            for model in self:
                try:
                    check(model.inference)
                except NoTaskHead:
                    continue
                return model
        return self.named(name)
