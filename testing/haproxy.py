"""The balancer of docker-compose.yml, by the HAProxy of this machine."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testing import metrics
from testing.blocking import ask
from testing.names import Names, naming
from testing.process import Service, StartError, clean_environment, free_port

CONFIGURATION = Path(__file__).resolve().parents[1] / "deploy" / "haproxy" / "haproxy.cfg"
SEEN_SECONDS = 30.0
"""A change of the replicas that takes longer is never seen."""


def haproxy() -> str | None:
    """The program, which Debian keeps where only root looks."""
    return shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")


class Balancer(Service):
    """HAProxy with the configuration that ships, before replicas at one port of many addresses."""

    def __init__(self, configuration: Path, names: Names, replica_port: int) -> None:
        program = haproxy()
        if program is None:
            raise StartError("there is no haproxy: apt-get install haproxy")
        self.names = names
        self.replica_port = replica_port
        self.metrics_port = free_port()
        port = free_port()
        variables = {
            "HEADSCOPE_REPLICAS": f"replica:{replica_port}",
            "HEADSCOPE_RESOLVER": f"127.0.0.1:{names.port}",
            "HEADSCOPE_PORT": str(port),
            "HEADSCOPE_BALANCER_METRICS_PORT": str(self.metrics_port),
        }
        command = [program, "-db", "-f", str(configuration)]
        super().__init__(command, port, environment=clean_environment(**variables))

    def ready(self) -> bool:
        """Whether its own port answers, with replicas or without."""
        with contextlib.suppress(OSError):
            return ask(self.metrics_port, "/health").status in (200, 503)
        return False

    def samples(self) -> dict[str, float]:
        """Its metrics."""
        return metrics.samples(ask(self.metrics_port, "/metrics").body.decode())

    def sessions(self, server: str) -> int:
        """Requests that are with a server now."""
        labels = [("proxy", "replicas"), ("server", server)]
        return int(self.samples()[f"haproxy_server_current_sessions {labels}"])

    def up(self) -> set[str]:
        """Names of the servers that get requests."""
        found = set()
        for key, value in self.samples().items():
            if key.startswith("haproxy_server_status [") and "('state', 'UP')" in key and value:
                found.add(key.partition("'server', '")[2].partition("'")[0])
        return found

    def failures(self) -> float:
        """Connections and requests that replicas let down so far, tried again or not."""
        found = self.samples()
        kinds = ("connection_errors", "response_errors", "retry_warnings", "redispatch_warnings")
        return sum(metrics.total(found, f"haproxy_backend_{kind}_total [") for kind in kinds)

    def wait_until_up(self, count: int) -> None:
        """Wait for so many servers.

        Raises:
            StartError: they are not seen in time.

        """
        self.wait_until(lambda: len(self.up()) == count, SEEN_SECONDS, 0.05)


@contextlib.contextmanager
def balancing(replica_port: int, *, resend: bool = True) -> Iterator[Balancer]:
    """A balancer without replicas yet: they are the addresses of its `names`.

    Args:
        replica_port: where each of them listens.
        resend: as the configuration says; or what was lost is not sent again.

    """
    text = CONFIGURATION.read_text(encoding="utf-8")
    if not resend:
        before, rule, after = text.partition("    retry-on ")
        assert rule
        text = before + "    retry-on conn-failure\n" + after.partition("\n")[2]
    with naming() as names, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIGURATION.name
        path.write_text(text, encoding="utf-8")
        with Balancer(path, names, replica_port) as balancer:
            balancer.wait_until_ready()
            yield balancer
