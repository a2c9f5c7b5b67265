"""Reading the fields of a request: control strings, integers, dotted error names.

Rules of server-behaviour 3: strings are strings, integers may be numeric strings, control strings
are trimmed, an empty string is a missing one, and all errors are reported together. Payload data
(``input``, ``result``, ``arguments``, ``details``) is declared as ``Any`` and never touched.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from annotated_types import Ge, Le, MaxLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from cluster.errors import ValidationFailed

LONGEST_SECONDS: Final = 100 * 365 * 24 * 3600
"""No time-out may be longer: deadlines in milliseconds stay exact in every component."""

_COMPARED: Final = 64
"""How much of an unknown field's name is looked at and repeated, in characters."""

_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


class Fields(BaseModel):
    """Base of request models: unknown fields are ignored, because clients may be newer."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ClosedFields(Fields):
    """Base of models for which an unknown field is an error: ignored, a misspelt one would silently change
    what is done. A client that is newer than the node hears that it asks for more than the node can do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=Fields)


def _trim(value: Any) -> Any:
    return value.strip() or None if isinstance(value, str) else value


def _integer(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "integer")
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        if not _INTEGER.fullmatch(text):
            raise PydanticCustomError("int_type", "integer")
        return int(text)
    return value


Text = Annotated[str, BeforeValidator(_trim)]
ShortText = Annotated[str, MaxLen(255), BeforeValidator(_trim)]
OptionalText = Annotated[Annotated[str, MaxLen(255)] | None, BeforeValidator(_trim)]
Seconds = Annotated[Annotated[int, Ge(1), Le(LONGEST_SECONDS)] | None, BeforeValidator(_integer)]
Attempt = Annotated[int, Ge(1), BeforeValidator(_integer)]
Integer = BeforeValidator(_integer)
Trimmed = BeforeValidator(_trim)


_TEXTS: Final[Mapping[str, str]] = {
    "missing": "The {field} field is required.",
    "string_type": "The {field} field must be a string.",
    "string_too_long": "The {field} field must not be longer than {max_length} characters.",
    "string_pattern_mismatch": "The {field} field has an invalid format.",
    "int_type": "The {field} field must be an integer.",
    "int_from_float": "The {field} field must be an integer.",
    "int_parsing": "The {field} field must be an integer.",
    "int_parsing_size": "The {field} field is too large.",
    "greater_than": "The {field} field must be greater than {gt}.",
    "greater_than_equal": "The {field} field must be at least {ge}.",
    "less_than_equal": "The {field} field must not be greater than {le}.",
    "bool_type": "The {field} field must be true or false.",
    "bool_parsing": "The {field} field must be true or false.",
    "list_type": "The {field} field must be a list.",
    "dict_type": "The {field} field must be an object.",
    "model_type": "The {field} field must be an object.",
    "too_long": "The {field} field has too many entries.",
    "enum": "The selected {field} is invalid.",
    "literal_error": "The selected {field} is invalid.",
    "float_type": "The {field} field must be a number.",
    "float_parsing": "The {field} field must be a number.",
}


def _text(error: ErrorDetails, field: str) -> str:
    kind = error["type"]
    if error["input"] is None or (kind != "missing" and error["input"] == ""):
        kind = "missing"
    template = _TEXTS.get(kind)
    if template is None:
        return error["msg"]
    return template.format(field=field, **{k: v for k, v in error.get("ctx", {}).items() if k != "field"})


def _unknown(model: type[Fields], field: str) -> str:
    """What to say of a field that ``model`` does not have."""
    known = list(model.model_fields)
    close = difflib.get_close_matches(field[:_COMPARED], known)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known fields are {', '.join(known)}."
    return f"There is no field {field[:_COMPARED]}. {hint}"


def read(model: type[Model], values: Mapping[str, Any], also: Mapping[str, list[str]] | None = None) -> Model:
    """``values`` as ``model``. Raises ValidationFailed with every field error.

    ``also`` are errors the caller found in fields that the model does not look into.
    """
    errors = dict(also or {})
    try:
        found = model.model_validate(values)
    except ValidationError as failure:
        for error in failure.errors(include_url=False):
            field = ".".join(str(part) for part in error["loc"] if part != "[key]")
            unknown = error["type"] == "extra_forbidden"
            text = _unknown(model, field) if unknown else _text(error, field)
            errors.setdefault(field, []).append(text)
        raise ValidationFailed(errors) from None
    if errors:
        raise ValidationFailed(errors)
    return found
