"""Calls of a graph that nobody knows yet, which may never end: each is ended after some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from model.errors import ModelError

TRIAL_SECONDS = 60.0
"""Maximum number of seconds of one call while a graph is tried."""


class RunOptions(Protocol):
    """Options of one call, as ONNX Runtime has them."""

    terminate: bool


class PlainSession(Protocol):
    """Loaded graph, as ONNX Runtime has it."""

    def run(self, names: Sequence[str], feed: Mapping[str, Any], options: Any) -> list[Any]:
        """Return the outputs of these names."""

    def get_providers(self) -> list[str]:
        """Return the hardware interfaces that compute."""


class LimitedSession:
    """Session whose calls end with an error after some seconds."""

    def __init__(
        self, session: PlainSession, seconds: float, options: Callable[[], RunOptions]
    ) -> None:
        """Wrap a session.

        Args:
            session: a loaded graph.
            seconds: that a call may take.
            options: makes the options of one call.

        """
        self._session, self._seconds, self._options = session, seconds, options
        self.get_providers = session.get_providers

    def run(self, names: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the outputs of these names.

        Raises:
            ModelError: the call took too long.

        """
        options = self._options()
        timer = threading.Timer(self._seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return self._session.run(names, dict(feed), options)
        except Exception:
            if options.terminate:
                raise ModelError(
                    f"the graph did not compute a batch within {self._seconds:g} s: look for a "
                    "Loop in it that has no end"
                ) from None
            raise
        finally:
            timer.cancel()
