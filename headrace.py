"""Headrace, a durable task server over Redis. The code lives in ``cluster`` and ``nodes``.

Applications import from here: flows and steps, the worker that runs them, the client that drives them.
"""

from cluster.settings import Settings, load_settings
from cluster.version import VERSION
from nodes.worker.client import Client, FlowHandle, FlowOutcome
from nodes.worker.client_errors import (
    ClientError,
    FlowAlreadyStarted,
    FlowFailed,
    FlowNotActive,
    FlowNotFound,
    FlowStillRunning,
    InvalidRequest,
    NotAuthorized,
    RpcFailed,
    RpcLockConflict,
    RpcOutcomeUnknown,
    RpcUnavailable,
    ServerUnavailable,
    UnknownRpc,
    UnsupportedServer,
)
from nodes.worker.context import ConditionResult, RpcContext, StepContext
from nodes.worker.decisions import (
    Decision,
    Wait,
    channel,
    complete,
    dead_end,
    fail,
    fan_out,
    timer,
    wait_all,
    wait_any,
)
from nodes.worker.errors import (
    CredentialError,
    DefinitionError,
    NonRetryableError,
    ProtocolVersionError,
    PullRegistrationError,
    StepError,
    StreamRejected,
    TaskLimitTooHigh,
    WorkerConfigurationError,
    WorkerError,
    WorkerStopped,
)
from nodes.worker.flow import Flow, rpc
from nodes.worker.options import MethodOptions, RetryPolicy, StepOptions
from nodes.worker.probe import readiness_answer, readiness_probe
from nodes.worker.readiness import QueueReadiness
from nodes.worker.steps import Step, goto, step
from nodes.worker.worker import Worker

__version__ = VERSION

__all__ = [
    "Client",
    "ClientError",
    "ConditionResult",
    "CredentialError",
    "Decision",
    "DefinitionError",
    "Flow",
    "FlowAlreadyStarted",
    "FlowFailed",
    "FlowHandle",
    "FlowNotActive",
    "FlowNotFound",
    "FlowOutcome",
    "FlowStillRunning",
    "InvalidRequest",
    "MethodOptions",
    "NonRetryableError",
    "NotAuthorized",
    "ProtocolVersionError",
    "PullRegistrationError",
    "QueueReadiness",
    "RetryPolicy",
    "RpcContext",
    "RpcFailed",
    "RpcLockConflict",
    "RpcOutcomeUnknown",
    "RpcUnavailable",
    "ServerUnavailable",
    "Settings",
    "Step",
    "StepContext",
    "StepError",
    "StepOptions",
    "StreamRejected",
    "TaskLimitTooHigh",
    "UnknownRpc",
    "UnsupportedServer",
    "Wait",
    "Worker",
    "WorkerConfigurationError",
    "WorkerError",
    "WorkerStopped",
    "__version__",
    "channel",
    "complete",
    "dead_end",
    "fail",
    "fan_out",
    "goto",
    "load_settings",
    "readiness_answer",
    "readiness_probe",
    "rpc",
    "step",
    "timer",
    "wait_all",
    "wait_any",
]
