"""Path parameter for the name of a model."""

from __future__ import annotations

from starlette.convertors import PathConvertor, register_url_convertor


class NameConvertor(PathConvertor):
    """Convertor that matches any text, unlike Starlette's `path` also newlines.

    A path that matches no route would be answered in the native error format, not in the format
    of its dialect.
    """

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())
MODEL_PARAMETER = "{model:name}"
"""Parameter `model` of a path; the name may contain slashes, percent-encoded or not."""
