"""headscope serve | export | verify | bench | encode | fetch: a file a command."""

from service.cli.program import main

__all__ = ["main"]
