"""The template of a path's route: a label with as many values as there are routes."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

UNMATCHED = "unmatched"
"""The label of every path that no route has."""


class RouteTemplates:
    """The templates of an application's routes."""

    def __init__(self, routes: Iterable[BaseRoute] = ()) -> None:
        found = [route for route in routes if isinstance(route, Route)]
        self._fixed = {route.path for route in found if not route.param_convertors}
        self._patterns = [
            (route.path_regex, route.path) for route in found if route.param_convertors
        ]

    def of(self, path: str) -> str:
        """The template of a path; `UNMATCHED` where no route has it."""
        if path in self._fixed:
            return path
        return next((name for regex, name in self._patterns if regex.match(path)), UNMATCHED)

    def of_scope(self, scope: Scope) -> str:
        """The template of a request's route, also of one that never reached its route."""
        route = scope.get("route")
        return self.of(scope["path"]) if route is None else str(route.path)
