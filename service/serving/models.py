"""The models of a service, each with its own parts, and which of them a request means."""

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
from service.serving.names import unique_names


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
    def fingerprint(self) -> str:
        """Fingerprint of the model and what computes it now."""
        return self.fingerprint_header()[1].decode()

    def fingerprint_header(self, engine: str | None = None) -> tuple[bytes, bytes]:
        """Return the header of a reply that an engine computes, as the server sends it.

        Args:
            engine: name of the engine; the one that computes now when None.

        """
        engines = self.inference.engines
        return self._fingerprint_headers[
            (engine or engines.stand_in or engines.name) != engines.name
        ]

    @cached_property
    def _fingerprint_headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """The header of the model's own engine, and of its stand-in."""
        provider, name = self.inference.engines.default.engine.provider, FINGERPRINT_HEADER.encode()
        own = fingerprint_of(self.artifact, provider)
        other = fingerprint_of(self.artifact, provider, stand_in=True)
        return (name, own.encode()), (name, other.encode())

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
    """At least one model, and the fp32 twins of some; the first model is the default."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        aliases: Mapping[str, str] | None = None,
        twins: Mapping[str, str] | None = None,
    ) -> None:
        """Serve some models.

        Args:
            models: at least one, then the twins.
            aliases: further names, each with the name of a model; see `aliases_of`.
            twins: names of models, each with the name of its twin; see `service.serving.twins`.

        """
        self._models = {model.name: model for model in models}
        served = {alias: self._models[name] for alias, name in (aliases or {}).items()}
        self.by_name = self._models | served
        """Models by every name that a request may use: their own, then aliases."""
        self._twins = {name: self._models[twin] for name, twin in (twins or {}).items()}
        self.default = models[0]
        own = self._models.keys() - {twin.name for twin in self._twins.values()}
        self.several = len(own) > 1
        """Whether a request has a choice; a twin is none, as the service chooses it."""
        self.several_answer = len(self._models) > 1
        """Whether a reply has to say which model or twin it comes from."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def twin_of(self, model: ServedModel) -> ServedModel | None:
        """Return the fp32 twin that answers for a model's heads; None where there is none."""
        return self._twins.get(model.name)

    def named(self, name: str | None) -> ServedModel:
        """The model of a name, or the default; one model alone answers to every name.

        Raises:
            UnknownModel: there are several, and none of that name.

        """
        if name is None:
            return self.default
        if found := self.by_name.get(name):
            return found
        if self.several:
            raise UnknownModel(f"there is no such model; there are: {', '.join(self.by_name)}")
        return self.default

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


def names_of(artifacts: Sequence[Artifact], given: Sequence[str] = ()) -> list[str]:
    """Return the name of each artifact: its model's, with the precision where that is not unique.

    Args:
        artifacts: what is served.
        given: names in place of those, one an artifact; none when empty.

    Raises:
        ValueError: two have the same name, or one does not print.

    """
    manifests = [artifact.manifest for artifact in artifacts]
    return unique_names([(each.model, each.precision) for each in manifests], given)


def aliases_of(aliases: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the model's name of each alias.

    Args:
        aliases: each an alias and a name, as `ALIAS=NAME`.
        names: of the models.

    Raises:
        ValueError: an alias is given twice or is a model's name, or its model is not served.

    """
    found: dict[str, str] = {}
    for given in aliases:
        alias, _, name = given.partition("=")
        if name not in names:
            raise ValueError(f"--alias {given}: {name} is not served; there are {', '.join(names)}")
        if alias in names:
            raise ValueError(f"--alias {given}: {alias} is the name of a model that is served")
        if found.setdefault(alias, name) != name:
            raise ValueError(f"--alias {given}: {alias} is an alias of {found[alias]} already")
    return found
