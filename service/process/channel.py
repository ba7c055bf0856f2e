"""Messages between the supervisor and a worker, over a socket pair that keeps their boundaries.

    supervisor → worker    its `Assignment`, once; CONNECTION, with a client's socket; DRAIN;
                           FINISH, after which connections are the metrics port's
    worker → supervisor    LOADED, or the reason of a failure in a line; CLOSED and a number;
                           ALIVE, every BEAT_SECONDS once the worker is loaded

The end of the channel also counts as a message: to a worker, that the supervisor is gone and no
connection will follow; to the supervisor, that the worker has ended.
"""

from __future__ import annotations

import signal
from enum import Enum
from pathlib import Path

from pydantic import BaseModel

from service.settings import Settings


class Message(bytes, Enum):
    """Messages of a fixed content, and the prefix `CLOSED`."""

    CONNECTION = b"connection"
    DRAIN = b"drain"
    FINISH = b"finish"
    LOADED = b"loaded"
    CLOSED = b"closed "
    """Prefix of the number of connections that have ended since the last such message."""
    ALIVE = b"alive"
    """Heartbeat of a worker's event loop, which all its replies depend on."""


BEAT_SECONDS = 1.0
MESSAGE_BYTES = 65536
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that only the supervisor handles, although a terminal sends them to all processes.
Workers inherit them blocked, and then ignore them."""


class Assignment(BaseModel):
    """Assignment of a worker."""

    settings: Settings
    """Settings of the service, with the threads of one worker."""
    artifacts: list[tuple[Path, str]]
    """Folder and SHA-256 of each artifact, so that restarted workers serve the same artifacts."""
    folder: Path
    """Folder in which the workers share their metrics and find each other's sockets."""
    index: int
    """Index of the worker, 0 … workers − 1, which a restart keeps."""
    restarted: bool
