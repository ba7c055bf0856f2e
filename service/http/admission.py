"""Whether a request is let in, by its head alone, and who shares a rate of service with it."""

from __future__ import annotations

from starlette.types import Scope

from service.errors import MisdirectedRequest
from service.http.hosts import AllowedHosts
from service.http.keys import ApiKeys
from service.request_context import RequestContext
from service.telemetry.probe_paths import METRICS_PATH, PROBE_PATHS


class Admission:
    """The host that a request must be for, and the key that it must have."""

    def __init__(
        self, hosts: AllowedHosts | None, keys: ApiKeys | None, metrics_port: int | None = None
    ) -> None:
        """Ask for what is given; None admits everybody.

        Args:
            hosts: that requests may be for.
            keys: one of which a request must have.
            metrics_port: at which metrics and health are answered, without a key, and no more.

        """
        self._hosts = hosts
        self._keys = keys
        self._metrics_port = metrics_port

    def admit(self, scope: Scope, context: RequestContext[object]) -> None:
        """Admit a request, and store the names of its client and its key in its context.

        Raises:
            MisdirectedRequest: the request is for another host, or for another port; its key is not
                looked at.
            Unauthorized: the path needs a key, and the request has none that is known.

        """
        if self._hosts:
            self._hosts.check(scope)
        if self._metrics_port and scope["server"][1] == self._metrics_port:
            if scope["path"] not in {*PROBE_PATHS, METRICS_PATH}:
                raise MisdirectedRequest("this port answers /metrics and the health routes alone")
        elif self._keys:
            context.client = context.key = self._keys.check(scope)
        elif scope.get("client"):
            context.client = str(scope["client"][0])
