"""The documented reply of /attention has every field that is sent, and no other type."""

from __future__ import annotations

import dataclasses
import json

from service.api.native.attention.replies import AttentionReply, AttentionResult
from service.inference.attention.map_parts import MapPart
from tests.service.api.native.attention import test_writers_targets


def test_replies_have_the_documented_fields() -> None:
    part = MapPart(queries=(0,), keys=(0,), max_size=1)
    sent: set[str] = set()
    for selection in test_writers_targets.selections():
        rollouts = {"norm_rollout"} if "rollout" in selection.include else set()
        asked = dataclasses.replace(
            selection,
            include=selection.include.union(rollouts),
            part=MapPart() if selection.top_k else part,
        )
        body = test_writers_targets.written(asked, binary=False)
        content = json.loads(body)
        AttentionReply.model_validate_json(json.dumps(content | {"heads": []}), strict=True)
        sent.update(*content["results"])
    of_pictures = {"grid", "size", "crop", "tower"}
    assert sent == AttentionResult.model_fields.keys() - of_pictures
