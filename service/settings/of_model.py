"""Settings of each model: its table in the file replaces settings of the service."""

from __future__ import annotations

import json

from model.sources.short_names import full_name
from service.settings.schema import Settings

OPTIONS = (
    *("precision", "pooling", "device", "device_id", "device_memory_bytes", "threads"),
    *("max_batch_tokens", "max_length", "max_characters", "max_queue_tokens", "max_queue_texts"),
)
"""Settings that the table of a model may have."""


def of_model(settings: Settings, name: str) -> Settings:
    """Return the settings with which a model is started, by the name that requests choose."""
    table = settings.tables.get(name)
    if table is None:
        return settings
    own: dict[str, object] = {
        option: value for option in OPTIONS if (value := getattr(table, option)) is not None
    }
    if not table.from_repository:
        own["model"] = () if table.source is None else (full_name(table.source),)
        own["artifact"] = () if table.artifact is None else (table.artifact,)
    return settings.model_copy(update=own)


def prompts_given(settings: Settings, name: str) -> str:
    """Return the prompts in the table of a model as JSON; empty without any."""
    table = settings.tables.get(name)
    if table is None or not (table.prompts or table.default_prompt is not None):
        return ""
    return json.dumps([table.prompts, table.default_prompt], sort_keys=True)
