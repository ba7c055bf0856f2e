from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.errors import ConfigError
from model.families.jina_tasks import folder_name, task_folders, task_names

PUBLISHED = {"model_type": "xlm-roberta", "position_embedding_type": "rotary"}


def test_tasks_are_named_by_the_config_or_by_folders(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model_type": "jina_embeddings_v3"}
    assert task_names(tmp_path, fields) == ()
    for name in ("summary", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    assert task_names(tmp_path, fields) == ("code", "summary")
    assert task_names(tmp_path, fields | {"lora_adaptations": ["b", "a"]}) == ("b", "a")
    assert task_names(tmp_path, {"model_type": "bert", "lora_adaptations": ["a"]}) == ()


@pytest.mark.parametrize("named", ["a", [1], [""], ["a", "a"], {"a": 1}])
def test_tasks_are_a_list_of_different_names(tmp_path: Path, named: Any) -> None:
    with pytest.raises(ConfigError, match="lora_adaptations is not a list of task names"):
        task_names(tmp_path, PUBLISHED | {"lora_adaptations": named})


def test_folders_stay_inside_the_checkpoint(tmp_path: Path) -> None:
    assert folder_name("text-matching") == "text_matching"
    assert folder_name("/../secret") == "____secret"
    assert task_folders(tmp_path, ("../a", "/b")) == []


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "a" / name).write_text("{")
    with pytest.raises(ConfigError, match=r"a/adapter_config\.json is not readable JSON"):
        task_folders(tmp_path, ("a",))
