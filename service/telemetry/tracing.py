"""OpenTelemetry tracing: one span for each request, sent to a collector by OTLP over HTTP.

The module is loaded only if a collector is configured. OpenTelemetry's packages read their `OTEL_*`
variables: headers for the collector, resource attributes, the sampler.

Of a collector's replies only the status is used, and the body is never read. The connection is cut
if the head does not end in time, for example after endless `100 Continue` replies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from requests.adapters import HTTPAdapter

from service.exchange import Exchange
from service.system import logs
from service.system.distribution import version
from service.telemetry.requests import UNMATCHED


def bounded_session(head_seconds: float) -> requests.Session:
    """Return a session that reads only the status and headers of replies."""
    session = _HeadsOnly()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(head_seconds))
    return session


class _HeadsOnly(requests.Session):
    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().request(*args, **kwargs | {"stream": True})
        response.close()
        return response


class _Adapter(HTTPAdapter):
    """Adapter whose connections are cut when the head of a reply takes too long."""

    def __init__(self, head_seconds: float) -> None:
        super().__init__()
        self._head_seconds = head_seconds

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pool of connections to a host or its proxy."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        if not issubclass(pool.ConnectionCls, _Cut):
            both = (_Cut, pool.ConnectionCls)
            pool.ConnectionCls = type("_Connection", both, {"head_seconds": self._head_seconds})
        return pool


class _Cut(HTTPConnection):
    """Connection that is cut when the head of a reply takes too long."""

    head_seconds: float

    def getresponse(self) -> Any:
        """Read the status and headers of the reply, without the body."""
        late = threading.Event()
        timer = threading.Timer(self.head_seconds, _cut, [self.sock, late])
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()
        finally:
            timer.cancel()
        if late.is_set():  # once the connection is cut, half a head reads like a whole one
            response.close()
            raise TimeoutError
        return response


def _cut(connection: socket.socket, late: threading.Event) -> None:
    """Shut a connection down in both directions, with a reset when it is closed.

    Without the reset (`SO_LINGER` of 0 s), a peer with a full window would not notice the close
    before the system's timeout, 60 s on Linux.
    """
    late.set()
    with contextlib.suppress(OSError):  # the connection has just ended
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # skips TLS's closing handshake


SEND_SECONDS = 1.5
"""Time limit for sending a batch of spans; unsent spans are lost."""
FLUSH_SECONDS = 2.0


class Exporter(OTLPSpanExporter):
    """Exporter of spans that logs its failures now and then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lost = logs.Occasional(logging.WARNING)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the thread of the span processor."""
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost.log("the trace collector accepts no spans; they are lost until it does")
        return result


class Tracing:
    """Observer that converts requests to spans, which a background thread sends in batches."""

    def __init__(self, otlp_endpoint: str) -> None:
        """Set up the exporter to the base URL of a collector."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `Exporter` logs enough
        resource = Resource.create(
            {
                "service.name": "headscope",
                "service.version": version(),
                "service.instance.id": str(os.getpid()),
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = f"{otlp_endpoint.rstrip('/')}/v1/traces"
        session = bounded_session(SEND_SECONDS)
        exporter = Exporter(endpoint=url, timeout=SEND_SECONDS, session=session)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headscope", version())
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, exchange: Exchange[Any, Any]) -> None:
        """Record a span of a request as a child of the caller's span, and a span of each step."""
        offset = time.time_ns() - time.monotonic_ns()

        def ns(moment: float) -> int:
            return offset + round(1e9 * moment)

        known = exchange.route != UNMATCHED
        parent = exchange.headers.get(b"traceparent", b"").decode("latin-1")
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}" if known else exchange.method,
            self._propagator.extract({"traceparent": parent}),
            SpanKind.SERVER,
            _attributes(exchange),
            start_time=ns(exchange.began),
        )
        if span.is_recording():
            if exchange.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            context = set_span_in_context(span)
            for name, began, ended in _steps(exchange):
                self._tracer.start_span(name, context, start_time=ns(began)).end(ns(ended))
        span.end(ns(exchange.ended))

    def close(self) -> None:
        """Send the remaining spans, for at most `FLUSH_SECONDS`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)


def _attributes(exchange: Exchange[Any, Any]) -> dict[str, AttributeValue]:
    """Return attributes by OpenTelemetry's HTTP conventions, without address, query and headers.

    The caller's API key appears by its name, as in the access log.
    """
    attributes: dict[str, AttributeValue] = {"http.request.method": exchange.method}
    if exchange.request_id:  # a CORS preflight has none
        attributes["headscope.request_id"] = exchange.request_id
    if exchange.key:
        attributes["headscope.key"] = exchange.key
    if exchange.route != UNMATCHED:
        attributes["http.route"] = exchange.route
    if exchange.status:
        attributes["http.response.status_code"] = exchange.status
    if exchange.timings:
        attributes["headscope.tokens"] = exchange.timings.tokens
    return attributes


def _steps(exchange: Exchange[Any, Any]) -> list[tuple[str, float, float]]:
    """Return name, begin and end of consecutive steps, all clipped to the begin of the reply."""
    timings = exchange.timings
    if not timings:
        return []
    began, replied = timings.began, exchange.replied or exchange.ended
    queued = min(began + timings.tokenization_seconds, replied)
    computing = min(queued + timings.queue_seconds, replied)
    computed = min(computing + timings.inference_seconds, replied)
    return [
        ("tokenise", began, queued),
        ("queue", queued, computing),
        ("compute", computing, computed),
        ("encode", computed, replied),
    ]
