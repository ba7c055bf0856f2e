"""`headscope serve`: serve models over HTTP, with all settings as options."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from model.artifact.manifest import Artifact
from service.artifacts.opening import open_artifact
from service.cli import terminal
from service.cli.command import Command
from service.cli.options import given, setting, settings_of
from service.cli.terminal import FAILURES, Exit, WrongUseError, code_of, one_line
from service.models.setup import check_content, check_names
from service.settings import Settings, file_of
from service.settings.served import each
from service.system import logs, resources
from service.system.distribution import require

EXAMPLES = """
headscope serve --model BAAI/bge-small-en-v1.5 --max-length 256
headscope serve --artifact artifacts/int8 --workers 4 --host 0.0.0.0
headscope serve --model ORG/A --model ORG/B@v1.0      two models at one port
HEADSCOPE_API_KEYS=secret headscope serve --no-verify-route
"""

Progress = Callable[[str], None]
Server = Callable[[Settings, list[Artifact]], int]

_log = logging.getLogger("headscope")


def serve(**options: Any) -> int:
    """Serve until a signal to stop; failures are log lines if the log format is JSON."""
    settings = checked_settings(given(options))
    resources.settle_allocator()
    if settings.log_format == "text":
        with terminal.steps() as say:
            run, artifacts = _load(settings, say)
        return _run(run, settings, artifacts)
    logs.configure(settings.log_level, settings.log_format)
    try:
        with terminal.interruptible():
            run, artifacts = _load(settings, _log.info)
        return _run(run, settings, artifacts)
    except FAILURES as error:
        _log.critical("headscope serve: %s", one_line(error))
        return code_of(error)


def checked_settings(flags: dict[str, Any]) -> Settings:
    """Return the settings from flags and variables, and from the file, which is checked whole."""
    settings = settings_of(flags)
    if content := file_of(flags):
        try:
            check_content(settings, content)
        except ValueError as error:
            raise WrongUseError(str(error)) from None
    return settings


def _run(run: Server, settings: Settings, artifacts: list[Artifact]) -> int:
    try:
        return run(settings, artifacts)
    except KeyboardInterrupt:  # the server has stopped in order, and logged that
        return Exit.INTERRUPTED


def _load(settings: Settings, say: Progress) -> tuple[Server, list[Artifact]]:
    """Return the server and its artifacts; a thread goes on importing what the server needs."""
    if "torch" in (settings.engine, settings.fallback) or settings.verify_share:
        require("an answer by PyTorch", "torch")
    importing = ThreadPoolExecutor(1, "importing")
    several = settings.workers > 1
    process = "service.process.supervisor" if several else "service.process.single"
    importing.submit(_import, process, web=not several)
    importing.shutdown(wait=False)
    artifacts = open_served(settings, say)  # may export, and must get Ctrl-C here
    return importlib.import_module(process).serve, artifacts


def _import(process: str, *, web: bool) -> None:
    """Import the module of a server, and the web framework where this process needs it."""
    module = importlib.import_module(process)
    if web:
        module.import_web()


def open_served(settings: Settings, say: Progress) -> list[Artifact]:
    """Open the artifacts of all models, exporting missing ones."""
    check_names(settings)
    return [open_artifact(single, say) for single in each(settings)]


command = Command(
    "serve",
    callback=serve,
    params=[setting(name) for name in Settings.flags()],
    help="Serve models, or exported artifacts, over HTTP; by default the default model.\n\n"
    "An option takes precedence over its HEADSCOPE_ variable.",
    examples=EXAMPLES,
)
