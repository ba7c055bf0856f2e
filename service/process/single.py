"""Service in a single process, which loads models while it imports the web framework."""

from __future__ import annotations

import faulthandler
import importlib
import sys
from collections.abc import Sequence

from model.artifact.manifest import Artifact
from service.models.state import build_state
from service.process.listener import listening, service_manager
from service.settings import Settings
from service.system import logs

WEB = ("service.app", "service.process.server")
"""Modules of the web framework and all routes, whose import takes most of a start."""


def import_web() -> None:
    """Import `WEB`, or wait until another thread has imported them."""
    for module in WEB:
        importlib.import_module(module)


def serve(settings: Settings, artifacts: Sequence[Artifact]) -> int:
    """Serve until a signal to stop, and return the exit code."""
    logs.configure(settings.log_level, settings.log_format)
    if sys.__stderr__ is not None:  # the one place for the reason of a SIGBUS or SIGSEGV
        faulthandler.enable(sys.__stderr__, all_threads=False)
    manager = service_manager()
    manager.status("Loading the models")
    with listening(settings) as (found, sockets):
        state = build_state(found, artifacts, idle=import_web)
        import_web()
        from service.app import application  # noqa: PLC0415 - see `WEB`
        from service.process.server import Server, end  # noqa: PLC0415

        server = Server(application(state), found, manager)
        server.run(sockets)
    return end(server)
