"""Order of the test files, and files that one process runs because they share started services."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

LONGEST = (
    "trials",
    "test_lesser_processor.py",
    "model/export",
    "service/inference/test_core_precisions.py",
    "service/engines/test_torch.py",
    "journeys",
)
"""Tests that run first, so that at the end no process waits for another."""
DASHBOARD = "tests/journeys/dashboard/"
OF_THE_DEFAULT_SERVICE = tuple(
    f"tests/journeys/test_{name}.py"
    for name in ("attention", "bad_input", "notebook", "numbers", "recipes")
)
"""Files whose tests ask `tests.journeys.conftest.server`."""
OF_THE_PYTORCH_PROCESS = tuple(
    f"tests/service/{name}.py"
    for name in (
        *("api/native/attention/test_scores", "api/native/test_encode_layers"),
        *("api/native/test_explain", "engines/test_runtime", "health/test_golden"),
        *("health/test_live_verification", "health/test_engine"),
    )
)
"""Files whose tests ask `tests.service.conftest.torch_engine`."""
GROUPS = {"the default service": OF_THE_DEFAULT_SERVICE, "PyTorch": OF_THE_PYTORCH_PROCESS}


def place(path: str) -> int:
    """Return the place of a file, relative to `tests`, among those that run first."""
    return next((i for i, one in enumerate(LONGEST) if path.startswith(one)), len(LONGEST))


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Scheduler that gives each file to one process, and some files to the same process.

    The files of the dashboard are two groups, of similar length, so that two processes rather than
    all start a browser and a service.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(DASHBOARD):
            return f"{DASHBOARD}{'a-l' if file < f'{DASHBOARD}test_m' else 'm-z'}"
        return next((name for name, files in GROUPS.items() if file in files), file)
