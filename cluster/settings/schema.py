"""Every setting: name, type, default, environment variable and meaning.

A setting's attribute name is its key in the file. Its environment variable is ``DW_`` or, for what
only Headrace has, ``HEADRACE_`` and the same name in capitals (``REDIS_URL`` is the exception).
Times are whole seconds unless the text says otherwise; the ``matching`` section takes durations
(``200ms``, ``5m``) and holds seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from cluster.settings.origins import DEFAULT, Origin
from cluster.settings.values import (
    Count,
    CountOrZero,
    Durability,
    Duration,
    HeaderName,
    ImportPath,
    JsonObject,
    KeyPrefix,
    LabelLimit,
    Limit,
    Listen,
    Namespace,
    PageSize,
    Partitions,
    PendingPerQueue,
    PollSeconds,
    RedisUrl,
    RetentionDays,
    UpdateWait,
    is_loopback,
    split_listen,
)


class AuthDriver(StrEnum):
    """How requests prove who they are (``server-behaviour 2.1``)."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105
    SIGNATURE = "signature"


class Tracing(StrEnum):
    """Where a node's spans go."""

    OFF = "off"
    OTLP = "otlp"


class LogFormat(StrEnum):
    """``auto`` is ``console`` on a terminal and ``json`` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


class MatchingSettings(BaseModel):
    """The ``matching`` section of the file; keys are written in camelCase there."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_camel, validate_by_name=True)

    dispatch_wait: Duration = Field(10.0, description="total time to find a worker for one RPC")
    sticky_wait: Duration = Field(5.0, description="time to try the worker that served the flow before")
    sync_match_wait: Duration = Field(0.2, gt=0, description="time to try any worker before a step is queued")
    heads_resync_interval: Duration = Field(300.0, description="interval of the check for lost heads; 0: off")
    max_concurrent_tasks_cap: Count = Field(256, description="most streams of one worker on a node")
    max_streams: Count = Field(100_000, description="most worker streams on a node")
    unsupported_type_cache_entries: Count = Field(10_000, description="most remembered unsupported types")
    max_queue_length: Count = Field(256, description="longest queue name, in characters")
    max_flow_types: Count = Field(256, description="most types in one worker registration")
    max_flow_type_length: Count = Field(256, description="longest registered type, in characters")
    ping_interval: Duration = Field(20.0, gt=0, description="interval of pings on idle worker streams")
    drain_wait: Duration = Field(30.0, description="time a node that stops gives steps on its streams")

    @model_validator(mode="after")
    def _waits_fit(self) -> Self:
        if self.sticky_wait > self.dispatch_wait:
            raise ValueError(
                "matching.stickyWait must not exceed matching.dispatchWait:"
                f" {self.sticky_wait:g} s is more than {self.dispatch_wait:g} s"
            )
        return self


def _own(default: Any, text: str) -> Any:
    """A setting whose variable starts with ``HEADRACE_``."""
    return Field(default, description=text, json_schema_extra={"prefix": "HEADRACE_"})


def _dw(default: Any, text: str) -> Any:
    """A setting whose variable starts with ``DW_``."""
    return Field(default, description=text, json_schema_extra={"prefix": "DW_"})


def _dw_from(source: str, text: str, factor: int = 1, floor: int = 0) -> Any:
    """A ``DW_`` setting that defaults to ``max(factor x the setting source, floor)``."""
    return Field(
        default_factory=lambda data: max(factor * data[source], floor),
        description=text,
        json_schema_extra={"prefix": "DW_"},
    )


def _secret(text: str) -> Any:
    return Field(None, description=text, repr=False, json_schema_extra={"prefix": "DW_", "secret": True})


class Settings(BaseModel):
    """All settings of one process. ``origins`` tells where each value came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0",
        description="the Redis or Valkey server",
        repr=False,
        json_schema_extra={"variable": "REDIS_URL", "secret": True},
    )
    listen: Listen = _own("127.0.0.1:8080", "address the API listens on, HOST:PORT")
    worker_listen: Listen | None = _own(
        None, "second address, HOST:PORT, that serves the routes of workers only, faster; unset: none"
    )
    worker_connections: Count = _own(10_000, "most connections to that second address")
    node_name: str = Field(
        default_factory=socket.gethostname,
        description="this node's name; unique in the cluster",
        json_schema_extra={"prefix": "HEADRACE_"},
        min_length=1,
        max_length=128,
    )
    durability: Durability = _own("memory", "when a write counts as done: memory, fsync or replica:N")
    partitions: Partitions = _own(16, "partitions of a new cluster; fixed at the first start")
    key_prefix: KeyPrefix = _own("hr1", "first part of every Redis key and channel")
    log_level: Literal["debug", "info", "warning", "error"] = _own("info", "lowest level that is logged")
    log_format: LogFormat = _own(LogFormat.AUTO, "auto, json or console")
    tracing: Tracing = _own(Tracing.OFF, "off, or otlp: spans go where OTEL_EXPORTER_OTLP_ENDPOINT says")
    metrics_prefix: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", max_length=64)] = _own(
        "headrace", "first part of the names of the step queue's metrics"
    )
    console: bool = _own(True, "serve the web console at /console")
    force_no_auth: bool = _own(False, "allow DW_AUTH_DRIVER=none on an address others can reach")

    mode: Literal["service"] = _dw("service", "service: workers poll")
    task_dispatch_mode: Literal["poll"] = _dw("poll", "poll: workers pull their tasks")
    server_id: str = Field(
        default_factory=lambda data: data["node_name"],
        description="name shown in cluster info; default: the node's name",
        json_schema_extra={"prefix": "DW_"},
        min_length=1,
        max_length=128,
    )
    default_namespace: Namespace = _dw("default", "namespace of requests that name none")

    auth_driver: AuthDriver = _dw(AuthDriver.TOKEN, "token, signature or none")
    auth_token: str | None = _secret("one token for everything")
    worker_token: str | None = _secret("token of workers")
    operator_token: str | None = _secret("token of operators")
    admin_token: str | None = _secret("token of administrators")
    signature_key: str | None = _secret("one signature key for everything")
    worker_signature_key: str | None = _secret("signature key of workers")
    operator_signature_key: str | None = _secret("signature key of operators")
    admin_signature_key: str | None = _secret("signature key of administrators")
    auth_backward_compatible: bool = _dw(True, "accept the shared token or key beside the roles'")

    auth_provider: ImportPath | None = _dw(None, "MODULE:NAME of code of your own that replaces auth_driver")

    trust_forwarded_attribution_headers: bool = _dw(
        False, "believe the four headers below: every client comes through a gateway that sets them"
    )
    caller_type_header: HeaderName = _dw(
        "X-Workflow-Caller-Type", "header that says what kind of caller asks"
    )
    caller_label_header: HeaderName = _dw("X-Workflow-Caller-Label", "header that names the caller")
    auth_status_header: HeaderName = _dw("X-Workflow-Auth-Status", "header with the gateway's verdict")
    auth_method_header: HeaderName = _dw(
        "X-Workflow-Auth-Method", "header that says how the caller signed in"
    )

    worker_poll_timeout: PollSeconds = _dw(30, "how long a poll waits when it does not say")
    worker_poll_interval_ms: Count = _dw(1000, "how often a parked poll looks without a wake, in ms")
    history_page_size_default: PageSize = _dw(500, "events in a workflow task's first page")
    history_page_size_max: PageSize = _dw(1000, "most events a worker may ask for")
    workflow_task_timeout: Count = _dw(60, "lease of a workflow task")
    activity_task_timeout: Count = _dw(300, "lease of an activity task")
    worker_stale_after_seconds: Count = _dw_from(
        "worker_poll_timeout",
        "silence after which a worker is stale; default: max(2 x poll timeout, 60)",
        2,
        60,
    )

    workflow_task_max_active_leases_per_queue: Limit = _dw(None, "leased workflow tasks a queue")
    workflow_task_max_active_leases_per_namespace: Limit = _dw(None, "leased workflow tasks a namespace")
    workflow_task_max_dispatches_per_minute: Limit = _dw(None, "workflow tasks a queue and minute")
    workflow_task_max_dispatches_per_minute_per_namespace: Limit = _dw(
        None, "workflow tasks a namespace and minute"
    )
    activity_task_max_active_leases_per_queue: Limit = _dw(None, "leased activities a queue")
    activity_task_max_active_leases_per_namespace: Limit = _dw(None, "leased activities a namespace")
    activity_task_max_dispatches_per_minute: Limit = _dw(None, "activities a queue and minute")
    activity_task_max_dispatches_per_minute_per_namespace: Limit = _dw(
        None, "activities a namespace and minute"
    )
    step_task_max_active_leases_per_queue: Limit = _dw(None, "steps of a flow type in workers' hands")
    step_task_max_active_leases_per_namespace: Limit = _dw(None, "steps of a namespace in workers' hands")
    step_task_max_dispatches_per_minute: Limit = _dw(None, "steps a flow type and minute")
    step_task_max_dispatches_per_minute_per_namespace: Limit = _dw(None, "steps a namespace and minute")
    task_queue_admission_overrides: JsonObject = _dw({}, "limits of single queues and namespaces, JSON")

    query_task_timeout: CountOrZero = _dw_from(
        "worker_poll_timeout", "how long a query waits for its answer; default: the poll timeout"
    )
    query_task_lease_timeout: Count = _dw_from(
        "workflow_task_timeout", "lease of a query task; default: the workflow task timeout"
    )
    query_task_ttl_seconds: Count = _dw(180, "how long an answered query task is kept")
    query_task_max_pending_per_queue: PendingPerQueue = _dw(1024, "open query tasks a queue, 1 to 10000")

    max_history_events: CountOrZero = _dw(50_000, "most events of a run, which fails with more; 0: no limit")
    history_retention_days: RetentionDays = _dw(30, "days a closed run is kept in a new namespace")
    max_payload_bytes: Count = _dw(2 * 1024 * 1024, "largest request body")
    max_memo_bytes: Count = _dw(256 * 1024, "largest memo")
    max_search_attributes: Count = _dw(100, "most search attributes")
    max_search_attribute_key_length: Count = _dw(128, "longest search attribute name")
    max_search_attribute_value_bytes: Count = _dw(2048, "largest search attribute value")
    max_operation_name_length: CountOrZero = _dw(256, "longest signal, query or update name; 0: no limit")
    max_pending_activities: CountOrZero = _dw(2000, "most open activities of a run; 0: no limit")
    max_pending_children: CountOrZero = _dw(2000, "most open children of a run; 0: no limit")

    v2_limit_pending_activities: CountOrZero = _dw(2000, "most open activities of a run; 0: no limit")
    v2_limit_pending_children: CountOrZero = _dw(1000, "most open children of a run; 0: no limit")
    v2_limit_pending_timers: CountOrZero = _dw(2000, "most open timers of a run; 0: no limit")
    v2_limit_pending_signals: CountOrZero = _dw(5000, "most unread signals of a run; 0: no limit")
    v2_limit_pending_updates: CountOrZero = _dw(500, "most open updates of a run; 0: no limit")
    v2_limit_command_batch_size: CountOrZero = _dw(1000, "most commands of a completion; 0: no limit")
    v2_limit_payload_size_bytes: CountOrZero = _dw(2 * 1024 * 1024, "largest payload; 0: no limit")
    v2_limit_memo_size_bytes: CountOrZero = _dw(256 * 1024, "largest memo; 0: no limit")
    v2_limit_search_attribute_size_bytes: CountOrZero = _dw(
        40_960, "all search attributes of a run; 0: no limit"
    )
    v2_limit_history_transaction_size: CountOrZero = _dw(5000, "most events of a decision; 0: no limit")
    v2_update_wait_completion_timeout_seconds: UpdateWait = _dw(
        10, "how long the caller of an update waits when it does not say, 1 to 50"
    )

    expose_package_provenance: bool = _dw(False, "show the file below in cluster info, to administrators")
    package_provenance_path: str = _dw(
        ".package-provenance", "what was built into this installation, best as JSON"
    )
    compression_enabled: bool = _dw(True, "compress large responses for clients that ask")
    metrics_workflow_task_failure_type_limit: LabelLimit = _dw(20, "workflow types a metric names, 1 to 100")
    bootstrap_retries: CountOrZero = _dw(0, "how often a start tries again to reach Redis; 0: fail at once")
    bootstrap_delay_seconds: CountOrZero = _dw(2, "pause between those tries")
    env_audit_strict: bool = _dw(True, "refuse unknown DW_ variables; false: only warn")

    matching: MatchingSettings = Field(default_factory=MatchingSettings, description="matching of tasks")

    @property
    def listen_host(self) -> str:
        return split_listen(self.listen)[0]

    @property
    def listen_port(self) -> int:
        return split_listen(self.listen)[1]

    @property
    def worker_address(self) -> tuple[str, int] | None:
        """Host and port of the worker listener, or None."""
        return None if self.worker_listen is None else split_listen(self.worker_listen)

    def origin(self, key: str) -> Origin:
        """Where the value of ``key`` (``listen``, ``matching.stickyWait``) came from."""
        return self._origins.get(key, DEFAULT)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looked wrong when the settings were read, but was allowed."""
        return self._warnings

    def annotated(self, origins: Mapping[str, Origin], warnings: tuple[str, ...]) -> Self:
        """The same settings, knowing where their values came from and what looked wrong."""
        copy = self.model_copy()
        copy._origins = dict(origins)
        copy._warnings = warnings
        return copy

    @model_validator(mode="after")
    def _no_auth_stays_local(self) -> Self:
        addresses = [address for address in (self.listen, self.worker_listen) if address is not None]
        public = [address for address in addresses if not is_loopback(split_listen(address)[0])]
        if self.auth_driver is AuthDriver.NONE and public and not self.force_no_auth:
            raise ValueError(
                f"DW_AUTH_DRIVER=none on {public[0]} would let everybody in: listen on 127.0.0.1,"
                " set DW_AUTH_DRIVER=token with DW_AUTH_TOKEN, or set HEADRACE_FORCE_NO_AUTH=true"
            )
        return self

    @model_validator(mode="after")
    def _roles_differ(self) -> Self:
        for kind, text in (("token", "token"), ("signature_key", "signature key")):
            names = [f"{role}_{kind}" for role in ("worker", "operator", "admin")]
            seen: dict[str, str] = {}
            for name in names:
                secret = getattr(self, name)
                if secret and secret in seen:
                    raise ValueError(
                        f"DW_{seen[secret].upper()} and DW_{name.upper()} are the same {text}:"
                        " nobody could tell the two roles apart; give each its own"
                    )
                seen[secret] = name
        return self

    @model_validator(mode="after")
    def _page_sizes_fit(self) -> Self:
        if self.history_page_size_default > self.history_page_size_max:
            raise ValueError(
                "DW_HISTORY_PAGE_SIZE_DEFAULT must not exceed DW_HISTORY_PAGE_SIZE_MAX:"
                f" {self.history_page_size_default} is more than {self.history_page_size_max}"
            )
        return self
