"""The requests of a recording sent to a service, each over a connection of its own."""

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
    *("--allowed-hosts", "*"),  # of requests that are recorded
)

FIRST = Request("pages", "first", plain("GET", "/info") + plain("GET", "/metrics"), replies=2)
"""The model's shape; and a first look at the metrics, which are counted only from then on."""


def requests(shape: Shape) -> list[Request]:
    """All requests but the keys', in the order in which they are sent; names are unique.

    Metrics come last, when every request has been counted.
    """
    metrics = Request("pages", "GET /metrics", plain("GET", "/metrics"))
    found = [*answered(shape), *errors(shape), metrics]
    assert len({request.name for request in found}) == len(found)
    return found


def record(
    url: str,
    *,
    api_key: str | None = None,
    without: Collection[Group] = (),
    whole_bytes: int = WHOLE_BYTES,
) -> Iterator[Entry]:
    """The lines of a recording of a service, made one after the other.

    Args:
        url: of the service.
        api_key: that it wants; then the requests with and without it are sent, and no others.
        without: groups of requests that are left out.
        whole_bytes: the longest body that is recorded whole; of a longer one, hashes are.

    """
    parts = urllib.parse.urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    if api_key is None:
        info, _ = exchange(address, FIRST)
        found = requests(Shape.of(info.json()))
    else:
        found = keys(api_key)
    for request in found:
        if request.group not in without:
            yield entry(request, exchange(address, request), whole_bytes)


def record_fake() -> list[Entry]:
    """A recording of the fake engine, whose numbers are the same on every machine."""
    with Service.of_headscope("--model", str(small_checkpoint()), *FAKE_FLAGS) as service:
        service.wait_until_ready()
        return [*record(service.url, without=NOT_FAKE, whole_bytes=FAKE_WHOLE_BYTES)]


def exchange(address: tuple[str, int], request: Request) -> list[Reply]:
    """The replies to a request; one that did not come whole has status 0."""
    with RawConnection(address, WAIT_SECONDS) as connection:
        connection.send(request.content)
        return [_receive(connection) for _ in range(request.replies)]


def _receive(connection: RawConnection) -> Reply:
    try:
        return connection.receive()
    except (ConnectionError, http.client.HTTPException) as error:
        return Reply(0, f"HTTP/1.1 0\r\nclosed: {type(error).__name__}\r\n\r\n".encode(), b"")


def entry(request: Request, replies: Sequence[Reply], whole_bytes: int) -> Entry:
    """A request's line of a recording."""
    return {
        "name": request.name,
        "sent": hashlib.sha256(request.content).hexdigest()[:16],
        "exact": request.exact,
        "replies": [reply_entry(request, reply, whole_bytes) for reply in replies],
    }
