"""Registry of families by `model_type`, and reading of a checkpoint's `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.config.files import naming, read_object
from model.errors import ConfigError
from model.families import bart, bert, jina_v3, llama, pictures, rotary_berts, t5, towers
from model.families.family import Family
from model.families.jina_v3 import JINA_V3, is_jina_v3, with_task_fields
from model.families.pictures import PROCESSED_SIZE, processed_size

Config = TypeVar("Config")
_LAYOUTS = ("embeddings", "attention", "layer")
"""Headscope's own field names, which a `config.json` cannot set."""
FAMILIES: Mapping[str, Family] = {
    name: family
    for module in (bart, bert, jina_v3, llama, pictures, rotary_berts, t5, towers)
    for name, family in module.FAMILIES.items()
}
"""Families by `model_type`."""


def read_config(folder: Path) -> EncoderConfig:
    """Return the encoder's configuration from `config.json` of a Hugging Face checkpoint folder.

    The image processor of a picture encoder decides the size of its pictures.
    """
    fields = with_task_fields(folder, read_fields(folder))
    config = parse_config(fields)
    if config.embeddings.patches is None:
        return config
    size = processed_size(folder)
    return parse_config({**fields, PROCESSED_SIZE: size}) if size else config


def read_decoder_config(folder: Path) -> DecoderConfig | None:
    """Return the configuration of the decoder beside a checkpoint's encoder; None without one."""
    return parse_decoder_config(read_fields(folder))


def read_fields(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's `config.json`."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no config.json")
    return read_object(path)


def parse_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder's configuration from the content of a `config.json`."""
    return _parsed(_family(fields).config, fields, "encoder")


def parse_decoder_config(fields: Mapping[str, Any]) -> DecoderConfig | None:
    """Return the decoder's configuration from the content of a `config.json`; None without one."""
    read = _family(fields).decoder
    return None if read is None else _parsed(read, fields, "decoder")


def _family(fields: Mapping[str, Any]) -> Family:
    kind = JINA_V3 if is_jina_v3(fields) else str(fields.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        raise ConfigError(f"config.json is not a supported encoder: {unsupported(fields)}")
    return family


def _parsed(
    read: Callable[[Mapping[str, Any]], Config], fields: Mapping[str, Any], part: str
) -> Config:
    with naming(f"config.json is not a supported {part}"):
        return read({k: v for k, v in fields.items() if k not in _LAYOUTS})


def unsupported(fields: Mapping[str, Any]) -> str:
    """Return the error message for a `config.json` with an unsupported `model_type`."""
    reason = (
        f"its model_type is {fields['model_type']!r}"
        if "model_type" in fields
        else "it names no model_type"
    )
    return f"{reason}; supported are {', '.join(sorted(FAMILIES))}"
