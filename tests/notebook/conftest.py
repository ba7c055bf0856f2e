"""The default service, and transformers beside it."""

from tests.journeys.conftest import client, server

__all__ = ["client", "server"]
