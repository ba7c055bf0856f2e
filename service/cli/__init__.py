"""Command line `headscope serve | export | verify | bench | encode | fetch`: one file a command."""

from service.cli.program import main

__all__ = ["main"]
