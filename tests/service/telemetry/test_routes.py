"""Templates of paths, as the application's own router matches them."""

from __future__ import annotations

import pytest
from starlette.routing import Match

from service.telemetry.routes import RouteTemplates
from tests.service.harness import Client


@pytest.mark.anyio
async def test_a_template_is_that_of_the_route_that_answers(client: Client) -> None:
    routes = client.app.router.routes
    templates = RouteTemplates(routes)
    for path in ("/encode", "/", "/dashboard/page.js", "/v2/models/m/infer", "/encode/", "/%"):
        scope = {"type": "http", "path": path, "method": "POST", "root_path": ""}
        matching = [route.path for route in routes if route.matches(scope)[0] != Match.NONE]
        assert templates.of(path) == (matching or ["unmatched"])[0]
        assert templates.of_scope(scope) == templates.of(path)
        assert templates.of_scope(scope | {"route": routes[0]}) == routes[0].path
