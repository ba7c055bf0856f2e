"""Time limit for calls of an untested graph, which may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from model.errors import ModelError
from model.runtimes.sessions import Array, Outputs

TRIAL_SECONDS = 60.0
"""Maximum number of seconds of one call in a trial of a graph."""


class RunOptions(Protocol):
    """Options of one call, as in ONNX Runtime."""

    terminate: bool


class PlainSession(Protocol):
    """Loaded graph, as ONNX Runtime's session."""

    def run(
        self, names: Sequence[str], feed: Mapping[str, Array], options: RunOptions, /
    ) -> Outputs:
        """Return the outputs with these names."""

    def get_providers(self) -> list[str]:
        """Return the hardware interfaces that compute."""


class LimitedSession:
    """Session whose calls end with an error after a time limit."""

    def __init__(
        self, session: PlainSession, seconds: float, options: Callable[[], RunOptions]
    ) -> None:
        """Wrap a session.

        Args:
            session: a loaded graph.
            seconds: maximum seconds of a call.
            options: creates the options of one call.

        """
        self._session, self._seconds, self._options = session, seconds, options
        self.get_providers = session.get_providers

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> Outputs:
        """Return the outputs with these names.

        Raises:
            ModelError: the call exceeded the time limit.

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
                    f"the graph did not compute a batch within {self._seconds:g} s: look for an "
                    "endless Loop in it"
                ) from None
            raise
        finally:
            timer.cancel()
