"""Counts of the replies' headers, and one warning of each kind."""

import warnings

import httpx
import pytest

from headscope import AsyncClient, Client, TextWarning, Warnings
from headscope.errors import InvalidReply
from tests.clients.python.fake import INFO


def service(**headers):
    """Return a service whose every reply has these headers."""
    sent = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}

    def answer(request):
        return httpx.Response(200, headers=sent, json=INFO)

    return httpx.MockTransport(answer)


def test_replies_are_counted_and_each_kind_is_warned_of_once():
    with Client("http://there", transport=service(truncated="2", prompt_missing="1")) as client:
        with pytest.warns(TextWarning) as reported:
            client.info()
        assert sorted(str(one.message).split(";")[0] for one in reported) == [
            "1 text was computed without a prompt, though the model names prompts",
            "2 texts were cut to the most tokens",
        ]
        with warnings.catch_warnings(action="error"):
            client.info()
        assert client.warnings == Warnings(truncated=4, prompt_missing=2, unknown_tokens=0)


@pytest.mark.anyio
async def test_the_other_client_counts_too():
    async with AsyncClient("http://there", transport=service(unknown_tokens="1")) as client:
        with pytest.warns(TextWarning, match="1 text was computed with more than a tenth"):
            await client.info()
        assert client.warnings == Warnings(unknown_tokens=1)


def test_nothing_is_counted_without_headers():
    with Client("http://there", transport=service()) as client:
        client.info()
        assert client.warnings == Warnings()


def test_a_header_that_is_no_number_is_not_of_this_service():
    there = service(truncated="some")
    with Client("http://there", transport=there) as client, pytest.raises(InvalidReply):
        client.info()
