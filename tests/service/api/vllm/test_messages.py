"""vLLM's messages have one text or one picture."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.vllm.messages import MessagesRequest

DATA = "data:image/png;base64,QQ=="
IMAGE = {"type": "image_url", "image_url": {"url": DATA}}
TEXT = {"type": "text", "text": "a"}


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def test_a_message_is_an_input() -> None:
    for content in ("a", [TEXT]):
        assert MessagesRequest.model_validate({"messages": user(content)}).given == ["a"]
    detailed = {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}}
    for part in (IMAGE, detailed):
        (picture,) = MessagesRequest.model_validate({"messages": user([part])}).given
        assert picture.source == DATA  # type: ignore[union-attr]
    null = {"messages": None, "input": "b"}
    assert MessagesRequest.model_validate(null).given == ["b"]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (user([IMAGE, TEXT]), "content has several parts, and one vector is of one"),
        ([*user("a"), *user("b")], "messages are several"),
        ([{"role": "system", "content": "a"}], r"messages\[0\] is not"),
        (user("a", name="b"), r"messages\[0\] is not"),
        ([], r"messages\[0\] is not"),
        (user([{"type": "video_url", "video_url": {"url": DATA}}]), r"content\[0\] is neither"),
        (user([{**IMAGE, "uuid": "1"}]), r"content\[0\] is neither"),
        (user([{"type": "image_url", "image_url": {"url": "QQ=="}}]), "url: a data URL"),
        (
            user([{"type": "image_url", "image_url": {"url": DATA, "detail": "high"}}]),
            "options that change nothing",
        ),
    ],
)
def test_other_messages_are_refused(messages: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MessagesRequest.model_validate({"messages": messages})


def test_either_input_or_messages() -> None:
    with pytest.raises(ValueError, match="leave out `input`"):
        MessagesRequest.model_validate({"messages": user("a"), "input": "b"})
    with pytest.raises(ValueError, match=r"input\n +Field required"):
        MessagesRequest.model_validate({})
    assert MessagesRequest.model_json_schema()["required"] == []
