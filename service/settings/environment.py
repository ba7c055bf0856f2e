"""The `HEADSCOPE_*` variables as a source of settings.

A variable of that prefix that is no setting is refused: misspelt, it would be a key or a limit that
nobody holds. Those of what is served count only where no flag says what is served.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

PRECISION_OF_ARTIFACT = (
    "a precision is for a model's export, and an artifact has its own: "
    "leave --precision or HEADSCOPE_PRECISION out"
)
SERVICE_LINK = (
    "is Kubernetes' of a service called headscope, as are more: `enableServiceLinks: false` in the "
    "pod's spec leaves them out"
)
_OF_KUBERNETES = re.compile(r"service_(host|port)(_\w+)?|port_\d+_(tcp|udp|sctp)(_\w+)?")
_SERVED = {"model", "artifact"}
_LISTED = {*_SERVED, "served_model_name", "alias", "heads_from"}


def listed(value: Any) -> Any:
    """A list of one, where a value is one name or folder."""
    return (value,) if isinstance(value, str | Path) else value


class Variables(EnvSettingsSource):
    """The `HEADSCOPE_*` variables; not those of what is served where a flag has it."""

    def __call__(self) -> dict[str, Any]:
        """The values by setting; those of flags and arguments are in `current_state`.

        Raises:
            ValueError: a variable is no setting; models and artifacts are given by two variables;
                or an artifact and a precision, by either.

        """
        if unknown := self._unknown():
            raise ValueError("; ".join(unknown))
        values = super().__call__()
        if _SERVED & self.current_state.keys():
            served = {*_SERVED, "revision", "pooling"}
            if "artifact" in self.current_state:
                served.add("precision")
            values = {name: value for name, value in values.items() if name not in served}
        if values.keys() >= _SERVED:
            raise ValueError(
                "HEADSCOPE_MODEL and HEADSCOPE_ARTIFACT are both given: leave one out, or give "
                "both as flags to serve both"
            )
        exclusive = {"artifact", "precision"}
        if values.keys() & exclusive and (self.current_state | values).keys() >= exclusive:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return values

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """The value of a variable in JSON; a name or a folder may stand there as it is."""
        if field_name not in _LISTED:
            return super().decode_complex_value(field_name, field, value)
        try:
            found = json.loads(value)
        except json.JSONDecodeError:
            return value
        return found if isinstance(found, list) else value

    def _unknown(self) -> list[str]:
        """What is said of each variable that is no setting, and never its value."""
        prefix, names = self.env_prefix.lower(), list(self.settings_cls.model_fields)
        said = []
        for variable in sorted(self.env_vars):  # in lower case, as their names are read
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and name not in names:
                if _OF_KUBERNETES.fullmatch(name):
                    return [f"{variable.upper()} {SERVICE_LINK}"]
                (likely,) = difflib.get_close_matches(name, names, 1) or [""]
                hint = f": did you mean {(prefix + likely).upper()}?" if likely else ""
                said.append(f"{variable.upper()} is no setting{hint}")
        return said
