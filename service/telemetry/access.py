"""A line in the log for every request."""

from __future__ import annotations

import logging

from service.telemetry.requests import RequestSummary

_log = logging.getLogger("headscope.access")


class AccessLog:
    """Logs each request; a status of 0 is a client that left before the reply began."""

    def observe(self, request: RequestSummary) -> None:
        """Log one."""
        fields = {
            "method": request.method,
            "route": request.route,
            "status": request.status or 0,
            "ms": round(1000 * (request.ended - request.began), 1),
            "bytes": request.sent_bytes,
        }
        message = "%(method)s %(route)s %(status)d, %(ms).1f ms, %(bytes)d bytes"
        _log.info(message, fields, extra={"fields": fields})

    def close(self) -> None:
        """Nothing is left to write."""
