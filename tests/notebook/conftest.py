"""The default service, and transformers beside it."""

from tests.e2e.conftest import client, server

__all__ = ["client", "server"]
