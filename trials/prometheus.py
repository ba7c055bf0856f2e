"""A real Prometheus with the project's rules, in which time passes faster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from testing import process
from testing.client import Connection, Reply, request
from testing.process import free_port
from testing.promtool import MISSING, found

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "prometheus"
SPEED = 20
"""Times as fast as in production: three seconds for a minute."""
SCRAPE_SECONDS = 2
"""Between two scrapes, and for one: a worker that hangs has a second to answer the others."""
POLL_SECONDS = 0.2
KEY = {"authorization": "Bearer trial"}
_TIME = re.compile(r"(?<=\[)(\d+)([mh])(?=\])|(?<=for: )(\d+)(m)")
_MILLISECONDS = {"m": 60_000, "h": 3_600_000}


def faster(text: str) -> str:
    """Rules whose times pass faster: windows and `for`, no threshold."""

    def scaled(found: re.Match[str]) -> str:
        number, unit = filter(None, found.groups())
        return f"{int(number) * _MILLISECONDS[unit] // SPEED}ms"

    return _TIME.sub(scaled, text)


async def asked(
    port: int, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Reply:
    """The reply to one request over a connection of its own."""
    async with await Connection.to(port) as connection:
        return await connection.ask(request(path, body, headers))


class Prometheus(process.Service):
    """A Prometheus that scrapes services, each by its port, as they are watched."""

    def __init__(self, folder: Path) -> None:
        """Start one that keeps all it has in a folder, and scrapes nothing yet.

        Raises:
            FileNotFoundError: there is none.

        """
        program = found("prometheus")
        if program is None:
            raise FileNotFoundError(MISSING.format("prometheus"))
        settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        settings["global"] = dict.fromkeys(
            ("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{SCRAPE_SECONDS}s"
        )
        for job in settings["scrape_configs"]:
            del job["dns_sd_configs"]
            files = [f"{job['job_name']}.json"]
            job["file_sd_configs"] = [{"files": files, "refresh_interval": "1s"}]
            job["authorization"] = {"credentials": KEY["authorization"].removeprefix("Bearer ")}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        (folder / "alerts.yml").write_text(faster((FOLDER / "alerts.yml").read_text()))
        self._folder = folder
        self._watched: dict[str, set[int]] = {}
        own = free_port()
        flags = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{own}",
        }
        super().__init__([program, *(f"--{name}={value}" for name, value in flags.items())], own)

    def _tell(self, job: str) -> None:
        ports = sorted(self._watched[job])
        scratch = self._folder / f"{job}.new"
        scratch.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
        scratch.rename(scratch.with_suffix(".json"))

    @contextlib.asynccontextmanager
    async def watching(self, job: str, port: int) -> AsyncIterator[Target]:
        """Scrape a port for as long as the block runs; it begins once that was done."""
        watched = self._watched.setdefault(job, set())
        watched.add(port)
        self._tell(job)
        target = Target(self, f"127.0.0.1:{port}")
        try:
            while not await target.value("up"):
                await asyncio.sleep(POLL_SECONDS)
            yield target
        finally:
            watched.remove(port)
            self._tell(job)


@dataclass(frozen=True)
class Target:
    """What a Prometheus knows of one that it scrapes."""

    prometheus: Prometheus
    instance: str

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = (await asked(self.prometheus.port, "/api/v1/alerts")).json()["data"]["alerts"]
        return {
            one["labels"]["alertname"]
            for one in alerts
            if one["state"] == "firing" and one["labels"].get("instance") == self.instance
        }

    async def value(self, metric: str) -> float:
        """The sum of a metric; 0 where there is none."""
        path = f'/api/v1/query?query=sum({metric}{{instance="{self.instance}"}})'
        result = (await asked(self.prometheus.port, path)).json()["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    async def fired(self, seconds: float) -> set[str]:
        """The alerts that fire within some time."""
        found: set[str] = set()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found |= await self.firing()
            await asyncio.sleep(POLL_SECONDS)
        return found

    async def until(self, alert: str, seconds: float, *, fires: bool) -> float:
        """Seconds until an alert fires, or no longer does; infinite where that takes too long."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if (alert in await self.firing()) == fires:
                return time.monotonic() - began
            await asyncio.sleep(POLL_SECONDS)
        return math.inf


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Prometheus]:
    """A Prometheus that has started."""
    with tempfile.TemporaryDirectory() as folder, Prometheus(Path(folder)) as prometheus:
        await asyncio.to_thread(prometheus.wait_until, lambda: "ready to receive" in prometheus.log)
        yield prometheus
