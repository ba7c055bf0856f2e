"""Admission of a request by its head, and the client to which it counts."""

from __future__ import annotations

from starlette.types import Scope

from service.errors import MisdirectedRequest
from service.http.hosts import AllowedHosts
from service.http.keys import ApiKeys
from service.request_context import RequestContext
from service.telemetry.probe_paths import METRICS_PATH, PROBE_PATHS


class Admission:
    """Checks of the host and the API key of a request, before its body is read."""

    def __init__(
        self, hosts: AllowedHosts | None, keys: ApiKeys | None, metrics_port: int | None = None
    ) -> None:
        """Configure the checks.

        Args:
            hosts: hosts that requests may name; None admits any host.
            keys: keys of which a request must have one; None admits requests without a key.
            metrics_port: port that answers only metrics and health routes, without a key.

        """
        self._hosts = hosts
        self._keys = keys
        self._metrics_port = metrics_port

    def admit(self, scope: Scope, context: RequestContext[object]) -> None:
        """Admit a request, and store the names of its client and its key in its context.

        Raises:
            MisdirectedRequest: the request names another host, or the metrics port does not answer
                its path; its key is not checked.
            Unauthorized: the path needs a key, and the request has no known key.

        """
        if self._hosts:
            self._hosts.check(scope)
        if self._metrics_port and scope["server"][1] == self._metrics_port:
            if scope["path"] not in {*PROBE_PATHS, METRICS_PATH}:
                raise MisdirectedRequest("this port answers /metrics and the health routes alone")
            return
        if self._keys:
            context.client = context.key = self._keys.check(scope)
        if not context.key and scope.get("client"):
            context.client = str(scope["client"][0])
