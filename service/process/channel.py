"""The messages between the supervisor and a worker, over a socket pair that keeps them whole.

    supervisor → worker    its `Assignment`, once; CONNECTION, with a client's socket; DRAIN;
                           FINISH, after which connections are the metrics port's
    worker → supervisor    LOADED, or the reason of a failure in a line; CLOSED and a number;
                           ALIVE, every BEAT_SECONDS once it is loaded

The end of the channel is a message too: to a worker, that no connection will come any more, because
the supervisor is gone; to the supervisor, that the worker has ended.
"""

from __future__ import annotations

import signal
from pathlib import Path

from pydantic import BaseModel

from service.settings import Settings

CONNECTION = b"connection"
DRAIN = b"drain"
FINISH = b"finish"
LOADED = b"loaded"
CLOSED = b"closed "
"""Followed by the number of connections that have ended since the last such message."""
ALIVE = b"alive"
"""Sent by the worker's event loop, on which all of its replies depend."""
BEAT_SECONDS = 1.0
MESSAGE_BYTES = 65536
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""The supervisor's alone, though a terminal sends them to everyone. A worker ignores them; until it
does, it has them blocked, as it inherits it."""


class Assignment(BaseModel):
    """What a worker is to do."""

    settings: Settings
    """With the threads of one worker."""
    artifacts: list[tuple[Path, str]]
    """The folder and SHA-256 of each: every worker serves the same, whenever it started."""
    folder: Path
    """Where the workers of a service share their metrics and find each other."""
    index: int
    """0 … workers − 1. One that is started again keeps it."""
    restarted: bool
