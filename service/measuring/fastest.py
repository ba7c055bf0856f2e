"""Export of a model at the fastest precision on this machine, into the cache or a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from model.artifact.cache import cache_key
from model.artifact.manifest import Artifact
from model.config.precision import Precision
from model.errors import ArtifactError
from model.sources.home import EXPORTS, make_cache
from model.sources.locate import display_name
from service.artifacts.export_memory import check_memory
from service.artifacts.opening import (
    Progress,
    check_verified,
    export_once,
    find_checkpoint,
    find_foreign,
    require_exporter,
)
from service.measuring.selection import choose, measure
from service.settings import Settings
from service.settings.served import checkpoint_of
from service.system.distribution import is_installed, version
from service.system.machine import may_have_gpu, processor_name


class Choice(BaseModel):
    """Earlier choice on this machine, as stored in the cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Precision
    ratio: float
    """Rate relative to fp32."""


def open_fastest(
    settings: Settings, progress: Progress, pairs: Path | None = None, *, again: bool = False
) -> Artifact:
    """Open the fastest export of the model in the cache, measured once on each machine.

    The other candidates stay in the cache.

    Args:
        settings: settings with precision "auto".
        progress: function called with a line at each step.
        pairs: CSV file of scored pairs for each candidate, optional.
        again: whether to measure again despite an earlier choice.

    Raises:
        ModelError: as `service.artifacts.opening.open_artifact` raises it.
        ValueError: the model is a foreign graph, the exporter is not installed, or the file of
            pairs is invalid.

    """
    find_foreign(settings, progress, "auto")
    require_exporter(checkpoint_of(settings))
    checkpoint = find_checkpoint(settings, progress)
    place = _place_of_choice(settings, checkpoint)
    if place.is_file() and not again:
        known = _read(place)
        progress(
            f"{known.precision} was the fastest when this was measured here, {known.ratio:.2f} "
            f"times fp32 (to measure again, delete {place})"
        )
        return check_verified(
            export_once(settings, checkpoint, known.precision, progress), settings
        )

    def export(precision: Precision, base: Artifact | None) -> Artifact:
        return export_once(settings, checkpoint, precision, _named(precision, progress), base)

    chosen = choose(measure(settings, export, progress, pairs), progress)
    progress("the other candidates stay in the cache")
    choice = Choice(precision=chosen.precision, ratio=chosen.rate.ratio)
    make_cache(place.parent, EXPORTS)
    scratch = place.with_suffix(f".{os.getpid()}.part")
    scratch.write_text(choice.model_dump_json() + "\n", encoding="utf-8")
    scratch.replace(place)
    return check_verified(chosen.artifact, settings)


def export_fastest(
    settings: Settings, out: Path, progress: Progress, pairs: Path | None = None
) -> Artifact:
    """Export the model at the fastest precision to `out`, and remove the other candidates.

    Args:
        settings: settings of the model, and of the device for verification and measurement.
        out: folder that does not exist yet, or is empty.
        progress: function called with a line at each step.
        pairs: CSV file of scored pairs for each candidate, optional.

    Raises:
        ModelError: the checkpoint is not usable, or `out` exists.
        ValueError: the exporter is not installed, or the file of pairs is invalid.

    """
    from model.export import exporter, placement  # noqa: PLC0415 - the exporter imports torch

    require_exporter(checkpoint_of(settings))
    placement.check_free(out)
    checkpoint = find_checkpoint(settings, progress)
    name = display_name(checkpoint_of(settings))
    check_memory(checkpoint, name)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:

        def export(precision: Precision, base: Artifact | None) -> Artifact:
            folder, report = Path(scratch) / precision, _named(precision, progress)
            if base is not None:
                return exporter.derive(base, folder, precision, report, settings.device).artifact
            return exporter.export(
                checkpoint, folder, name, precision, report, settings.device
            ).artifact

        chosen = choose(measure(settings, export, progress, pairs), progress)
        return placement.move(chosen.artifact, out)


def _named(precision: Precision, progress: Progress) -> Progress:
    return lambda step: progress(f"{precision}: {step}")


def _place_of_choice(settings: Settings, checkpoint: Path) -> Path:
    """Return the cache file of the choice for a checkpoint on this kind of machine."""
    machine = (
        processor_name(),
        len(os.sched_getaffinity(0)),
        settings.threads,
        settings.device if may_have_gpu() else "cpu",
        is_installed("openvino"),
        version(),
    )
    key = cache_key(checkpoint, display_name(checkpoint_of(settings)), "auto")
    name = hashlib.sha256(f"{key}{machine}".encode()).hexdigest()[:32]
    return settings.cache("choices") / f"{name}.json"


def _read(place: Path) -> Choice:
    try:
        return Choice.model_validate_json(place.read_bytes())
    except ValidationError:
        raise ArtifactError(f"{place} is damaged; delete it to measure again") from None
