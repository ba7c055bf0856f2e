"""Direct calls of routes with fixed paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from service.api.wire.route import JsonRoute, context_of


class DirectRoutes:
    """ASGI middleware that calls `JsonRoute`s of fixed paths without the application's layers.

    FastAPI and Starlette match every route's pattern, open exit stacks for dependencies and wrap
    each message, which takes longer than all the rest of a small request. JSON routes have no
    dependencies. Other requests take the application's way.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        handlers: Mapping[Any, ExceptionHandler],
    ) -> None:
        """Wrap the application's layers.

        Args:
            app: ASGI application of all other requests.
            routes: routes of the application, in order of precedence.
            handlers: function from a request and an exception to the reply, by exception class.

        """
        self._app = app
        self._handlers = handlers
        self._routes: dict[tuple[str, str], JsonRoute] = {}
        for route in routes:
            if isinstance(route, JsonRoute) and not route.param_convertors:
                for method in route.methods or ():
                    self._routes.setdefault((method, route.path), route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        route = self._routes.get((scope.get("method", ""), scope.get("path", "")))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.answer(request)
            await response(scope, receive, send)
        except Exception as error:
            handler = next(
                (self._handlers[c] for c in type(error).__mro__ if c in self._handlers), None
            )
            if handler is None or context_of(request).status:
                raise
            response = await handler(request, error)  # type: ignore[arg-type, misc]
            await response(scope, receive, send)
