"""Whether a request is let in, by its head alone, and who shares a rate of service with it."""

from __future__ import annotations

from starlette.types import Scope

from service.http.hosts import AllowedHosts
from service.http.keys import ApiKeys


class Admission:
    """The host that a request must be for, and the key that it must have."""

    def __init__(self, hosts: AllowedHosts | None, keys: ApiKeys | None) -> None:
        """Ask for what is given; None admits everybody."""
        self._hosts = hosts
        self._keys = keys

    def client(self, scope: Scope) -> str:
        """Whoever shares one rate of service: the owner of a key, or an address without keys.

        Raises:
            MisdirectedRequest: the request is for another host; its key is not looked at.
            Unauthorized: the path needs a key, and the request has none that is known.

        """
        if self._hosts:
            self._hosts.check(scope)
        if self._keys:
            return self._keys.check(scope)
        return str(scope["client"][0]) if scope.get("client") else ""
