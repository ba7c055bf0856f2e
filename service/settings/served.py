"""What a service serves: models and artifacts, several of them or one."""

from __future__ import annotations

from pathlib import Path

from model.sources.locate import DEFAULT_MODEL
from model.sources.short_names import full_name
from service.settings import Settings


def served(settings: Settings) -> tuple[str | Path, ...]:
    """Return models' full names, then artifacts' folders, each kind in the order given."""
    return (*map(full_name, settings.model), *settings.artifact) or (DEFAULT_MODEL,)


def each(settings: Settings) -> list[Settings]:
    """Return the settings of everything that is served, each for itself.

    Raises:
        ValueError: there are more or fewer names than models.

    """
    names, count = settings.served_model_name, len(served(settings))
    if names and len(names) != count:
        raise ValueError(
            f"--served-model-name is given {len(names)} times and {count} models are served: give "
            "it once for each, models before artifacts"
        )
    return [
        settings.model_copy(
            update={"model": (one,), "artifact": ()}
            if isinstance(one, str)
            else {"model": (), "artifact": (one,)}
        )
        for one in served(settings)
    ]


def checkpoint_of(settings: Settings) -> str:
    """The name of the one model that is exported.

    Raises:
        ValueError: there are several, or an artifact.

    """
    match served(settings):
        case [str(name)]:
            return name
    raise ValueError("one model at a time is exported: name one")


def artifact_of(settings: Settings) -> Path | None:
    """The folder of the one artifact that is served; None where a model is."""
    match served(settings):
        case [Path() as folder]:
            return folder
    return None
