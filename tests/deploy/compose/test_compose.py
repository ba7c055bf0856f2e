"""docker-compose.yml, as Docker Compose reads it and as it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.process.server import IDLE_SECONDS
from service.settings import Settings
from tests.deploy.tools import ROOT, run

yaml = pytest.importorskip("yaml")

SERVICES = ("cpu", "gpu", "replica")
ALL = (*SERVICES, "balancer", "prometheus", "grafana")
COMPOSE = ROOT / "docker-compose.yml"
Services = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def compose() -> Services:
    found: Services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return found


def configured(*options: str, **variables: str) -> Services:
    """Return the configuration as Docker Compose resolves it."""
    reported = run("docker-compose", *options, "config", "--format", "json", **variables)
    found: Services = json.loads(reported)["services"]
    return found


def test_docker_compose_takes_every_profile() -> None:
    assert set(configured("--profile", "*")) == set(ALL)
    assert set(configured()) == {"cpu"}
    assert set(configured("--profile", "observe")) == {"cpu", "prometheus", "grafana"}
    both = {"cpu", "prometheus", "grafana", "replica", "balancer"}
    assert set(configured("--profile", "observe", "--profile", "scale")) == both
    openvino = configured(TARGET="openvino")["cpu"]
    assert (openvino["image"], openvino["build"]["target"]) == ("headscope:openvino", "openvino")
    for given, count in ({}, 1), ({"GPUS": "2"}, 2), ({"GPUS": "all"}, -1):
        gpu = configured("--profile", "gpu", **given)["gpu"]
        [device] = gpu["deploy"]["resources"]["reservations"]["devices"]
        assert device["count"] == count


@pytest.mark.parametrize("name", ALL)
def test_a_container_gets_no_more_than_it_needs(compose: Services, name: str) -> None:
    service = compose[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert re.fullmatch(r"\d+[gm]", service["mem_limit"])
    assert service["pids_limit"] <= 1024
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_to_its_home_alone(compose: Services, name: str) -> None:
    assert [mount.partition(":")[0] for mount in compose[name]["tmpfs"]] == ["/tmp"]
    assert "volumes" not in compose[name]


def test_what_is_mounted_cannot_be_changed(compose: Services) -> None:
    mounts = [one.split(":") for name in ALL for one in compose[name].get("volumes", ())]
    files = [(Path(source), mode) for source, _, *mode in mounts if source.startswith("./")]
    assert {str(path) for path, _ in files} == {
        "deploy/haproxy",
        "deploy/prometheus",
        "deploy/grafana",
    }
    assert all(mode == ["ro"] for _, mode in files)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_told_settings_that_there_are(compose: Services, name: str) -> None:
    reported = {one.removeprefix("HEADSCOPE_").lower() for one in compose[name]["environment"]}
    assert reported <= Settings.model_fields.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_time_to_drain(compose: Services, name: str) -> None:
    grace = int(compose[name]["stop_grace_period"].removesuffix("s"))
    delay = int(compose[name]["environment"]["HEADSCOPE_DRAIN_DELAY_SECONDS"])
    drain = Settings.model_fields["drain_seconds"].default
    assert grace > delay + drain + IDLE_SECONDS


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_keys_of_who_starts_it(compose: Services, name: str) -> None:
    assert compose[name]["environment"]["HEADSCOPE_API_KEYS"] is None


def test_no_two_services_publish_a_port(compose: Services) -> None:
    ports = [port.split(":")[1] for name in ALL for port in compose[name].get("ports", ())]
    assert ports == ["8000", "8001", "8002", "9090", "3000"]


def test_the_gpu_service_gets_a_gpu(compose: Services) -> None:
    gpu = compose["gpu"]
    assert (gpu["profiles"], gpu["build"]["target"]) == (["gpu"], "cuda")
    [device] = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "${GPUS:-1}", "capabilities": ["gpu"]}
    assert gpu["environment"]["HEADSCOPE_DEVICES"] is None


def test_the_balancer_waits_for_the_replicas_and_finds_them_by_name(compose: Services) -> None:
    balancer = compose["balancer"]
    assert balancer["depends_on"] == {"replica": {"condition": "service_healthy"}}
    assert balancer["environment"]["HEADSCOPE_REPLICAS"] == "replica:8000"
    assert compose["replica"]["scale"] == 2
    configuration = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
    read = set(re.findall(r"\$\{(\w+)\}", configuration))
    assert read == set(balancer["environment"])


def test_a_replica_drains_until_the_balancer_has_seen_it(compose: Services) -> None:
    configuration = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
    rule = re.search(r"check inter (\d)s fastinter (\d+)ms .* fall (\d)", configuration)
    assert rule is not None
    inter, fast, fall = map(int, rule.groups())
    seen = inter + (fall - 1) * fast / 1000
    assert int(compose["replica"]["environment"]["HEADSCOPE_DRAIN_DELAY_SECONDS"]) >= 2 * seen
