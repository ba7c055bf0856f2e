"""A line in the log for every request."""

from __future__ import annotations

import logging

from service.telemetry.requests import Exchange

_log = logging.getLogger("headscope.access")


class AccessLog:
    """Logs each exchange; a status of 0 is a client that left before the reply began."""

    def observe(self, exchange: Exchange) -> None:
        """Log one."""
        fields = {
            "method": exchange.method,
            "route": exchange.route,
            "status": exchange.status or 0,
            "ms": round(1000 * (exchange.ended - exchange.began), 1),
            "bytes": exchange.sent_bytes,
        }
        message = "%(method)s %(route)s %(status)d, %(ms).1f ms, %(bytes)d bytes"
        _log.info(message, fields, extra={"fields": fields})

    def close(self) -> None:
        """Nothing is left to write."""
