"""Environment variables that are read, and variables that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.service.settings.conftest import from_command_line


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        (
            "HEADSCOPE_API_KEY",
            "HEADSCOPE_API_KEY is not a setting: did you mean HEADSCOPE_API_KEYS?",
        ),
        ("headscope_max_lenght", "MAX_LENGHT is not a setting: did you mean HEADSCOPE_MAX_LENGTH?"),
        ("HEADSCOPE_", "HEADSCOPE_ is not a setting"),
        ("HEADSCOPE_XYZZY", "HEADSCOPE_XYZZY is not a setting"),
        ("HEADSCOPE_HEADSCOPE_PORT", "HEADSCOPE_HEADSCOPE_PORT is not a setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(
    variable: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "c4n4ry")
    for read in (Settings, from_command_line):
        with pytest.raises(ValueError, match=re.escape(says)) as refused:
            read()
        assert "c4n4ry" not in str(refused.value)
    if says.endswith("not a setting"):
        assert "did you mean" not in str(refused.value)


def test_all_that_are_none_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROT", "HOTS"):
        monkeypatch.setenv(f"HEADSCOPE_{name}", "1")
    with pytest.raises(ValueError, match=r"HOTS is .*_HOST\?; HEADSCOPE_PROT is .*_PORT"):
        Settings()


def test_variables_of_others_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADSCOPE", "HEADSCOPES_KEY", "MY_HEADSCOPE_KEY", "OTEL_SERVICE_NAME"):
        monkeypatch.setenv(name, "1")
    assert Settings() == from_command_line()


def test_the_variables_of_a_service_of_kubernetes_are_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables are Kubernetes' documented ones of a service `headscope` at port 8000."""
    address = "tcp://10.0.0.11:8000"
    for name, value in {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_HTTP": "8000",
        "PORT": address,
        "PORT_8000_TCP": address,
        "PORT_8000_TCP_PROTO": "tcp",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_ADDR": "10.0.0.11",
    }.items():
        monkeypatch.setenv(f"HEADSCOPE_{name}", value)
    with pytest.raises(ValueError, match="enableServiceLinks") as refused:
        Settings()
    assert str(refused.value).startswith(
        "HEADSCOPE_PORT_8000_TCP is set by Kubernetes for a service"
    )
    assert str(refused.value).count("HEADSCOPE_") == 1


BOTH = {"HEADSCOPE_MODEL": "by/variable", "HEADSCOPE_ARTIFACT": "/by/variable"}


@pytest.mark.parametrize("variables", [*([name] for name in BOTH), list(BOTH)])
def test_a_flag_of_model_or_artifact_wins_over_both_variables(
    variables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in variables:
        monkeypatch.setenv(name, BOTH[name])
    by_model = from_command_line("--model", "by/flag")
    assert (by_model.model, by_model.artifact) == (("by/flag",), ())
    by_artifact = from_command_line("--artifact", "/by/flag")
    assert (by_artifact.model, by_artifact.artifact) == ((), (Path("/by/flag"),))
    assert Settings(model="by/argument").artifact == ()


def test_several_flags_are_served_together() -> None:
    found = from_command_line("--model", "a,b", "--artifact=c d", "--model=[e]", "--model", "null")
    assert (found.model, found.artifact) == (("a,b", "[e]", "null"), (Path("c d"),))


@pytest.mark.parametrize(
    ("value", "models"),
    [
        ("a", ("a",)),
        ("a,b", ("a,b",)),
        ('["a", "b,c"]', ("a", "b,c")),
        ("[a", ("[a",)),
        ("7", ("7",)),
    ],
)
def test_a_variable_is_one_name_or_a_json_list(
    value: str, models: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_MODEL", value)
    assert from_command_line().model == Settings().model == models


def test_variables_of_both_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container sets one variable; setting the other as well is ambiguous."""
    for name, value in BOTH.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="HEADSCOPE_MODEL and HEADSCOPE_ARTIFACT are both given"):
        from_command_line()


def test_a_variable_of_a_revision_is_of_the_variables_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADSCOPE_REVISION", "v1")
    assert Settings().revision == "v1"
    assert from_command_line("--model", "by/flag").revision is None
    assert from_command_line("--artifact", "/by/flag").revision is None
    assert from_command_line("--model", "by/flag", "--revision", "v2").revision == "v2"
    assert from_command_line("--revision", "v2").revision == "v2"


def test_a_revision_is_of_one_model() -> None:
    with pytest.raises(ValueError, match="give each of several as NAME@REVISION"):
        from_command_line("--model", "a", "--model", "b", "--revision", "v1")


def test_an_artifact_has_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "--revision is for a model, and --artifact has none"
    with pytest.raises(ValueError, match=message):
        from_command_line("--artifact", "a", "--revision", "b")
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", "/by/variable")
    with pytest.raises(ValueError, match=message):
        from_command_line("--revision", "b")


PRECISION = "a precision is for a model's export, and an artifact has its own"


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_an_artifact_has_its_own_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A precision is refused even if it is the default."""
    with pytest.raises(ValueError, match=PRECISION):
        from_command_line("--artifact", "a", "--precision", precision)
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", "/by/variable")
    with pytest.raises(ValueError, match=PRECISION):
        from_command_line("--precision", precision)
    monkeypatch.setenv("HEADSCOPE_PRECISION", precision)
    with pytest.raises(ValueError, match=PRECISION):
        Settings()


def test_an_argument_of_a_precision_is_of_no_artifact() -> None:
    with pytest.raises(ValueError, match=PRECISION):
        Settings(artifact=Path("a"), precision="bf16")


def test_a_variable_of_a_precision_is_for_any_model_and_no_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADSCOPE_PRECISION", "int8")
    assert from_command_line("--model", "by/flag").precision == "int8"
    assert from_command_line("--artifact", "/by/flag").precision == "fp32"
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", "/by/variable")
    assert from_command_line("--model", "by/flag").precision == "int8"


@pytest.mark.parametrize("served", [{"artifact": "/a"}, {"model": ["a", "b"]}])
def test_a_pooling_is_of_the_export_of_one_model(served: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--pooling or HEADSCOPE_POOLING is for the exp"):
        Settings(**served, pooling="mean")


def test_a_flag_of_the_model_leaves_the_variable_of_the_pooling_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADSCOPE_POOLING", "splade")
    assert Settings().pooling == "splade"
    assert Settings(model="a").pooling is None
    assert Settings(model="a", pooling="mean").pooling == "mean"
