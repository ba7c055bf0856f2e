"""Access log: one line for every request."""

from __future__ import annotations

import logging

from service.telemetry.probe_paths import METRICS_PATH, PROBE_PATHS
from service.telemetry.requests import RequestSummary
from service.telemetry.trace_ids import trace_id

QUIET_ROUTES = {*PROBE_PATHS, METRICS_PATH}

_log = logging.getLogger("headscope.access")


class AccessLog:
    """Logger of requests; status 0 means that the client left before the reply began.

    Probes and scrapes, which come every few seconds, are logged at level debug, unless they are
    rejected, such as a scrape without a key.
    """

    def observe(self, request: RequestSummary) -> None:
        """Log a request."""
        status = request.status or 0
        fields = {
            "method": request.method,
            "route": request.route,
            "status": status,
            "ms": round(1000 * (request.ended - request.began), 1),
            "bytes": request.sent_bytes,
        }
        message = "%(method)s %(route)s %(status)d, %(ms).1f ms, %(bytes)d bytes"
        trace = trace_id([(b"traceparent", request.traceparent.encode("latin-1"))])
        for name, value in (("key", request.key), ("trace_id", trace)):
            if value:
                fields[name] = value
                message += f", {name} %({name})s"
        quiet = request.route in QUIET_ROUTES and not 400 <= status < 500
        level = logging.DEBUG if quiet else logging.INFO
        _log.log(level, message, fields, extra={"fields": fields})

    def close(self) -> None:
        """Do nothing: every line is written already."""
