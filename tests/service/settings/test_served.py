"""Models that a service serves, their tables, and values that clients meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from model.sources.locate import DEFAULT_MODEL
from service.cli.options import choices
from service.settings import Settings
from service.settings.groups import (
    validate_aliases,
    validate_api_keys,
    validate_hosts,
    validate_origins,
)
from service.settings.model_group import ModelTable
from service.settings.served import OPTIONS, artifact_of, checkpoint_of, each, served


def test_models_come_before_artifacts_in_the_order_given() -> None:
    settings = Settings(model=["o/b", "o/a"], artifact=["/y", "/x"], threads=7)
    assert served(settings) == ("o/b", "o/a", Path("/y"), Path("/x"))
    alone = each(settings)
    assert [served(one) for one in alone] == [("o/b",), ("o/a",), (Path("/y"),), (Path("/x"),)]
    assert {one.threads for one in alone} == {7}
    assert [artifact_of(one) for one in alone] == [None, None, Path("/y"), Path("/x")]


def test_the_default_model_is_served_where_nothing_is_named() -> None:
    assert served(Settings()) == (DEFAULT_MODEL,)
    (alone,) = each(Settings(revision="v1"))
    assert (checkpoint_of(alone), alone.revision) == (DEFAULT_MODEL, "v1")


def test_a_short_name_is_sentence_transformers_own() -> None:
    assert checkpoint_of(Settings(model="all-MiniLM-L6-v2")) == DEFAULT_MODEL


def test_names_are_given_once_for_each_model() -> None:
    assert len(each(Settings(model=["a", "b"], served_model_name=["x", "y"]))) == 2
    with pytest.raises(ValueError, match="--served-model-name is given 1 times and 2 models"):
        each(Settings(model="a", artifact="/b", served_model_name="x"))


@pytest.mark.parametrize("given", [{"model": ["a", "b"]}, {"artifact": "a"}])
def test_one_model_at_a_time_is_exported(given: dict[str, object]) -> None:
    assert checkpoint_of(Settings(model="o/a")) == "o/a"
    with pytest.raises(ValueError, match="one model at a time"):
        checkpoint_of(Settings(**given))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_takes_what_the_setting_takes(name: str) -> None:
    ours, theirs = ModelTable.model_fields[name], Settings.model_fields[name]
    assert choices(ours) == choices(theirs)
    if not choices(theirs):
        kind = {"devices": str, "cuda_graphs": bool}.get(name, int)
        assert kind in get_args(ours.annotation) or kind in get_args(get_args(ours.annotation)[0])
    wrong: Any
    for wrong in ("x", -1, 1 if name == "cuda_graphs" else True, 1.5):
        with pytest.raises(ValidationError):
            ModelTable(**{name: wrong})


@pytest.mark.parametrize(
    "table",
    [
        {"prompts": {"query": "x" * 2049}},
        {"prompts": {str(number): "" for number in range(33)}},
        {"version": "0"},
        {"source": ""},
        {"load": "ondemand"},
        {"port": 1},
    ],
)
def test_what_a_table_cannot_have(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelTable(**table)


Check = Callable[[str | None], str | None]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (validate_api_keys, "s3cret, other!"),
        (validate_origins, "*"),
        (validate_origins, "https://example.org, http://localhost:3000"),
        (validate_hosts, "example.org, [::1], *"),
        *((check, None) for check in (validate_api_keys, validate_origins, validate_hosts)),
    ],
)
def test_what_clients_can_meet_stays_as_it_is(check: Check, value: str | None) -> None:
    assert check(value) is value


@pytest.mark.parametrize(
    ("check", "value", "says"),
    [
        (validate_api_keys, "s3cret,,", "a key is empty"),
        (validate_api_keys, "", "a key is empty"),
        (validate_api_keys, "two words", "printable ASCII without spaces"),
        (validate_api_keys, "schlüssel", "printable ASCII"),
        (validate_origins, "example.org", "an origin is"),
        (validate_origins, "https://example.org/path", "a scheme and a host"),
        (validate_hosts, "example.org:8000", "without a port"),
        (validate_hosts, "a,", "a host is"),
    ],
)
def test_others_are_refused(check: Check, value: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        check(value)
    assert "schlüssel" not in str(refused.value)


@pytest.mark.parametrize("alias", ["a", "=a", "a=", ""])
def test_an_alias_without_a_name_on_either_side_is_refused(alias: str) -> None:
    assert validate_aliases(("a=b", "c=d/e=f")) == ("a=b", "c=d/e=f")
    with pytest.raises(ValueError, match="is not of the form ALIAS=NAME"):
        validate_aliases(("a=b", alias))
