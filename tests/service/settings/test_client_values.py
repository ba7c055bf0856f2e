"""Lists of keys, origins and hosts: values that a client can send, and impossible ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.settings.groups import (
    aliases_to_meet,
    hosts_to_meet,
    keys_to_send,
    origins_to_meet,
)

Check = Callable[[str | None], str | None]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (keys_to_send, "s3cret, other!"),
        (origins_to_meet, "*"),
        (origins_to_meet, "https://example.org, http://localhost:3000"),
        (hosts_to_meet, "example.org, [::1], *"),
        *((check, None) for check in (keys_to_send, origins_to_meet, hosts_to_meet)),
    ],
)
def test_what_clients_can_meet_stays_as_it_is(check: Check, value: str | None) -> None:
    assert check(value) is value


@pytest.mark.parametrize(
    ("check", "value", "says"),
    [
        (keys_to_send, "s3cret,,", "a key is empty"),
        (keys_to_send, "", "a key is empty"),
        (keys_to_send, "two words", "printable ASCII without spaces"),
        (keys_to_send, "schlüssel", "printable ASCII"),
        (origins_to_meet, "example.org", "an origin is"),
        (origins_to_meet, "https://example.org/path", "a scheme and a host"),
        (hosts_to_meet, "example.org:8000", "without a port"),
        (hosts_to_meet, "a,", "a host is"),
    ],
)
def test_others_are_refused(check: Check, value: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        check(value)
    assert "schlüssel" not in str(refused.value)


@pytest.mark.parametrize("alias", ["a", "=a", "a=", ""])
def test_an_alias_without_a_name_on_either_side_is_refused(alias: str) -> None:
    assert aliases_to_meet(("a=b", "c=d/e=f")) == ("a=b", "c=d/e=f")
    with pytest.raises(ValueError, match="is not of the form ALIAS=NAME"):
        aliases_to_meet(("a=b", alias))
