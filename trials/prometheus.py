"""Real Prometheus with the project's rules, whose times are divided by `SPEED`."""

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
from testing.client import ask
from testing.process import free_port
from testing.promtool import MISSING, found

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "prometheus"
SPEED = 20
"""Factor by which times are shorter than in production: three seconds for a minute."""
SCRAPE_SECONDS = 2
"""Seconds between two scrapes, and for one: /metrics waits a second for a hanging worker."""
POLL_SECONDS = 0.2
KEY = {"authorization": "Bearer trial"}
_TIME = re.compile(r"(?<=\[)(\d+)([mh])(?=\])|(?<=for: )(\d+)(m)")
_MILLISECONDS = {"m": 60_000, "h": 3_600_000}


def faster(text: str) -> str:
    """Divide the windows and `for` of rules by `SPEED`, and keep the thresholds."""

    def scaled(match: re.Match[str]) -> str:
        number, unit = filter(None, match.groups())
        return f"{int(number) * _MILLISECONDS[unit] // SPEED}ms"

    return _TIME.sub(scaled, text)


class Prometheus(process.Service):
    """Prometheus that scrapes the ports of watched services."""

    def __init__(self, folder: Path) -> None:
        """Start Prometheus with its files in a folder, and without targets.

        Raises:
            FileNotFoundError: Prometheus is not installed.

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

    def _write_targets(self, job: str) -> None:
        ports = sorted(self._watched[job])
        scratch = self._folder / f"{job}.new"
        scratch.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
        scratch.rename(scratch.with_suffix(".json"))

    @contextlib.asynccontextmanager
    async def watching(self, job: str, port: int) -> AsyncIterator[Target]:
        """Scrape a port during the block, which begins after the first scrape."""
        watched = self._watched.setdefault(job, set())
        watched.add(port)
        self._write_targets(job)
        target = Target(self, f"127.0.0.1:{port}")
        try:
            while not await target.value("up"):
                await asyncio.sleep(POLL_SECONDS)
            yield target
        finally:
            watched.remove(port)
            self._write_targets(job)


@dataclass(frozen=True)
class Target:
    """Alerts and metrics of one target of a Prometheus."""

    prometheus: Prometheus
    instance: str

    async def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = (await ask(self.prometheus.port, "/api/v1/alerts")).json()["data"]["alerts"]
        return {
            one["labels"]["alertname"]
            for one in alerts
            if one["state"] == "firing" and one["labels"].get("instance") == self.instance
        }

    async def value(self, metric: str) -> float:
        """Return the sum of a metric; 0 without samples."""
        path = f'/api/v1/query?query=sum({metric}{{instance="{self.instance}"}})'
        result = (await ask(self.prometheus.port, path)).json()["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    async def fired(self, seconds: float) -> set[str]:
        """Return the names of the alerts that fire within some seconds."""
        alerts: set[str] = set()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            alerts |= await self.firing()
            await asyncio.sleep(POLL_SECONDS)
        return alerts

    async def until(self, alert: str, seconds: float, *, fires: bool) -> float:
        """Return the seconds until an alert fires, or stops firing; infinite after `seconds`."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if (alert in await self.firing()) == fires:
                return time.monotonic() - began
            await asyncio.sleep(POLL_SECONDS)
        return math.inf


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Prometheus]:
    """Run a Prometheus during the block, once it is ready."""
    with tempfile.TemporaryDirectory() as folder, Prometheus(Path(folder)) as prometheus:
        await asyncio.to_thread(prometheus.wait_until, lambda: "ready to receive" in prometheus.log)
        yield prometheus
