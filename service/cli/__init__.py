"""headscope serve | export | verify | bench | fetch: a file a command."""

from service.cli.program import main

__all__ = ["main"]
