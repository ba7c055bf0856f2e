"""Plan of all workers, in a file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.models import plan
from service.models.plan import Plan, PlanFile, PlannedVersions
from tests.service.harness import until


def test_no_change_of_several_workers_is_lost(tmp_path: Path) -> None:
    def change(number: int) -> None:
        planned = PlannedVersions(number=number, versions=[])
        PlanFile(tmp_path).change(lambda plan: plan.loaded.update({f"m{number}": planned}))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(change, range(40)))
    written = PlanFile(tmp_path).read()
    assert written.number == 40
    assert {name: one.number for name, one in written.loaded.items()} == {
        f"m{number}": number for number in range(40)
    }


@pytest.mark.anyio
async def test_it_is_followed_from_the_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FOLLOW_SECONDS", 0.001)
    file, followed, looks = PlanFile(tmp_path), list[int](), list[None]()

    async def follow(new: Plan) -> None:
        followed.append(new.number)
        if new.number == 2:
            raise RuntimeError

    file.change(lambda plan: plan.aliases.update(a=[]))
    async with file.following(follow, lambda: looks.append(None)):
        assert followed == [1]
        file.change(lambda plan: plan.aliases.update(b=[]))
        await until(lambda: followed == [1, 2])
        file.change(lambda plan: plan.aliases.update(c=[]))
        await until(lambda: followed == [1, 2, 3])
        await until(lambda: looks)
