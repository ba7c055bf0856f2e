"""OpenTelemetry: a span a request, sent to a collector by OTLP over HTTP.

Loaded only by a service that has a collector. Its packages read the `OTEL_*` variables that are
theirs: headers for the collector, resource attributes, the sampler.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from service.distribution import version
from service.telemetry.requests import Exchange

SEND_SECONDS = 1.5
"""How long a batch of spans may take to be sent; what cannot be sent is lost."""
FLUSH_SECONDS = 2.0
QUIET_SECONDS = 60.0
"""Between two lines about a collector that cannot be reached."""

_log = logging.getLogger("headscope")


class Exporter(OTLPSpanExporter):
    """Sends spans, and says now and then that it cannot."""

    _said = -QUIET_SECONDS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the processor's own thread."""
        result = super().export(spans)
        now = time.monotonic()
        if result is not SpanExportResult.SUCCESS and now - self._said >= QUIET_SECONDS:
            self._said = now
            _log.warning("the collector takes no traces; they are lost until it does")
        return result


class Tracing:
    """Turns exchanges into spans, in batches that a thread of its own sends."""

    def __init__(self, otlp_endpoint: str) -> None:
        """Send nothing yet.

        Args:
            otlp_endpoint: base URL of the collector.

        """
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `Exporter` says enough
        resource = Resource.create(
            {
                "service.name": "headscope",
                "service.version": version(),
                "service.instance.id": str(os.getpid()),
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = f"{otlp_endpoint.rstrip('/')}/v1/traces"
        exporter = Exporter(url, timeout=SEND_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headscope", version())
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, exchange: Exchange) -> None:
        """Make a span of an exchange, below the caller's own, and one of each step it took."""
        known = exchange.route != "unmatched"
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}" if known else exchange.method,
            self._propagator.extract({"traceparent": exchange.traceparent}),
            SpanKind.SERVER,
            _attributes(exchange),
            start_time=exchange.began_ns,
        )
        if span.is_recording():
            if exchange.status is not None and exchange.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            context = set_span_in_context(span)
            for name, began, ended in _steps(exchange):
                step = self._tracer.start_span(name, context, start_time=_ns(exchange, began))
                step.end(_ns(exchange, ended))
        span.end(_ns(exchange, exchange.ended))

    def close(self) -> None:
        """Send what is left, as far as that goes within `FLUSH_SECONDS`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)


def _attributes(exchange: Exchange) -> dict[str, AttributeValue]:
    """By OpenTelemetry's conventions for HTTP, without address, query and headers."""
    attributes: dict[str, AttributeValue] = {"http.request.method": exchange.method}
    if exchange.request_id:  # what a page asks beforehand has none
        attributes["headscope.request_id"] = exchange.request_id
    if exchange.route != "unmatched":
        attributes["http.route"] = exchange.route
    if exchange.status is not None:
        attributes["http.response.status_code"] = exchange.status
    if exchange.took:
        attributes["headscope.tokens"] = exchange.took.tokens
    return attributes


def _steps(exchange: Exchange) -> list[tuple[str, float, float]]:
    """Name, begin and end of each step, one after the other; none ends after the reply began."""
    if not exchange.took:
        return []
    _, began, tokenization, queue, inference = exchange.took
    queued = min(began + tokenization, exchange.replied)
    computing = min(queued + queue, exchange.replied)
    computed = min(computing + inference, exchange.replied)
    return [
        ("tokenise", began, queued),
        ("queue", queued, computing),
        ("compute", computing, computed),
        ("encode", computed, exchange.replied),
    ]


def _ns(exchange: Exchange, moment: float) -> int:
    return exchange.began_ns + round(1e9 * (moment - exchange.began))
