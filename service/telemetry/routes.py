"""Route templates of paths, as metric labels with a bounded number of values; and probes' paths."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

PROBE_PATHS = {
    "/health",
    "/health/live",
    "/health/ready",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths that do not require an API key."""
METRICS_PATH = "/metrics"


UNMATCHED = "unmatched"
"""Label of all paths without a route."""


class RouteTemplates:
    """Templates of an application's routes."""

    def __init__(self, routes: Iterable[BaseRoute] = ()) -> None:
        templates = [route for route in routes if isinstance(route, Route)]
        self._fixed = {route.path for route in templates if not route.param_convertors}
        self._patterns = [
            (route.path_regex, route.path) for route in templates if route.param_convertors
        ]

    def of(self, path: str) -> str:
        """Return the template of a path, or `UNMATCHED`."""
        if path in self._fixed:
            return path
        return next((name for regex, name in self._patterns if regex.match(path)), UNMATCHED)

    def of_scope(self, scope: Scope) -> str:
        """Return the template of a request's route, also if the request never reached the route."""
        route = scope.get("route")
        return self.of(scope["path"]) if route is None else str(route.path)
