"""Names, versions and aliases of the loaded models."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from service.artifacts.repository import Target
from service.errors import ModelNotLoaded, UnknownModel
from service.models.served import ServedModel
from service.models.table import Models


def served(name: str, version: str = "1") -> ServedModel:
    """Return a model without parts."""
    parts: dict[str, Any] = dict.fromkeys(
        ("settings", "artifact", "inference", "readiness", "live_verification", "watch"), Mock()
    )
    return ServedModel(name=name, version=version, **parts)


def test_the_current_version_answers_to_the_name_and_each_to_its_own() -> None:
    one, two = served("a", "1"), served("a", "2")
    models = Models([one])
    models.put(two, current=False)
    assert models.named("a") is one
    assert models.named("a@2") is two
    models.put(two)
    assert models.named("a") is two
    assert models.named("a@1") is one
    assert models.versions("a") == [two, one]
    models.remove(two)
    assert models.chosen(Target("a")) == Target("a", "2")
    assert models.find(Target("a")) is None


def test_a_model_of_the_same_version_replaces_the_old_one() -> None:
    old, new = served("a"), served("a")
    models = Models([old])
    models.put(new)
    models.remove(old)
    assert models.named("a") is new
    assert list(models) == [new]


def test_an_alias_is_another_name_until_it_is_removed() -> None:
    one, two = served("a", "1"), served("a", "2")
    models = Models([one, served("b")])
    models.put(two, current=False)
    models.alias("prod", Target("a", "2"))
    assert models.named("prod") is two
    assert models.is_named(two)
    models.alias("prod", Target("a"))
    assert models.named("prod") is one
    models.alias("prod", None)
    assert not models.is_named(two)
    with pytest.raises(UnknownModel, match="there are: a, b"):
        models.named("prod")


def test_a_model_on_demand_is_not_unknown() -> None:
    models = Models([served("a")])
    models.offer(["b"])
    for name, wanted in {"b": "b", "b@3": "b@3"}.items():
        with pytest.raises(ModelNotLoaded) as raised:
            models.named(name)
        assert raised.value.model == wanted
    with pytest.raises(UnknownModel, match="there are: a, b"):
        models.named("c")
    assert models.several


def test_an_alias_of_a_model_that_was_unloaded_loads_it_again() -> None:
    models = Models([model := served("a", "3")])
    models.offer(["a"])
    models.alias("prod", Target("a", "3"))
    models.remove(model)
    assert "prod" not in models.by_name
    with pytest.raises(ModelNotLoaded) as raised:
        models.named("prod")
    assert raised.value.model == "a@3"


def test_the_default_is_the_first_model_and_may_be_loaded_on_demand() -> None:
    models = Models([])
    models.offer(["b", "c"])
    with pytest.raises(ModelNotLoaded) as raised:
        models.named(None)
    assert raised.value.model == "b"
    models = Models([one := served("a")])
    assert models.named("anything") is one
    assert not models.several
