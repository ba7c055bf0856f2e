"""Sources of settings, their valid values, and their groups."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import ValidationError

from service.cli.terminal import WrongUseError
from service.settings import Settings
from service.settings.groups import Group, Shown
from service.settings.served import of_model
from tests.service.settings.conftest import from_command_line

EMPTY = Path(__file__).parent / "__init__.py"
"""Empty file of settings."""
VALUES: dict[str, tuple[Any, Any]] = {
    "model": (("from/flag", "and, another"), ("from/environment",)),
    "revision": ("flag", "environment"),
    "artifact": ((Path("/flag"), Path("/the other")), (Path("/environment"),)),
    "served_model_name": (("flag", "and, another"), ("environment",)),
    "alias": (("a=flag", "b=another"), ("c=environment",)),
    "pooling": ("splade", "mean"),
    "precision": ("bf16", "int8"),
    "engine": ("onnx", "fake"),
    "device": ("cpu", "cuda"),
    "device_id": (7, 8),
    "devices": ("0,1", "all"),
    "config": (EMPTY, EMPTY.parent / ".." / "settings" / EMPTY.name),
    "models": (Path("/flag"), Path("/environment")),
    "pinned": (("flag", "other"), ("environment",)),
    "on_demand": (True, False),
    "export_on_demand": ("allow", "refuse"),
    "memory_budget": (2**21, 2**22),
    "device_memory_bytes": (2**21, 2**22),
    "cuda_graphs": (False, True),
    "host": ("0.0.0.0", "::1"),
    "port": (1, 65535),
    "auto_truncate": (True, False),
    "token_ids": ("model", "cl100k"),
    "max_response_bytes": (200, 300),
    "max_bytes_in_flight": (70_000, 80_000),
    "fallback": ("fail", "torch"),
    "verify_share": (0.5, 0.25),
    "allowed_hosts": ("*", "example.org,[::1]"),
    "image_hosts": ("example.org", "*.example.org:8080,[::1]"),
    "verify_route": (True, False),
    "allow_unverified": (False, True),
    "pickle": (True, False),
    "cache_folder": (Path("/flag"), Path("/environment")),
    "hub_endpoint": ("http://flag", "http://environment"),
    "api_keys": ("flag", "environment,other"),
    "admin_keys": ("flag", "environment,other"),
    "cors_origins": ("*", "https://environment"),
    "log_format": ("text", "json"),
    "access_log": (False, True),
    "metrics_port": (9001, 9002),
    "keys_file": (Path("flag"), Path("environment")),
    "drain_delay_seconds": (0.0, 20.0),
    "otlp_endpoint": ("http://flag", "http://environment"),
    "log_level": ("debug", "error"),
    **dict.fromkeys(
        (
            *("workers", "threads", "drain_seconds", "max_length", "max_characters"),
            *("max_request_characters", "max_client_batch_size", "max_image_pixels"),
            *("max_batch_tokens", "max_queue_tokens", "max_queue_texts"),
        ),
        (7, 8),
    ),
    **dict.fromkeys(("max_body_bytes", "max_image_bytes", "max_body_bytes_in_flight"), (70, 80)),
    **dict.fromkeys(
        (
            *("request_timeout_seconds", "queue_timeout_seconds", "queue_target_seconds"),
            *("batch_timeout_seconds", "image_timeout_seconds", "client_timeout_seconds"),
        ),
        (0.5, 1.5),
    ),
}
"""Value of each setting for the command line, and one for the environment."""
NUMBERS = [name for name, (value, _) in VALUES.items() if type(value) in (int, float)]
POSITIVE = {*NUMBERS} - {"port", "device_id", "verify_share", "drain_delay_seconds"}
WORDS = {
    "engine": ("jax",),
    "device": ("tpu",),
    "precision": ("fp8",),
    "log_level": ("loud",),
    "fallback": ("onnx",),
    "api_keys": ("", "a,,b"),
    "admin_keys": ("",),
    "cors_origins": ("example.org",),
    "allowed_hosts": ("", "http://example.org", "example.org:80", "example.org,,b", "::1"),
    "image_hosts": ("", "*", "a,,b", "http://a.org", "a:0", "a:65536", "::1"),
    "devices": ("", "some", "0,", "0,0", "0;1", "-1", "0,1000", "1.0"),
    "port": ("65536",),
    "verify_share": ("1.1", "-0.1"),
    "max_image_pixels": ("89478486",),
    "max_queue_tokens": ("5",),
    "threads": ("1025",),
    "workers": ("1025",),
    "device_id": ("1024",),
    "drain_seconds": ("86401",),
    **dict.fromkeys(
        ("max_bytes_in_flight", "memory_budget", "device_memory_bytes", "max_response_bytes"),
        ("1", "100"),
    ),
    **dict.fromkeys(
        ("max_queue_texts", "max_body_bytes", "max_image_bytes", "max_body_bytes_in_flight"), ("1",)
    ),
}
BAD = [
    *((name, value) for name, values in WORDS.items() for value in values),
    *itertools.product(NUMBERS, ["inf", "-inf", "nan", "1e300", "1" * 20, "-5", "many"]),
    *itertools.product(sorted(POSITIVE), ["0"]),
    *((name, "1.5") for name in NUMBERS if isinstance(VALUES[name][0], int)),
    *((name, "1e-300") for name in NUMBERS if name.endswith("timeout_seconds")),
]


def flag(name: str, value: object) -> list[str]:
    kebab = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{kebab}" if value else f"--no-{kebab}"]
    values = value if isinstance(value, tuple) else [value]
    return [word for one in values for word in (f"--{kebab}", str(one))]


def variable(value: object) -> str:
    return str(value[0] if isinstance(value, tuple) else value)


def default(name: str) -> Any:
    return Settings.flags()[name].get_default(call_default_factory=True)


def test_every_setting_is_described_and_tried_here() -> None:
    assert VALUES.keys() == Settings.flags().keys()
    for name, field in Settings.flags().items():
        assert field.description, name
        assert field.description.endswith("."), name


@pytest.mark.parametrize("name", VALUES)
def test_the_command_line_wins_over_the_environment_over_the_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag, by_environment = VALUES[name]
    assert default(name) != by_environment != by_flag
    monkeypatch.setenv(f"HEADSCOPE_{name.upper()}", variable(by_environment))
    found = Settings()
    assert getattr(found, name) == by_environment
    assert getattr(from_command_line(*flag(name, by_flag)), name) == by_flag
    for other in VALUES.keys() - {name}:
        assert getattr(found, other) == default(other)


def test_without_a_flag_the_command_line_has_the_environments_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert from_command_line() == Settings()
    assert {name: getattr(from_command_line(), name) for name in VALUES} == {
        name: default(name) for name in VALUES
    }
    # variables of these exclude one of an artifact, or of the engine
    excluded = {"model", "revision", "pooling", "precision", "devices", "cuda_graphs"}
    others = VALUES.keys() - excluded
    for name in others:
        monkeypatch.setenv(f"HEADSCOPE_{name.upper()}", variable(VALUES[name][1]))
    found = from_command_line()
    assert {name: getattr(found, name) for name in others} == {
        name: VALUES[name][1] for name in others
    }


def test_metrics_have_a_port_of_their_own() -> None:
    with pytest.raises(WrongUseError, match="--metrics-port 9000 is --port as well"):
        from_command_line("--port", "9000", "--metrics-port", "9000")


def test_an_engine_is_not_its_own_fallback() -> None:
    with pytest.raises(WrongUseError, match=r"--engine torch, .*: leave --fallback out"):
        from_command_line("--engine", "torch", "--fallback", "torch")
    assert from_command_line("--fallback", "torch").engine == "onnx"


def test_several_devices_exclude_one(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="--device-id is for one device, and --devices for"):
        from_command_line("--devices", "0,1", "--device-id", "0")
    for flags in (["--device", "cpu"], ["--engine", "torch"]):
        with pytest.raises(WrongUseError, match="--devices is for CUDA: leave"):
            from_command_line("--devices", "all", *flags)
        with pytest.raises(WrongUseError, match="--cuda-graphs is for CUDA: leave"):
            from_command_line("--cuda-graphs", *flags)
    file = tmp_path / "headscope.toml"
    table = '[model.a]\nsource = "a/b"\n'
    for content, flags, expected in [
        (f"device-id = 1\n{table}device-id = 2\n", ["--devices", "0,1"], ("auto", None, "0,1")),
        (f'device-id = 1\n{table}devices = "2,3"\n', [], ("auto", None, "2,3")),
        (f'devices = "0,1"\n{table}device-id = 2\n', [], ("auto", 2, None)),
        (f'devices = "0,1"\n{table}device = "cpu"\n', [], ("cpu", None, None)),
    ]:
        file.write_text(content, encoding="utf-8")
        found = of_model(from_command_line("--config", str(file), *flags), "a")
        assert (found.device, found.device_id, found.devices) == expected


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_makes_no_sense_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = flag(name, value)
    with pytest.raises(WrongUseError, match=rf"^{flags[0]}\b"):
        from_command_line(*flags)
    monkeypatch.setenv(f"HEADSCOPE_{name.upper()}", value)
    with pytest.raises(WrongUseError, match=rf"^HEADSCOPE_{name.upper()}\b"):
        from_command_line()
    with pytest.raises(ValidationError, match=name):
        Settings()


def test_the_least_that_works_is_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match=r" 1 must be greater than or equal to 65536$"):
        from_command_line("--max-bytes-in-flight", "1")
    with pytest.raises(WrongUseError, match=r" inf must be less than or equal to 86400$"):
        from_command_line("--request-timeout-seconds", "inf")
    file = tmp_path / "headscope.toml"
    for key, least in (("max-queue-tokens", 6), ("device-memory-bytes", 2**20)):
        for table in ("", '[model.a]\nsource = "a/b"\n'):
            file.write_text(f"{table}{key} = {least - 1}\n", encoding="utf-8")
            with pytest.raises(WrongUseError, match=f"must be greater than or equal to {least}$"):
                from_command_line("--config", str(file))


def test_a_switch_needs_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_command_line("--allow-unverified").allow_unverified
    monkeypatch.setenv("HEADSCOPE_ALLOW_UNVERIFIED", "perhaps")
    with pytest.raises(ValidationError, match="allow_unverified"):
        Settings()


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(click.NoSuchOption, match="--max-lenght"):
        from_command_line("--max-lenght", "8")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


def test_the_hub_is_the_one_that_other_tools_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().hub_endpoint == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror")
    assert Settings().hub_endpoint == "https://mirror"
    monkeypatch.setenv("HEADSCOPE_HUB_ENDPOINT", "https://ours")
    assert Settings().hub_endpoint == "https://ours"
    assert from_command_line("--hub-endpoint", "https://flag").hub_endpoint == "https://flag"


BOTH = {"HEADSCOPE_MODEL": "by/variable", "HEADSCOPE_ARTIFACT": "/by/variable"}


@pytest.mark.parametrize("name", ["model", "artifact"])
def test_settings_are_the_same_in_another_process(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = from_command_line(*flag(name, "by/flag"))
    for variable, value in BOTH.items():
        monkeypatch.setenv(variable, value)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_has_each_setting_in_its_group() -> None:
    sections = re.split(r"^### (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    reported = {
        heading: re.findall(r"^\| `--([a-z-]+)` \|", text, re.MULTILINE)
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }
    expected: dict[str, list[str]] = {group: [] for group in Group}
    for name, field in Settings.flags().items():
        (shown,) = (item for item in field.metadata if isinstance(item, Shown))
        expected[shown.group].append(name.replace("_", "-"))
    assert reported == expected
