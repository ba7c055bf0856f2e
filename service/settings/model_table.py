"""Tables of models in `headscope.toml`, which flags and variables do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from model.config.precision import Precision
from model.runtimes.contract import Device
from model.sources.pooling import PoolingSetting
from service.settings import groups

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
    device_memory_bytes: groups.ModelBytes | None = None
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
