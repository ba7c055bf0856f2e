"""Twins: fp32 artifacts that compute the heads of models in other precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact, load_artifact
from service.settings import Settings


@dataclass(frozen=True)
class Twins:
    """Names of the twins, and the models whose heads each computes."""

    names: list[str]
    """Name of each twin, in the order of the setting `heads_from`."""
    of_models: dict[str, str]
    """Names of twins by the name of their model."""


def open_twins(settings: Settings) -> list[Artifact]:
    """Open and check the artifacts of the setting `heads_from`, before the models are known.

    Raises:
        ArtifactError: an artifact cannot be loaded.
        ValueError: as for `check_twin`.

    """
    twins = [load_artifact(folder) for folder in settings.heads_from]
    for twin in twins:
        check_twin(twin, settings)
    return twins


def check_twin(twin: Artifact, settings: Settings) -> None:
    """Raise ValueError if an artifact cannot compute the heads of any model.

    Args:
        twin: artifact of the setting `heads_from`.
        settings: settings, whose `allow_unverified` makes every twin superfluous.

    Raises:
        ValueError: it is not fp32, its own heads failed, or every model serves its own heads.

    """
    flag, heads = _flag(twin), twin.manifest.verification.heads
    if settings.allow_unverified:
        raise ValueError(
            f"{flag}: every model serves its own heads with --allow-unverified: leave one of the "
            "two out"
        )
    if twin.manifest.precision != "fp32" or not heads.passed:
        raise ValueError(
            f"{flag}: the artifact is {twin.manifest.precision} and its heads "
            f"{'passed' if heads.passed else 'failed'} their verification: give an fp32 export "
            "whose heads passed"
        )


def twins_of(
    models: Mapping[str, Artifact], sources: Sequence[Artifact], settings: Settings
) -> Twins:
    """Match artifacts to the models whose heads failed their verification.

    Args:
        models: served artifacts by name.
        sources: artifacts of the setting `heads_from`.
        settings: settings, whose `allow_unverified` makes every twin superfluous.

    Returns:
        Twins, each named after the first model whose heads it computes, as `NAME:fp32`.

    Raises:
        ValueError: as for `check_twin`; or no served model needs the artifact, or the twin's name
            is a model's.

    """
    twins = Twins([], {})
    for source in sources:
        check_twin(source, settings)
        flag = _flag(source)
        same = [name for name, model in models.items() if _of_one_checkpoint(model, source)]
        if not same:
            raise ValueError(
                f"{flag}: {source.manifest.model} of these weights is not served; export in fp32 "
                f"the checkpoint of a model that is: {', '.join(models)}"
            )
        free = [name for name in same if name not in twins.of_models]
        needing = [name for name in free if not models[name].manifest.verification.heads.passed]
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
        (
            manifest.weights_sha256,
            manifest.config,
            manifest.decoder,
            manifest.sentence,
            manifest.task,
        )
        for manifest in (one.manifest, other.manifest)
    ]
    return same[0] == same[1] and _tokenizers(one) == _tokenizers(other)


def _tokenizers(artifact: Artifact) -> dict[str, str]:
    files = artifact.manifest.files
    names = (TOKENIZER, TARGET_TOKENIZER)
    return {name: files[name].sha256 for name in names if name in files}


def _flag(twin: Artifact) -> str:
    return f"--heads-from {twin.folder}"
