"""`HEADSCOPE_*` environment variables as a source of settings.

Unknown variables with this prefix are rejected, since a misspelt API key or limit would silently
have no effect. Variables of models and artifacts are ignored if a flag names either.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

PRECISION_OF_ARTIFACT = (
    "a precision is for a model's export, and an artifact has its own: "
    "leave --precision or HEADSCOPE_PRECISION out"
)
SERVICE_LINK = (
    "is set by Kubernetes for a service called headscope: disable such variables with "
    "`enableServiceLinks: false` in the pod's spec"
)
_OF_KUBERNETES = re.compile(r"service_(host|port)(_\w+)?|port_\d+_(tcp|udp|sctp)(_\w+)?")
SERVED = {"model", "artifact"}
"""Settings that choose what is served."""
HIDDEN = ("tables", "cached")
"""Settings without a flag and a variable."""
OF_MODELS = {*SERVED, "revision", "pooling"}
"""Settings that belong to the models that `SERVED` chooses."""
_LISTED = {*SERVED, "served_model_name", "alias", "pinned"}


def listed(value: object) -> object:
    """Return a single name or folder as a tuple, other values unchanged."""
    return (value,) if isinstance(value, str | Path) else value


class Variables(EnvSettingsSource):
    """Source of `HEADSCOPE_*` variables, without models and artifacts if a flag names one."""

    def __call__(self) -> dict[str, object]:
        """Return the values by setting; values of flags and arguments are in `current_state`.

        Raises:
            ValueError: a variable is not a setting, models and artifacts are both set by
                variables, or an artifact and a precision are both set.

        """
        if unknown := self._unknown():
            raise ValueError("; ".join(unknown))
        values = super().__call__()
        if SERVED & self.current_state.keys():
            served = {*OF_MODELS}
            if "artifact" in self.current_state:
                served.add("precision")
            values = {name: value for name, value in values.items() if name not in served}
        if values.keys() >= SERVED:
            raise ValueError(
                "HEADSCOPE_MODEL and HEADSCOPE_ARTIFACT are both given: leave one out, or give "
                "both as flags to serve both"
            )
        exclusive = {"artifact", "precision"}
        if values.keys() & exclusive and (self.current_state | values).keys() >= exclusive:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return values

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> object:
        """Decode a variable from JSON; names and folders may also be plain text."""
        if field_name not in _LISTED:
            return super().decode_complex_value(field_name, field, value)
        try:
            decoded = json.loads(value)
        except json.JSONDecodeError:
            return value
        return decoded if isinstance(decoded, list) else value

    def _unknown(self) -> list[str]:
        """Return an error message for each unknown variable, without its value."""
        prefix = self.env_prefix.lower()
        names = [name for name in self.settings_cls.model_fields if name not in HIDDEN]
        messages = []
        for variable in sorted(self.env_vars):  # names are in lower case
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and name not in names:
                if _OF_KUBERNETES.fullmatch(name):
                    return [f"{variable.upper()} {SERVICE_LINK}"]
                (likely,) = difflib.get_close_matches(name, names, 1) or [""]
                hint = f": did you mean {(prefix + likely).upper()}?" if likely else ""
                messages.append(f"{variable.upper()} is not a setting{hint}")
        return messages
