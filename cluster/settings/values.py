"""Types of setting values that need more than pydantic's own parsing."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from cluster.admission.limits import parse_limit

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]+):([0-9]{1,5})")
_DURABILITY = re.compile(r"memory|fsync|replica:[1-9][0-9]?")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_REDIS_SCHEME = re.compile(r"(?:(?:redis|valkey)s?(?:\+(?:sentinel|cluster))?|unix)://.")
_PASSWORD_ARGUMENT = re.compile(r"(password=)[^&#]*")
_KEY_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,32}")
_HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("must be a duration such as 200ms, 10s or 5m")
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration such as 200ms, 10s or 5m")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def split_listen(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; raises ValueError for anything else."""
    match = _HOST_PORT.fullmatch(address.strip())
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080")
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def mask_url(url: str) -> str:
    """``url`` with its passwords replaced by ``***``."""
    url = _PASSWORD_ARGUMENT.sub(r"\1***", url)
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at or ":" not in user:
        return url
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}"))


def _listen(value: str) -> str:
    split_listen(value)
    return value.strip()


def _durability(value: str) -> str:
    if not _DURABILITY.fullmatch(value):
        raise ValueError("must be memory, fsync or replica:N with N from 1 to 99")
    return value


def _redis_url(value: str) -> str:
    if not _REDIS_SCHEME.match(value):
        raise ValueError(
            "must be a URL that starts with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        )
    return value


def _namespace(value: str) -> str:
    if not _NAMESPACE.fullmatch(value):
        raise ValueError("must be 1 to 128 letters, digits, dots, underscores or hyphens")
    return value.lower()


def _key_prefix(value: str) -> str:
    if not _KEY_PREFIX.fullmatch(value):
        raise ValueError("must be 1 to 32 letters, digits, dots, underscores or hyphens")
    return value


def _json_object(value: Any) -> Any:
    """Anything but a JSON object means that there is nothing in it (``server-behaviour 6.1``)."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def ignored(key: str, value: Any) -> str | None:
    """Why an admission setting means nothing as it is written, or None when it means something.

    Such a value does not stop the start, because it never did for this protocol's servers.
    """
    if key == "task_queue_admission_overrides":
        empty = not value or (isinstance(value, str) and value.replace(" ", "") == "{}")
        return None if empty or _json_object(value) else "is not a JSON object, so it limits nothing"
    is_limit = "_task_max_active_leases_per_" in key or "_task_max_dispatches_per_minute" in key
    if is_limit and parse_limit(value) is None and str(value).strip() not in ("", "0"):
        return "is not a number above 0, so it is no limit"
    return None


def _clamp(low: int, high: int) -> AfterValidator:
    return AfterValidator(lambda value: min(max(value, low), high))


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
PollSeconds = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=60)]
UpdateWait = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=50)]
Partitions = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=1024)]
RetentionDays = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=365)]
PageSize = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=1000)]
PendingPerQueue = Annotated[int, BeforeValidator(_no_bool), _clamp(1, 10_000)]
LabelLimit = Annotated[int, BeforeValidator(_no_bool), _clamp(1, 100)]
Limit = Annotated[int | None, BeforeValidator(parse_limit)]
Duration = Annotated[float, BeforeValidator(_seconds)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_json_object)]
Listen = Annotated[str, AfterValidator(_listen)]
Durability = Annotated[str, AfterValidator(_durability)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
Namespace = Annotated[str, AfterValidator(_namespace)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)]
HeaderName = Annotated[str, Field(pattern=_HEADER_NAME, max_length=128)]
KeyPrefix = Annotated[str, AfterValidator(_key_prefix)]
