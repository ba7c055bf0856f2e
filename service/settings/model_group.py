"""Settings of models and artifacts, and tables of models in `headscope.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_settings import BaseSettings

from model.config.precision import Precision
from model.runtimes.contract import Device
from model.sources.home import EXPORTS, check_home, expanded
from model.sources.locate import DEFAULT_MODEL
from model.sources.overlay import PoolingSetting
from service.settings import groups
from service.settings.groups import Group, ModelBytes, Shown, validate_aliases
from service.settings.sources import PRECISION_OF_ARTIFACT, listed
from service.system import hub


def _default_cache() -> Path:
    return expanded("~/.cache/headscope")


class ModelSettings(BaseSettings):
    """Settings of models and artifacts, and of exports."""

    model: Annotated[
        tuple[str, ...],
        BeforeValidator(listed),
        Shown(Group.MODEL, "NAME", f"{DEFAULT_MODEL}, unless an artifact is given"),
    ] = Field(
        default_factory=tuple,
        description="Checkpoint to serve: a hub name, name@revision, or a folder; exported on "
        "first use; repeat the flag to serve several.",
    )
    revision: Annotated[str | None, Shown(Group.MODEL, "REVISION", "the hub's main")] = Field(
        None, description="Branch, tag or commit of the model's repository on the hub."
    )
    artifact: Annotated[
        tuple[Path, ...], BeforeValidator(listed), Shown(Group.MODEL, "FOLDER", "none")
    ] = Field(
        default_factory=tuple,
        description="Exported artifact folder to serve, in place of or beside models; repeat the "
        "flag to serve several.",
    )
    served_model_name: Annotated[
        tuple[str, ...], BeforeValidator(listed), Shown(Group.MODEL, "NAME", "the model's own")
    ] = Field(
        default_factory=tuple,
        description="Name of the model in requests, replies, lists, headers and metrics; with "
        "several models, repeat the flag for each, models before artifacts.",
    )
    alias: Annotated[
        tuple[str, ...],
        BeforeValidator(listed),
        AfterValidator(validate_aliases),
        Shown(Group.MODEL, "ALIAS=NAME", "none"),
    ] = Field(
        default_factory=tuple,
        description="Alias that requests may use for a model, such as "
        "text-embedding-3-small=NAME; repeat the flag for several.",
    )
    models: Annotated[Path | None, Shown(Group.MODEL, "FOLDER", "none")] = Field(
        None,
        description="Model repository: a folder of artifacts and checkpoints by name, with "
        "versions as subfolders. Each is loaded by its first request.",
    )
    pinned: Annotated[
        tuple[str, ...], BeforeValidator(listed), Shown(Group.MODEL, "NAME[@VERSION]", "none")
    ] = Field(
        default_factory=tuple,
        description="Model of the repository to load at the start and to keep; repeat the flag for "
        "several.",
    )
    on_demand: Annotated[bool, Shown(Group.MODEL)] = Field(
        True,
        description="Load a model of the repository by its first request; otherwise only the "
        "pinned ones, and those that an admin loads.",
    )
    export_on_demand: Annotated[Literal["auto", "allow", "refuse"], Shown(Group.MODEL)] = Field(
        "auto",
        description="Whether a request for a checkpoint without an export starts one; `auto`: "
        "where no API keys are in use. Admins always may.",
    )
    memory_budget: Annotated[ModelBytes | None, Shown(Group.MODEL, "BYTES", "no limit")] = Field(
        None,
        description="Maximum memory of all loaded models of a worker. The least recently used "
        "model that is not pinned makes room for another.",
    )
    precision: Annotated[Precision, Shown(Group.MODEL)] = Field(
        "fp32", description="Precision of a model's export; an artifact has its own."
    )
    pooling: Annotated[
        PoolingSetting | None, Shown(Group.MODEL, default="the checkpoint's own")
    ] = Field(
        None,
        description="Pooling of text vectors, in place of the checkpoint's; `splade` gives sparse "
        "vectors of a masked language model, `yes-no` scores of pairs by Qwen3-Reranker.",
    )
    pickle: Annotated[bool, Shown(Group.MODEL)] = Field(
        True,
        description="Read `pytorch_model.bin` where there are no safetensors; only tensors are "
        "read from it, and no code.",
    )
    allow_unverified: Annotated[bool, Shown(Group.MODEL)] = Field(
        False, description="Serve an artifact whose verification failed."
    )
    cache_folder: Annotated[
        Path, AfterValidator(expanded), Shown(Group.MODEL, "FOLDER", "~/.cache/headscope")
    ] = Field(default_factory=_default_cache, description="Folder of cached exports.")
    hub_endpoint: Annotated[
        str, Shown(Group.MODEL, "URL", "HF_ENDPOINT, or else https://huggingface.co")
    ] = Field(
        default_factory=hub.default_endpoint, description="Hub on which model names are looked up."
    )

    def cache(self, part: str) -> Path:
        """Return a folder of the cache of exports."""
        check_home(self.cache_folder, EXPORTS)
        return self.cache_folder / part

    @model_validator(mode="after")
    def _options_of_exports_are_of_a_model(self) -> Self:
        if self.revision is not None and self.artifact:
            raise ValueError("--revision is for a model, and --artifact has none: leave one out")
        if self.revision is not None and len(self.model) > 1:
            raise ValueError("--revision is for one --model: give each of several as NAME@REVISION")
        if self.pooling is not None and (self.artifact or len(self.model) > 1):
            raise ValueError(
                "--pooling or HEADSCOPE_POOLING is for the export of one model: leave it out, and "
                "give artifacts of models that `headscope export --pooling` made"
            )
        if self.precision != "fp32" and self.artifact:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return self


Load = Literal["pinned", "on-demand", "off"]
PromptText = Annotated[str, StringConstraints(max_length=2048)]
MAX_PROMPTS = 32


class ModelTable(BaseModel):
    """Table `[model.NAME]`: a model, and its settings in place of the service's."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: str | None = Field(None, min_length=1)
    """Checkpoint, as of the setting `model`."""
    artifact: Annotated[Path, Field(strict=False)] | None = None
    """Folder of an exported artifact. Without `artifact` and `source`, the model comes from the
    folder of the setting `models`."""
    version: str | None = Field(None, pattern=r"^[1-9][0-9]{0,8}$")
    """Version in the folder of `models`; the newest by default."""
    load: Load = "pinned"
    """`pinned`: loaded at the start and kept; `on-demand`: loaded by its first request; `off`:
    loaded by an admin only."""
    precision: Precision | None = None
    pooling: PoolingSetting | None = None
    device: Device | None = None
    device_id: groups.DeviceIndex | None = None
    devices: Annotated[str | None, AfterValidator(groups.validate_devices)] = None
    device_memory_bytes: groups.ModelBytes | None = None
    cuda_graphs: bool | None = None
    threads: groups.Processes | None = None
    max_batch_tokens: groups.Count | None = None
    max_length: groups.Count | None = None
    max_characters: groups.Count | None = None
    max_queue_tokens: groups.QueueTokens | None = None
    max_queue_texts: groups.QueueTexts | None = None
    prompts: dict[str, PromptText] = Field({}, max_length=MAX_PROMPTS)
    """Prompts by name, which add to the checkpoint's prompts or replace them."""
    default_prompt: str | None = None
    """Name of the prompt of requests that name none; empty for no prompt."""

    @property
    def from_repository(self) -> bool:
        """Whether the model is one of the folder of the setting `models`."""
        return self.source is None and self.artifact is None
