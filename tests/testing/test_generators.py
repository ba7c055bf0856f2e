"""Load generators in processes of their own begin together, and report why they ended."""

from __future__ import annotations

import pytest

from testing.generators import LoadError, check_right, generate, generate_at_once, load_beside
from testing.load import Job
from testing.process import free_port
from tests.testing.servers import answering


def job(port: int, name: str = "a", seconds: float | None = None) -> Job:
    return Job(port, [("/encode", {"inputs": name})], connections=2, seconds=seconds)


def test_a_result_comes_back() -> None:
    with answering() as asked:
        result = check_right(generate(job(asked.port)))
    assert result.outcomes == ["right"]
    assert result.cpu_seconds > 0
    assert result.seconds > 0


def test_several_run_at_once() -> None:
    with answering() as asked:
        results = generate_at_once([job(asked.port, name, 0.3) for name in "ab"])
    assert max(one.started for one in results) < min(one.ended for one in results)
    assert {body for _, _, body in asked.requests} == {b'{"inputs": "a"}', b'{"inputs": "b"}'}


def test_a_load_beside_other_work_is_cut_off() -> None:
    with answering() as asked:
        with load_beside(job(asked.port, seconds=600)):
            while len(asked.requests) < 10:
                pass
        assert len(asked.requests) >= 10


def test_a_load_beside_that_is_over_too_early() -> None:
    with (
        answering() as asked,
        pytest.raises(LoadError, match="before the work beside it"),
        load_beside(job(asked.port)) as generator,
    ):
        generator.process.wait()


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(LoadError, match="the load generator ended: ConnectionRefusedError"):
        generate(job(free_port()))


def test_a_load_that_is_refused() -> None:
    with answering(lambda *_: (429, {}, b"")) as asked:
        result = generate(job(asked.port))
    with pytest.raises(LoadError, match="shed"):
        check_right(result)
