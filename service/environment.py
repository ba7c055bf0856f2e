"""The `HEADSCOPE_*` variables as a source of settings.

A variable of that prefix that is no setting is refused: misspelt, it would be a key or a limit that
nobody holds. Those of what is served count only where no flag says what is served.
"""

from __future__ import annotations

import difflib
from typing import Any

from pydantic_settings import EnvSettingsSource

PRECISION_OF_ARTIFACT = (
    "a precision is for a model's export, and an artifact has its own: "
    "leave --precision or HEADSCOPE_PRECISION out"
)
_SERVED = {"model", "artifact"}


class Variables(EnvSettingsSource):
    """The `HEADSCOPE_*` variables; not those of what is served where a flag has it."""

    def __call__(self) -> dict[str, Any]:
        """The values by setting; those of flags and arguments are in `current_state`.

        Raises:
            ValueError: a variable is no setting; a model and an artifact are given, by two flags or
                by two variables; or an artifact and a precision, by either.

        """
        if unknown := self._unknown():
            raise ValueError("; ".join(unknown))
        values = super().__call__()
        if _SERVED & self.current_state.keys():
            served = {*_SERVED, "revision"}
            if "artifact" in self.current_state:
                served.add("precision")
            values = {name: value for name, value in values.items() if name not in served}
        flags = self.settings_sources_data.get("CliSettingsSource", {})
        for given, names in (
            (flags, "--model and --artifact"),
            (values, "HEADSCOPE_MODEL and HEADSCOPE_ARTIFACT"),
        ):
            if given.keys() >= _SERVED:
                raise ValueError(f"{names} are both given: one of them is served")
        if (flags | values).keys() >= {"artifact", "precision"}:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return values

    def _unknown(self) -> list[str]:
        """What is said of each variable that is no setting, and never its value."""
        prefix, names = self.env_prefix.lower(), list(self.settings_cls.model_fields)
        said = []
        for variable in sorted(self.env_vars):  # in lower case, as their names are read
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and name not in names:
                (likely,) = difflib.get_close_matches(name, names, 1) or [""]
                hint = f": did you mean {(prefix + likely).upper()}?" if likely else ""
                said.append(f"{variable.upper()} is no setting{hint}")
        return said
