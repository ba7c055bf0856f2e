"""Every setting of the service, from the command line and the environment.

A flag of the command line wins over a `HEADSCOPE_*` variable, which wins over the default. Models
and artifacts are one choice: a flag of either wins over the variables of both
(see `service.settings.environment`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from model.runtimes.contract import Device
from service.settings.client_values import (
    hosts_to_meet,
    keys_to_send,
    origins_to_meet,
)
from service.settings.environment import Variables
from service.settings.groups import Group, Shown
from service.settings.model_group import ModelSettings


def worker_environment(metrics_folder: Path) -> dict[str, str]:
    """The environment of a worker: ours, and where prometheus_client shares its values."""
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics_folder)}


class Settings(ModelSettings):
    """What an operator can choose."""

    model_config = SettingsConfigDict(
        env_prefix="HEADSCOPE_",
        frozen=True,
        extra="forbid",
    )

    engine: Annotated[Literal["onnx", "torch", "fake"], Shown(Group.DEVICE)] = Field(
        "onnx", description="What computes; `fake` answers from a hash, for load tests."
    )
    device: Annotated[Device, Shown(Group.DEVICE)] = Field(
        "auto", description="`auto` takes CUDA where there is a device; `cuda` insists on it."
    )
    device_id: Annotated[int, Shown(Group.DEVICE, "INDEX")] = Field(
        0, ge=0, description="Which of several CUDA devices."
    )
    device_memory_bytes: Annotated[int | None, Shown(Group.DEVICE, "BYTES", "no limit")] = Field(
        None,
        gt=0,
        description="The most that each of the three graphs may take on a CUDA device.",
    )
    threads: Annotated[int | None, Shown(Group.DEVICE, "COUNT", "its share of the cores")] = Field(
        None, gt=0, description="Batches that a worker computes at once."
    )
    max_batch_tokens: Annotated[
        int | None, Shown(Group.DEVICE, "TOKENS", "512 on a CPU, 16384 on CUDA")
    ] = Field(None, gt=0, description="Most tokens of a batch; a longer input goes alone.")
    host: Annotated[str, Shown(Group.NETWORK, "ADDRESS")] = Field(
        "127.0.0.1", description="Address to listen on."
    )
    port: Annotated[int, Shown(Group.NETWORK, "PORT")] = Field(
        8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    metrics_port: Annotated[int | None, Shown(Group.NETWORK, "PORT", "none")] = Field(
        None,
        gt=0,
        le=65535,
        description="A further port at the same address for /metrics and the health routes alone, "
        "which need no key there.",
    )
    workers: Annotated[int, Shown(Group.NETWORK, "COUNT")] = Field(
        1, gt=0, description="Processes that serve the port, each with its own engine."
    )
    api_keys: Annotated[
        str | None, AfterValidator(keys_to_send), Shown(Group.SECURITY, "KEYS", "none")
    ] = Field(
        None,
        repr=False,
        description="Keys, separated by commas, one of which every request must have; better "
        "given by the environment than by a flag.",
    )
    keys_file: Annotated[Path | None, Shown(Group.SECURITY, "FILE", "none")] = Field(
        None,
        description="A file of further keys, a line `name:key` each; the name stands in the access "
        "log. It is read again when it changes.",
    )
    cors_origins: Annotated[
        str | None, AfterValidator(origins_to_meet), Shown(Group.SECURITY, "ORIGINS", "none")
    ] = Field(
        None,
        description="Origins, separated by commas, whose pages may use the service; or `*`.",
    )
    allowed_hosts: Annotated[
        str | None,
        AfterValidator(hosts_to_meet),
        Shown(
            Group.SECURITY,
            "HOSTS",
            "this machine's own names where the service listens on a loopback address, any "
            "elsewhere",
        ),
    ] = Field(None, description="Hosts, separated by commas, that requests may be for; or `*`.")
    verify_route: Annotated[bool, Shown(Group.SECURITY)] = Field(
        True, description="Serve `POST /verify`, which computes every text twice."
    )
    max_length: Annotated[int | None, Shown(Group.LIMITS, "TOKENS", "the checkpoint's own")] = (
        Field(None, gt=0, description="Most tokens of one input.")
    )
    max_characters: Annotated[
        int | None, Shown(Group.LIMITS, "CHARACTERS", "64 times the most tokens")
    ] = Field(None, gt=0, description="Most characters of one input that is not cut.")
    max_request_characters: Annotated[
        int | None, Shown(Group.LIMITS, "CHARACTERS", "4 for each token that it may have")
    ] = Field(None, gt=0, description="Most characters of a request's inputs that are not cut.")
    max_client_batch_size: Annotated[int, Shown(Group.LIMITS, "INPUTS")] = Field(
        512, gt=0, description="Most inputs of one request."
    )
    auto_truncate: Annotated[bool, Shown(Group.LIMITS)] = Field(
        True,
        description="Cut texts that are too long where a request in text-embeddings-inference's "
        "form leaves `truncate` open; that is its own default, other dialects have theirs.",
    )
    token_ids: Annotated[Literal["refuse", "model", "cl100k"], Shown(Group.LIMITS)] = Field(
        "refuse",
        description="Token ids on `POST /v1/embeddings`: `refuse` them, take them as the `model`'s "
        "own, or decode those of OpenAI's vocabulary `cl100k`_base (the extra `tiktoken`).",
    )
    max_body_bytes: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        16 * 2**20, gt=0, description="Most bytes of a request's body."
    )
    max_body_bytes_in_flight: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        256 * 2**20,
        gt=0,
        description="Most bytes that bodies hold in memory together; beyond it, 429.",
    )
    max_response_bytes: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        128 * 2**20, gt=0, description="Most bytes of a reply, predicted before it is computed."
    )
    max_bytes_in_flight: Annotated[int, Shown(Group.LIMITS, "BYTES")] = Field(
        512 * 2**20,
        gt=0,
        description="Most bytes that requests and replies hold in memory together; beyond it, 429.",
    )
    max_queue_tokens: Annotated[int, Shown(Group.LIMITS, "TOKENS")] = Field(
        2**20,
        gt=0,
        description="Most tokens waiting in a lane; beyond it, 429. A request takes at most half "
        "of what is free.",
    )
    max_queue_texts: Annotated[int, Shown(Group.LIMITS, "TEXTS")] = Field(
        16384,
        gt=0,
        description="Most texts waiting in a lane; beyond it, 429. A request takes at most half of "
        "what is free.",
    )
    request_timeout_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        30.0,
        gt=0,
        description="How long a request may take until its reply begins; the header "
        "`x-request-timeout-ms` asks for less.",
    )
    queue_timeout_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        10.0,
        gt=0,
        description="How long a request may wait for its first batch; one that is predicted to "
        "wait longer is refused at once, 429.",
    )
    queue_target_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        0.5,
        gt=0,
        description="Longer waits are for bursts alone: once all requests wait longer, for a tenth "
        "of a second, only those are admitted that wait at most twice as long.",
    )
    batch_timeout_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        60.0,
        gt=0,
        description="How long a batch may compute; an engine that takes longer hangs, and has "
        "failed.",
    )
    client_timeout_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        20.0,
        gt=0,
        description="How long a client may take to send a request, or to take a mebibyte of its "
        "reply.",
    )
    drain_delay_seconds: Annotated[float, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        1.0,
        ge=0,
        description="How long requests are still taken once the service is told to stop, and "
        "readiness fails: until balancers have seen that.",
    )
    drain_seconds: Annotated[int, Shown(Group.TIME_LIMITS, "SECONDS")] = Field(
        30, gt=0, description="How long running requests may take once the service is told to stop."
    )
    fallback: Annotated[Literal["fail", "torch"], Shown(Group.HEALTH)] = Field(
        "fail",
        description="When the service's own engine has failed for good: `fail` ends the process, "
        "`torch` serves by PyTorch, says so, and tries to recover.",
    )
    verify_share: Annotated[float, Shown(Group.HEALTH, "SHARE")] = Field(
        0.0,
        ge=0,
        le=1,
        description="Which share of the batches PyTorch computes again, to compare; from 0 to 1.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Shown(Group.LOGS)] = Field(
        "info", description="What is logged."
    )
    log_format: Annotated[Literal["text", "json"], Shown(Group.LOGS)] = Field(
        "text", description="How it is logged: lines of text, or of one JSON object each."
    )
    access_log: Annotated[bool, Shown(Group.LOGS)] = Field(
        False, description="Log a line a request, at level info."
    )
    otlp_endpoint: Annotated[str | None, Shown(Group.LOGS, "URL", "none")] = Field(
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
    def _ports_differ(self) -> Self:
        if self.metrics_port == self.port:
            raise ValueError(f"--metrics-port {self.port} is --port as well: give another")
        return self

    @model_validator(mode="after")
    def _fallback_differs(self) -> Self:
        if self.engine == self.fallback:
            raise ValueError(
                "--fallback torch has no effect with --engine torch, which is the engine that it "
                "would replace: leave --fallback out"
            )
        return self
