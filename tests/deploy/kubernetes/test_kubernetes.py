"""deploy/kubernetes, rendered by kubectl and validated by Kubernetes' published schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.process.server import IDLE_SECONDS
from service.settings import Settings
from tests.deploy.tools import ROOT, run

yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "overlays/cpu", "overlays/gpu")
LABELS = {"app.kubernetes.io/name": "headscope"}
OLDEST = "1.30"
"""Oldest validated version of Kubernetes, beside the newest one of the validator."""
UNKNOWN = "Couldn't find schema for kind ServiceMonitor"
"""Message for the Prometheus operator's kind, which has no schema in Kubernetes."""
Resources = dict[str, dict[str, Any]]


def rendered(overlay: str) -> tuple[str, Resources]:
    text = run("kubectl", "kustomize", str(FOLDER / overlay))
    return text, {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod(resources: Resources) -> dict[str, Any]:
    found: dict[str, Any] = resources["Deployment"]["spec"]["template"]["spec"]
    return found


def container(resources: Resources) -> dict[str, Any]:
    (found,) = pod(resources)["containers"]
    return dict(found)


def settings_of(resources: Resources) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(resources)["env"]}


@pytest.fixture(scope="module")
def base() -> Resources:
    return rendered("base")[1]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_holds_to_the_schemas(overlay: str, tmp_path: Path) -> None:
    path = tmp_path / "rendered.yaml"
    path.write_text(rendered(overlay)[0], encoding="utf-8")
    for version in ((), ("--kubernetes-version", OLDEST)):
        reported = run("kubernetes-validate", "--strict", "--quiet", *version, str(path))
        assert [line for line in reported.splitlines() if UNKNOWN not in line] == []


def test_pods_are_restricted(base: Resources) -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards, Restricted
    spec, found = pod(base), container(base)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
    assert all(set(volume) <= {"name", "emptyDir", "secret"} for volume in spec["volumes"])
    assert spec["automountServiceAccountToken"] is False


def test_the_service_s_name_sets_no_setting(base: Resources) -> None:
    # Kubernetes would give the pods of a Service `headscope` a HEADSCOPE_PORT of tcp://10.0.0.1:80
    assert base["Service"]["metadata"]["name"] == "headscope"
    assert pod(base)["enableServiceLinks"] is False


def test_everything_selects_the_pods_of_the_service_alone(base: Resources) -> None:
    assert base["Deployment"]["spec"]["template"]["metadata"]["labels"] == LABELS
    assert base["Deployment"]["spec"]["selector"]["matchLabels"] == LABELS
    assert base["Service"]["spec"]["selector"] == LABELS
    assert base["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == LABELS
    assert base["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == LABELS
    monitor = rendered("overlays/cpu")[1]["ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"] == base["Service"]["metadata"]["labels"]


def test_a_pod_is_told_settings_that_there_are(base: Resources) -> None:
    reported = {one.removeprefix("HEADSCOPE_").lower() for one in settings_of(base)}
    assert reported <= Settings.model_fields.keys()


def test_a_pod_has_time_to_drain(base: Resources) -> None:
    found = settings_of(base)
    delay, drain = (int(found[f"HEADSCOPE_DRAIN_{name}"]) for name in ("DELAY_SECONDS", "SECONDS"))
    assert pod(base)["terminationGracePeriodSeconds"] > delay + drain + IDLE_SECONDS
    probe = container(base)["readinessProbe"]
    assert delay > probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


def test_probes_ask_the_routes_that_need_no_key(base: Resources) -> None:
    probes = {name: value["httpGet"] for name, value in container(base).items() if "Probe" in name}
    assert probes == {
        "startupProbe": {"path": "/health/ready", "port": "http"},
        "readinessProbe": {"path": "/health/ready", "port": "http"},
        "livenessProbe": {"path": "/health/live", "port": "http"},
    }


def test_ports_are_the_service_s(base: Resources) -> None:
    ports = {one["name"]: one["containerPort"] for one in container(base)["ports"]}
    metrics_port = int(settings_of(base)["HEADSCOPE_METRICS_PORT"])
    assert ports == {"http": Settings.model_fields["port"].default, "metrics": metrics_port}
    policy = base["NetworkPolicy"]["spec"]
    assert [rule["ports"] for rule in policy["ingress"]] == [
        [{"port": "http"}],
        [{"port": "metrics"}],
    ]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not policy.get("egress")


def test_keys_come_from_a_secret_as_a_file(base: Resources) -> None:
    (mount,) = [one for one in container(base)["volumeMounts"] if one["name"] == "keys"]
    assert settings_of(base)["HEADSCOPE_KEYS_FILE"] == f"{mount['mountPath']}/keys"
    (volume,) = [one for one in pod(base)["volumes"] if one["name"] == "keys"]
    assert volume["secret"] == {"secretName": "headscope-keys", "defaultMode": 0o440}
    assert "Secret" not in base


def test_the_autoscaler_owns_the_number_of_replicas() -> None:
    resources = rendered("overlays/cpu")[1]
    spec = resources["HorizontalPodAutoscaler"]["spec"]
    assert "replicas" not in resources["Deployment"]["spec"]
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == "headscope_queue_seconds"
    target = int(metric["pods"]["target"]["averageValue"].removesuffix("m")) / 1000
    assert target == Settings.model_fields["queue_target_seconds"].default / 2


def test_the_adapter_gives_the_metric_that_the_autoscaler_reads() -> None:
    path = FOLDER / "components" / "autoscaling" / "prometheus-adapter.yaml"
    (rule,) = yaml.safe_load(path.read_text(encoding="utf-8"))["rules"]["custom"]
    assert rule["name"] == {"matches": "^(headscope_queue_seconds)_sum$", "as": "$1"}
    assert rule["metricsQuery"].count("headscope_queue_seconds_") == 2


def test_a_gpu_pod_gets_one_gpu_and_the_image_for_it() -> None:
    resources = rendered("overlays/gpu")[1]
    found = container(resources)
    assert found["image"] == "headscope:cuda"
    assert found["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "HEADSCOPE_THREADS" not in settings_of(resources)
    assert "HEADSCOPE_KEYS_FILE" in settings_of(resources)
