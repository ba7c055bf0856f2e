"""Names of served models, by which requests choose them: unique and printable."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from model.artifact.manifest import MANIFEST, Artifact, Manifest
from model.sources.locate import display_name
from service.artifacts.repository import Target
from service.models.setup import pinned_targets
from service.settings import Settings
from service.settings.served import given_names, served
from service.system.logs import printable


def unique_names(models: Sequence[tuple[str, str]], given: Sequence[str] = ()) -> list[str]:
    """Return the name of each model, with its precision if the model's name is not unique.

    Args:
        models: name and precision of each model.
        given: names to use instead, one per model; or empty.

    Raises:
        ValueError: two models have the same name, or a name is not printable.

    """
    times = Counter(model for model, _ in models)
    names = list(given) or [
        f"{model}:{precision}" if times[model] > 1 else model for model, precision in models
    ]
    for name, count in Counter(names).items():
        if not name.isprintable():
            raise ValueError(
                f"the model's name {printable(name)!r} has characters that do not print, which "
                "paths, headers and logs cannot hold: give another with --served-model-name"
            )
        if count > 1:
            raise ValueError(
                f"{name} is to be served {count} times: requests could not choose one; give each "
                "a name of its own with --served-model-name"
            )
    return names


def check_names(settings: Settings) -> None:
    """Check the names of all models to serve before any is exported.

    Raises:
        ValueError: as for `unique_names`.

    """
    unique_names(list(_named(settings)), given_names(settings))


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield name and precision of each model; skip an artifact that cannot be read."""
    for source in served(settings):
        if isinstance(source, Path):
            with contextlib.suppress(OSError, ValidationError):
                manifest = Manifest.model_validate_json((source / MANIFEST).read_bytes())
                yield manifest.model, manifest.precision
        else:
            yield display_name(source), settings.precision


def names_of(artifacts: Sequence[Artifact], given: Sequence[str] = ()) -> list[str]:
    """Return the name of each artifact: its model's name, with the precision if not unique.

    Args:
        artifacts: the served artifacts.
        given: names to use instead, one per artifact; or empty.

    Raises:
        ValueError: two artifacts have the same name, or a name is not printable.

    """
    manifests = [artifact.manifest for artifact in artifacts]
    return unique_names([(manifest.model, manifest.precision) for manifest in manifests], given)


def aliases_of(settings: Settings, names: Iterable[str]) -> dict[str, Target]:
    """Return the target of each alias.

    Args:
        settings: settings with the aliases, as `ALIAS=NAME`, and with the pinned models.
        names: names of the other models.

    Raises:
        ValueError: an alias is given twice, is a model's name, or its model is not served.

    """
    known = {name: Target(name) for name in names}
    for target in pinned_targets(settings):
        known |= {target.name: Target(target.name), str(target): target}
    targets: dict[str, Target] = {}
    for given in settings.alias:
        alias, _, name = given.partition("=")
        if name not in known:
            raise ValueError(f"--alias {given}: {name} is not served; there are {', '.join(known)}")
        if alias in known:
            raise ValueError(f"--alias {given}: {alias} is the name of a model that is served")
        if (other := targets.setdefault(alias, known[name])) != known[name]:
            raise ValueError(f"--alias {given}: {alias} is an alias of {other} already")
    return targets
