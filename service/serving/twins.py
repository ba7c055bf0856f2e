"""Twins: fp32 artifacts that answer for the heads of models in other precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from service.settings import Settings


@dataclass(frozen=True)
class Twins:
    """Names of the twins, and the models that each answers for."""

    names: list[str]
    """A name for each twin, in the order of the setting."""
    of_models: dict[str, str]
    """Names of models, each with the name of its twin."""


def twins_of(
    models: Mapping[str, Artifact], sources: Sequence[Artifact], settings: Settings
) -> Twins:
    """Match artifacts to the models whose heads failed their verification.

    Args:
        models: served artifacts by name.
        sources: artifacts of the setting `heads_from`.
        settings: say whether what failed is served all the same.

    Returns:
        Twins, each named after the first model that it answers for, as `NAME:fp32`.

    Raises:
        ValueError: an artifact is not fp32, its own heads failed, no served model needs it, or
            its name is a model's.

    """
    twins = Twins([], {})
    for source in sources:
        flag, manifest = f"--heads-from {source.folder}", source.manifest
        if manifest.precision != "fp32" or not manifest.verification.heads.passed:
            raise ValueError(
                f"{flag}: the artifact is {manifest.precision} and its heads "
                f"{'passed' if manifest.verification.heads.passed else 'failed'} their "
                "verification: give an fp32 export whose heads passed"
            )
        same = [name for name, model in models.items() if _of_one_checkpoint(model, source)]
        if not same:
            raise ValueError(
                f"{flag}: {manifest.model} of these weights is not served; export in fp32 the "
                f"checkpoint of a model that is: {', '.join(models)}"
            )
        needing = [name for name in same if _needs_twin(models[name], settings)]
        needing = [name for name in needing if name not in twins.of_models]
        if not needing:
            raise ValueError(
                f"{flag}: {', '.join(same)} needs no other artifact for its heads: leave it out"
            )
        name = f"{needing[0].removesuffix(f':{models[needing[0]].manifest.precision}')}:fp32"
        if name in models:
            raise ValueError(f"{flag}: {name} is a served model, which has heads: name that model")
        twins.names.append(name)
        twins.of_models.update(dict.fromkeys(needing, name))
    return twins


def _of_one_checkpoint(one: Artifact, other: Artifact) -> bool:
    same = [
        (each.weights_sha256, each.config, each.decoder, each.sentence, each.task)
        for each in (one.manifest, other.manifest)
    ]
    return same[0] == same[1] and _tokenizers(one) == _tokenizers(other)


def _tokenizers(artifact: Artifact) -> dict[str, str]:
    files = artifact.manifest.files
    names = (TOKENIZER, TARGET_TOKENIZER)
    return {name: files[name].sha256 for name in names if name in files}


def _needs_twin(model: Artifact, settings: Settings) -> bool:
    return not (settings.allow_unverified or model.manifest.verification.heads.passed)
