"""Recording of a service: each request is sent over a connection of its own."""

from __future__ import annotations

import hashlib
import http.client
import urllib.parse
from collections.abc import Collection, Iterator, Sequence

from testing.blocking import RawConnection
from testing.client import Reply
from testing.process import Service
from trials.fuzz import small_checkpoint
from trials.recording.answered import answered
from trials.recording.entries import WHOLE_BYTES, Entry
from trials.recording.errors import errors
from trials.recording.keys import keys
from trials.recording.normalise import reply_entry
from trials.recording.requests import Group, Request, Shape, plain

WAIT_SECONDS = 300.0
NOT_FAKE: frozenset[Group] = frozenset({"engines", "pages"})
"""Groups whose replies depend on the processor, or on the wording of the documentation."""
FAKE_WHOLE_BYTES = 4200
FAKE_FLAGS = (
    *("--log-level", "error", "--engine", "fake", "--client-timeout-seconds", "2"),
    *("--allowed-hosts", "*"),  # recorded requests name other hosts
)

FIRST = Request("pages", "first", plain("GET", "/info") + plain("GET", "/metrics"), replies=2)
"""Request for the model's shape and the metrics; a scrape is counted only in later scrapes."""


def requests(shape: Shape) -> list[Request]:
    """Return all requests except those about keys, in the order of sending; names are unique.

    Metrics come last, after every request has been counted.
    """
    metrics = Request("pages", "GET /metrics", plain("GET", "/metrics"))
    listed = [*answered(shape), *errors(shape), metrics]
    assert len({request.name for request in listed}) == len(listed)
    return listed


def record(
    url: str,
    *,
    api_key: str | None = None,
    without: Collection[Group] = (),
    whole_bytes: int = WHOLE_BYTES,
) -> Iterator[Entry]:
    """Send the requests to a service one after another, and yield the lines of the recording.

    Args:
        url: URL of the service.
        api_key: key of the service; if given, only the requests about keys are sent.
        without: groups of requests to leave out.
        whole_bytes: maximum length of a whole body; a longer body is recorded as hashes.

    """
    parts = urllib.parse.urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    if api_key is None:
        info, _ = exchange(address, FIRST)
        listed = requests(Shape.of(info.json()))
    else:
        listed = keys(api_key)
    for request in listed:
        if request.group not in without:
            yield entry(request, exchange(address, request), whole_bytes)


def record_fake() -> list[Entry]:
    """Record the service over the fake engine, whose numbers are equal on every machine."""
    with Service.of_headscope("--model", str(small_checkpoint()), *FAKE_FLAGS) as service:
        service.wait_until_ready()
        return [*record(service.url, without=NOT_FAKE, whole_bytes=FAKE_WHOLE_BYTES)]


def exchange(address: tuple[str, int], request: Request) -> list[Reply]:
    """Return the replies to a request; an incomplete reply has status 0."""
    with RawConnection(address, WAIT_SECONDS) as connection:
        connection.send(request.content)
        return [_receive(connection) for _ in range(request.replies)]


def _receive(connection: RawConnection) -> Reply:
    try:
        return connection.receive()
    except (ConnectionError, http.client.HTTPException) as error:
        return Reply(0, f"HTTP/1.1 0\r\nclosed: {type(error).__name__}\r\n\r\n".encode(), b"")


def entry(request: Request, replies: Sequence[Reply], whole_bytes: int) -> Entry:
    """Return a request's line of a recording."""
    return {
        "name": request.name,
        "sent": hashlib.sha256(request.content).hexdigest()[:16],
        "exact": request.exact,
        "replies": [reply_entry(request, reply, whole_bytes) for reply in replies],
    }
