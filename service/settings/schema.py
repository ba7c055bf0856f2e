"""All settings of the service, from the command line and the environment.

A command-line flag takes precedence over a `HEADSCOPE_*` variable, which takes precedence over the
default. A flag of a model or an artifact takes precedence over the variables of both
(see `service.settings.sources`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from model.runtimes.contract import Device
from service.settings import groups
from service.settings.groups import (
    Group,
    Shown,
    validate_api_keys,
    validate_hosts,
    validate_image_hosts,
    validate_origins,
)
from service.settings.model_group import ModelSettings, ModelTable
from service.settings.sources import HIDDEN, ConfigFile, Content, Variables, read


def worker_environment(metrics_folder: Path) -> dict[str, str]:
    """Return a worker's environment: this process's, and prometheus_client's shared folder."""
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics_folder)}


def export_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of an export in a process of its own, with the service's settings."""
    own = {name: value for name, value in os.environ.items() if name != "HEADSCOPE_CONFIG"}
    return {
        **own,
        "HEADSCOPE_CACHE_FOLDER": str(settings.cache_folder),
        "HEADSCOPE_HUB_ENDPOINT": settings.hub_endpoint,
        "HEADSCOPE_PICKLE": str(settings.pickle),
        "HEADSCOPE_ALLOW_UNVERIFIED": str(settings.allow_unverified),
    }


def file_of(flags: Mapping[str, object]) -> Content | None:
    """Return the content of the file of settings; None without one."""
    path = flags.get("config") or os.environ.get("HEADSCOPE_CONFIG")
    return None if path is None else read(Path(str(path)), Settings)


def overriding_names(flags: Mapping[str, object]) -> set[str]:
    """Return the names of the settings that have a flag or a variable."""
    variables = {name for name in Settings.flags() if f"HEADSCOPE_{name.upper()}" in os.environ}
    return {*flags, *variables}


class Settings(ModelSettings):
    """Settings of an operator."""

    model_config = SettingsConfigDict(
        env_prefix="HEADSCOPE_",
        frozen=True,
        extra="forbid",
    )

    tables: dict[str, ModelTable] = Field({})
    """Tables of the file's models by name, in the order of the file; the first is the default."""
    cached: bool = False
    """Whether models are opened from the caches alone, without fetching or exporting them."""
    config: Annotated[Path | None, Shown(Group.MODEL, "FILE", "none")] = Field(
        None,
        description="TOML file of settings; flags and environment variables take precedence.",
    )
    engine: Annotated[Literal["onnx", "torch", "fake"], Shown(Group.DEVICE)] = Field(
        "onnx", description="Engine; `fake` answers from a hash, for load tests."
    )
    device: Annotated[Device, Shown(Group.DEVICE)] = Field(
        "auto", description="`auto` uses CUDA if there is a device; `cuda` requires it."
    )
    device_id: Annotated[groups.DeviceIndex | None, Shown(Group.DEVICE, "INDEX", "0")] = Field(
        None, description="Index of the CUDA device."
    )
    devices: Annotated[
        str | None, AfterValidator(groups.validate_devices), Shown(Group.DEVICE, "INDICES", "one")
    ] = Field(
        None,
        description="Indices of CUDA devices, separated by commas, or `all`; each has a replica of "
        "the model, in a process of its own.",
    )
    device_memory_bytes: Annotated[
        groups.ModelBytes | None, Shown(Group.DEVICE, "BYTES", "no limit")
    ] = Field(
        None,
        description="Maximum memory of each of the three graphs on a CUDA device; a batch that "
        "needs more fails.",
    )
    cuda_graphs: Annotated[bool, Shown(Group.DEVICE)] = Field(
        False,
        description="Compute small batches of vectors by CUDA graphs; requires CUDA, and an fp16 "
        "export of a model of texts with `vectors.onnx`.",
    )
    threads: Annotated[
        groups.Processes | None, Shown(Group.DEVICE, "COUNT", "its share of the cores")
    ] = Field(None, description="Batches that a worker computes at once.")
    max_batch_tokens: Annotated[
        groups.Count | None, Shown(Group.DEVICE, "TOKENS", "512 on a CPU, 16384 on CUDA")
    ] = Field(None, description="Maximum tokens of a batch; a longer input is its own batch.")
    host: Annotated[str, Shown(Group.NETWORK, "ADDRESS")] = Field(
        "127.0.0.1", description="Address to listen on."
    )
    port: Annotated[int, Shown(Group.NETWORK, "PORT")] = Field(
        8000, ge=0, le=65535, description="Port to listen on; 0 chooses a free port."
    )
    metrics_port: Annotated[int | None, Shown(Group.NETWORK, "PORT", "none")] = Field(
        None,
        gt=0,
        le=65535,
        description="Additional port for only /metrics and the health routes, without an API key.",
    )
    workers: Annotated[groups.Processes, Shown(Group.NETWORK, "COUNT")] = Field(
        1, description="Processes that serve the port, each with its own engine."
    )
    api_keys: Annotated[
        str | None, AfterValidator(validate_api_keys), Shown(Group.SECURITY, "KEYS", "none")
    ] = Field(
        None,
        repr=False,
        description="API keys, separated by commas; every request needs one. Prefer the "
        "environment variable to the flag.",
    )
    admin_keys: Annotated[
        str | None, AfterValidator(validate_api_keys), Shown(Group.SECURITY, "KEYS", "none")
    ] = Field(
        None,
        repr=False,
        description="API keys, separated by commas, with which models are loaded, swapped and "
        "unloaded; without one, that is off. Prefer the environment variable to the flag.",
    )
    keys_file: Annotated[Path | None, Shown(Group.SECURITY, "FILE", "none")] = Field(
        None,
        description="File of further API keys, one `name:key` on each line; the access log shows "
        "the name. The file is reloaded when it changes.",
    )
    cors_origins: Annotated[
        str | None, AfterValidator(validate_origins), Shown(Group.SECURITY, "ORIGINS", "none")
    ] = Field(
        None,
        description="Origins, separated by commas, whose pages may use the service; or `*`.",
    )
    allowed_hosts: Annotated[
        str | None,
        AfterValidator(validate_hosts),
        Shown(
            Group.SECURITY,
            "HOSTS",
            "this machine's own names where the service listens on a loopback address, any "
            "elsewhere",
        ),
    ] = Field(
        None,
        description="Accepted hosts of requests, separated by commas; or `*`. `localhost`, "
        "`127.0.0.1` and `[::1]` are always allowed.",
    )
    image_hosts: Annotated[
        str | None, AfterValidator(validate_image_hosts), Shown(Group.SECURITY, "HOSTS", "none")
    ] = Field(
        None,
        description="Hosts of pictures of requests, separated by commas: names, "
        "`*.example.org`, addresses, possibly with ports. Addresses that are not public must be "
        "listed themselves.",
    )
    verify_route: Annotated[bool, Shown(Group.SECURITY)] = Field(
        True, description="Serve `POST /verify`, which computes each text twice."
    )
    max_length: Annotated[
        groups.Count | None, Shown(Group.LIMITS, "TOKENS", "the checkpoint's own")
    ] = Field(
        None,
        description="Maximum tokens of an input, up to the checkpoint's position table.",
    )
    max_characters: Annotated[
        groups.Count | None, Shown(Group.LIMITS, "CHARACTERS", "64 times the most tokens")
    ] = Field(None, description="Maximum characters of an input without truncation.")
    max_request_characters: Annotated[
        groups.Count | None, Shown(Group.LIMITS, "CHARACTERS", "4 for each token that it may have")
    ] = Field(None, description="Maximum characters of all inputs without truncation.")
    max_client_batch_size: Annotated[groups.Count, Shown(Group.LIMITS, "INPUTS")] = Field(
        512, description="Maximum inputs of a request."
    )
    auto_truncate: Annotated[bool, Shown(Group.LIMITS)] = Field(
        True,
        description="Truncate long texts if a request of the text-embeddings-inference dialect "
        "does not set `truncate`; other dialects have their own defaults.",
    )
    token_ids: Annotated[Literal["refuse", "model", "cl100k"], Shown(Group.LIMITS)] = Field(
        "refuse",
        description="Token ids on `POST /v1/embeddings`: `refuse` them, use them as the `model`'s "
        "own, or decode them by OpenAI's vocabulary `cl100k`_base (the extra `tiktoken`).",
    )
    max_body_bytes: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        16 * 2**20, ge=16, le=groups.MOST, description="Maximum bytes of a request's body."
    )
    max_body_bytes_in_flight: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        256 * 2**20,
        ge=16,
        le=groups.MOST,
        description="Maximum bytes of all request bodies in memory; beyond it, 429.",
    )
    max_image_bytes: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        16 * 2**20, ge=64, le=groups.MOST, description="Maximum bytes of a picture's file."
    )
    max_image_pixels: Annotated[int, Shown(Group.LIMITS, "PIXELS")] = Field(
        2**26,
        gt=0,
        le=2**30 // 12,
        description="Maximum width × height of a picture, checked before it is decoded.",
    )
    max_response_bytes: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        128 * 2**20,
        ge=128,
        le=groups.MOST,
        description="Maximum bytes of a reply, predicted before it is computed.",
    )
    max_bytes_in_flight: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        512 * 2**20,
        ge=2**16,
        le=groups.MOST,
        description="Maximum bytes of all requests with their texts, states and replies in "
        "memory; beyond it, 429. One that needs more by itself is a 413.",
    )
    max_queue_tokens: Annotated[groups.QueueTokens, Shown(Group.LIMITS, "TOKENS")] = Field(
        2**20,
        description="Maximum tokens waiting in a lane, or being tokenised for it; beyond it, "
        "429. A request may take at most half of what is free.",
    )
    max_queue_texts: Annotated[groups.QueueTexts, Shown(Group.LIMITS, "TEXTS")] = Field(
        16384,
        description="Maximum texts waiting in a lane; beyond it, 429. A request may take at most "
        "half of the free capacity.",
    )
    request_timeout_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        30.0,
        description="Maximum time until a reply begins; the header `x-request-timeout-ms` can "
        "lower it.",
    )
    queue_timeout_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        10.0,
        description="Maximum wait of a request for its first batch; requests that are predicted "
        "to wait longer are rejected at once, 429.",
    )
    queue_target_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        0.5,
        description="Target wait: once all requests have waited longer for a tenth of a "
        "second, only requests with at most twice this wait are admitted.",
    )
    batch_timeout_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        60.0,
        description="Maximum computing time of a batch; an engine that takes longer counts as "
        "hung and failed.",
    )
    client_timeout_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        20.0,
        description="Maximum time for a client to send a request, or to receive a mebibyte of the "
        "reply.",
    )
    image_timeout_seconds: Annotated[groups.Seconds, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        5.0, description="Maximum time to fetch a picture, within the request's own time."
    )
    drain_delay_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        1.0,
        ge=0,
        le=groups.DAY_SECONDS,
        description="Time for which requests are still accepted after a signal to stop, while "
        "readiness fails, so that balancers notice.",
    )
    drain_seconds: Annotated[int, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        30,
        gt=0,
        le=groups.DAY_SECONDS,
        description="Maximum time for running requests after a signal to stop.",
    )
    fallback: Annotated[Literal["fail", "torch"], Shown(Group.HEALTH)] = Field(
        "fail",
        description="Policy once the engine has failed permanently: `fail` ends the process, "
        "`torch` serves by PyTorch, reports that, and tries to recover.",
    )
    verify_share: Annotated[float, Shown(Group.HEALTH, "SHARE")] = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of batches that PyTorch computes again for comparison, 0 … 1.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Shown(Group.LOGS)] = Field(
        "info", description="Minimum level of log messages."
    )
    log_format: Annotated[Literal["text", "json"], Shown(Group.LOGS)] = Field(
        "text", description="Format of log lines: text, or JSON objects."
    )
    access_log: Annotated[bool, Shown(Group.LOGS)] = Field(
        False, description="Log a line for each request, at level info."
    )
    otlp_endpoint: Annotated[str | None, Shown(Group.LOGS, "URL", "none")] = Field(
        None,
        pattern=r"^https?://[^/]",
        description="Base URL of an OpenTelemetry collector, for traces by OTLP over HTTP.",
    )

    @classmethod
    def flags(cls) -> dict[str, FieldInfo]:
        """Return the settings that have a flag and a variable."""
        return {name: field for name, field in cls.model_fields.items() if name not in HIDDEN}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return pydantic-settings' order of sources: arguments, `Variables`, then `ConfigFile`."""
        del env_settings
        variables, file = Variables(settings_cls), ConfigFile(settings_cls)
        return init_settings, variables, file, dotenv_settings, file_secret_settings

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.metrics_port == self.port:
            raise ValueError(f"--metrics-port {self.port} is --port as well: give another")
        if self.engine == self.fallback:
            raise ValueError(
                "--fallback torch has no effect with --engine torch, which is the engine that it "
                "would replace: leave --fallback out"
            )
        if self.devices is not None:
            if self.device_id is not None:
                raise ValueError(
                    "--device-id is for one device, and --devices for several: leave one out"
                )
            if self.device == "cpu" or self.engine != "onnx":
                raise ValueError("--devices is for CUDA: leave --device cpu and --engine out")
        if self.cuda_graphs and (self.device == "cpu" or self.engine != "onnx"):
            raise ValueError("--cuda-graphs is for CUDA: leave --device cpu and --engine out")
        return self
