"""Names in the configuration files exist; `make ray` checks that Ray accepts the files."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.ray import replica
from service.settings import Settings

FOLDER = Path(replica.__file__).parent


def applications(name: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    if "spec" in content:
        content = yaml.safe_load(content["spec"]["serveConfigV2"])
    return list(content["applications"])


@pytest.mark.parametrize("name", ["serve.yaml", "kuberay.yaml"])
def test_names_and_settings(name: str) -> None:
    (application,) = applications(name)
    module, _, attribute = application["import_path"].partition(":")
    source = (FOLDER.parents[1] / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    assert attribute in {target.id for node in assigned for target in node.targets}
    (deployment,) = application["deployments"]
    assert deployment["name"] == replica.NAME
    actor = deployment["ray_actor_options"]
    variables = actor["runtime_env"]["env_vars"]
    assert {one.removeprefix("HEADSCOPE_").lower() for one in variables} <= {*Settings.model_fields}
    assert float(variables["HEADSCOPE_THREADS"]) == actor["num_cpus"]
    scaling = deployment["autoscaling_config"]
    assert scaling["min_replicas"] < scaling["max_replicas"]


def test_ray_is_the_pinned_one() -> None:
    pins = (FOLDER / "requirements.txt").read_text(encoding="utf-8")
    content = yaml.safe_load((FOLDER / "kuberay.yaml").read_text(encoding="utf-8"))
    assert f"ray[data,serve]=={content['spec']['rayClusterConfig']['rayVersion']}\n" in pins
