"""Every setting of the service, from the command line and the environment.

A flag of the command line wins over a `HEADSCOPE_*` variable, which wins over the default. Models
and artifacts are one choice: a flag of either wins over the variables of both
(see `service.environment`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from model.artifact.manifest import Precision
from model.runtimes.contract import Device
from service import hub
from service.environment import PRECISION_OF_ARTIFACT, Variables, listed

_KEY = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"\*|https?://[^/?#\s]+")
_HOST = re.compile(r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def _default_cache() -> Path:
    return Path.home() / ".cache" / "headscope"


def worker_environment(metrics_folder: Path) -> dict[str, str]:
    """The environment of a worker: ours, and where prometheus_client shares its values."""
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics_folder)}


class Settings(BaseSettings):
    """What an operator can choose."""

    model_config = SettingsConfigDict(
        env_prefix="HEADSCOPE_",
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_prog_name="headscope serve",
    )

    model: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        default_factory=tuple,
        description="A checkpoint to serve: a hub name, name@revision, a folder, or ONNX file; "
        "several flags are served together.",
    )
    revision: str | None = Field(
        None, description="A branch, tag or commit of the model's repository on the hub."
    )
    artifact: Annotated[tuple[Path, ...], BeforeValidator(listed)] = Field(
        default_factory=tuple,
        description="An exported artifact folder to serve, instead of a model or beside some; "
        "several flags are served together.",
    )
    precision: Precision | Literal["auto"] = Field(
        "fp32", description="Of a model's export; `auto` measures which is the fastest here."
    )
    engine: Literal["onnx", "torch", "fake"] = Field(
        "onnx", description="What computes; `fake` answers from a hash, for load tests."
    )
    device: Device = Field(
        "auto", description="`auto` takes CUDA where there is a device; `cuda` insists on it."
    )
    device_id: int = Field(0, ge=0, description="Which of several CUDA devices.")
    device_memory_bytes: int | None = Field(
        None,
        gt=0,
        description="The most that each of the three graphs may take on a CUDA device; "
        "no limit by default.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(
        1, gt=0, description="Processes that serve the port, each with its own engine."
    )
    max_length: int | None = Field(
        None, gt=0, description="Most tokens of one input; the checkpoint's own limit by default."
    )
    max_characters: int | None = Field(
        None,
        gt=0,
        description="Most characters of one input, whatever `truncate` says; "
        "64 times the most tokens by default.",
    )
    max_request_characters: int | None = Field(
        None,
        gt=0,
        description="Most characters of all inputs of one request; 16 for each token that it may "
        "have by default.",
    )
    max_client_batch_size: int = Field(512, gt=0, description="Most inputs of one request.")
    auto_truncate: bool = Field(
        True,
        description="Cut texts that are too long where a request in text-embeddings-inference's "
        "form leaves `truncate` open; that is its own default, other dialects have theirs.",
    )
    max_body_bytes: int = Field(16 * 2**20, gt=0, description="Most bytes of a request's body.")
    max_body_bytes_in_flight: int = Field(
        256 * 2**20,
        gt=0,
        description="Most bytes that bodies hold in memory together; beyond it, 429.",
    )
    max_response_bytes: int = Field(
        128 * 2**20, gt=0, description="Most bytes of a reply, predicted before it is computed."
    )
    max_bytes_in_flight: int = Field(
        512 * 2**20,
        gt=0,
        description="Most bytes that replies hold in memory together; beyond it, 429.",
    )
    max_batch_tokens: int | None = Field(
        None,
        gt=0,
        description="Most tokens of a batch, a longer input goes alone; what suits the device by "
        "default: 512 on a CPU, 16384 on CUDA.",
    )
    max_queue_tokens: int = Field(
        262144,
        gt=0,
        description="Most tokens waiting in a lane; beyond it, 429. A request takes at most half "
        "of what is free.",
    )
    max_queue_texts: int = Field(
        16384,
        gt=0,
        description="Most texts waiting in a lane; beyond it, 429. A request takes at most half of "
        "what is free.",
    )
    client_timeout_seconds: float = Field(
        20.0,
        gt=0,
        description="How long a client may take to send a request, or to take a mebibyte of its "
        "reply.",
    )
    threads: int | None = Field(
        None,
        gt=0,
        description="Batches that a worker computes at once; its share of the cores by default.",
    )
    request_timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="How long a request may take until its reply begins; the header "
        "`x-request-timeout-ms` asks for less.",
    )
    queue_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="How long a request may wait for its first batch; one that is predicted to "
        "wait longer is refused at once, 429.",
    )
    queue_target_seconds: float = Field(
        0.5,
        gt=0,
        description="Longer waits are for bursts alone: once all requests wait longer, for a tenth "
        "of a second, only those are admitted that wait at most twice as long.",
    )
    batch_timeout_seconds: float = Field(
        60.0,
        gt=0,
        description="How long a batch may compute; an engine that takes longer hangs, and has "
        "failed.",
    )
    fallback: Literal["fail", "torch"] = Field(
        "fail",
        description="When the service's own engine has failed for good: `fail` ends the process, "
        "`torch` serves by PyTorch, says so, and tries to recover.",
    )
    verify_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Which share of the batches PyTorch computes again, to compare.",
    )
    drain_seconds: int = Field(
        30, gt=0, description="How long running requests may take once the service is told to stop."
    )
    api_keys: str | None = Field(
        None,
        repr=False,
        description="Keys, separated by commas, one of which every request must have; better "
        "given by the environment than by a flag.",
    )
    cors_origins: str | None = Field(
        None,
        description="Origins, separated by commas, whose pages may use the service; or `*`.",
    )
    allowed_hosts: str | None = Field(
        None,
        description="Hosts, separated by commas, that requests may be for; or `*`. By default this "
        "machine's own names where the service listens on a loopback address, and any elsewhere.",
    )
    verify_route: bool = Field(
        True, description="Serve `POST /verify`, which computes every text twice."
    )
    allow_unverified: bool = Field(
        False, description="Serve an artifact whose verification failed."
    )
    cache_folder: Path = Field(
        default_factory=_default_cache, description="Where exports and downloads are kept."
    )
    hub_endpoint: str = Field(
        default_factory=hub.default_endpoint, description="The hub that names are looked up at."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is logged."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="How it is logged: lines of text, or of one JSON object each."
    )
    access_log: bool = Field(False, description="Log a line a request, at level info.")
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/]",
        description="Base URL of an OpenTelemetry collector, which gets traces by OTLP over HTTP.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """pydantic-settings' order of sources, with the variables read by `Variables`."""
        del env_settings
        return init_settings, Variables(settings_cls), dotenv_settings, file_secret_settings

    @model_validator(mode="after")
    def _revision_is_of_a_model(self) -> Self:
        if self.revision is not None and self.artifact:
            raise ValueError("a revision is of a model, and an artifact is served")
        if self.revision is not None and len(self.model) > 1:
            raise ValueError("a revision is of one model: of several, name each as name@revision")
        return self

    @model_validator(mode="after")
    def _precision_is_of_an_export(self) -> Self:
        if self.precision != "fp32" and self.artifact:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return self

    @field_validator("api_keys")
    @classmethod
    def _keys_can_be_sent(cls, keys: str | None) -> str | None:
        for key in [] if keys is None else keys.split(","):
            if not _KEY.fullmatch(key.strip()):
                raise ValueError("a key is empty, or not of printable ASCII without spaces")
        return keys

    @field_validator("cors_origins")
    @classmethod
    def _origins_can_be_met(cls, origins: str | None) -> str | None:
        for origin in [] if origins is None else origins.split(","):
            if not _ORIGIN.fullmatch(origin.strip()):
                raise ValueError("an origin is `*`, or a scheme and a host: https://example.org")
        return origins

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_can_be_met(cls, hosts: str | None) -> str | None:
        for host in [] if hosts is None else hosts.split(","):
            if not _HOST.fullmatch(host.strip()):
                raise ValueError("a host is `*`, or a name or an address without a port: [::1]")
        return hosts
