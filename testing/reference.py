"""Reference tables of the pages, made from the code: settings, metrics, errors and routes.

A page has a table between `<!-- table: NAME -->` and `<!-- end -->`; a test holds all pages to
the code.

Run: python -m testing.reference
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fastapi.routing import APIRoute
from prometheus_client.metrics import MetricWrapperBase

from service import errors
from service.api import documentation
from service.api.dialects import DIALECTS, NATIVE, Dialect
from service.cli.options import literals
from service.settings import Settings
from service.settings.groups import Group, Shown
from service.telemetry.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return all tables by name."""
    return {
        **{f"settings {group}": _settings(group) for group in Group},
        **{f"metrics {name}": _metrics(name) for name in ("requests", "models", "service")},
        "errors": _errors(),
        "routes": _routes(),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _sentence(text: str) -> str:
    """Return a sentence as a cell, without its full stop."""
    return text.removesuffix(".").replace("|", "\\|")


def _settings(group: Group) -> str:
    rows = []
    for name, field in Settings.flags().items():
        shown = next(one for one in field.metadata if isinstance(one, Shown))
        if shown.group is group:
            default = shown.default or f"`{str(field.default).lower().removesuffix('.0')}`"
            words = [f"`{word}`" for word in literals(field.annotation) if word != field.default]
            default += f" (or {', '.join(words)})" if words else ""
            flag = f"`--{name.replace('_', '-')}`"
            rows.append((flag, default, _sentence(field.description or "")))
    return _table(("flag", "default", "meaning"), rows)


def _metrics(group: str) -> str:
    rows = []
    for metric in vars(Registry()).values():
        if isinstance(metric, MetricWrapperBase):
            labels = metric._labelnames
            of = "requests" if "route" in labels else "models" if "model" in labels else "service"
            if of == group:
                name = metric._name + ("_total" if metric._type == "counter" else "")
                kind, says = str(metric._type), _sentence(metric._documentation)
                rows.append((f"`{name}`", kind, ", ".join(labels), says))
    return _table(("metric", "type", "labels", "value"), rows)


def _errors() -> str:
    found = {
        (kind.status, kind.slug): kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ServiceError)
    }
    rows = (
        (str(status), f"`{slug}`", "yes" if kind.retryable else "", _sentence(kind.__doc__ or ""))
        for (status, slug), kind in sorted(found.items())
    )
    return _table(("status", "problem", "retry", "when"), rows)


def served(dialects: Iterable[Dialect]) -> Iterator[APIRoute]:
    """Yield the routes of dialects, without the pages that describe the API."""
    for dialect in dialects:
        for router in dialect.routers:
            if router is not documentation.router:
                yield from (route for route in router.routes if isinstance(route, APIRoute))


def _routes() -> str:
    rows = (
        (f"`{method} {route.path_format}`", _sentence(" ".join(does.split())))
        for route in served([NATIVE, DIALECTS[-1]])
        for does in [(route.endpoint.__doc__ or "").split("\n\n")[0]]
        for method in sorted({*(route.methods or ())} - {"HEAD"})
    )
    return _table(("route", "does"), rows)


def pages() -> list[Path]:
    """Return the pages that have tables."""
    return [
        page for page in sorted((ROOT / "docs").glob("*.md")) if MARKED.search(page.read_text())
    ]


def written(page: str) -> str:
    """Return the content of a page with its tables as the code has them."""
    known = tables()
    return MARKED.sub(lambda found: f"{found[1]}\n{known[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    for path in pages():
        path.write_text(written(path.read_text()))
