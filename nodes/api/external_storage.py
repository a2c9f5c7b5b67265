"""External payload storage, which this server does not offer: payloads stay in the store.

The routes exist so that who asks hears that in the words of the contract, instead of "unknown path".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le

from cluster.errors import Refused
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText
from nodes.api.routes import Reply


class Driver(StrEnum):
    """Kinds of storage the contract knows."""

    LOCAL = "local"
    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"


class _Policy(Fields):
    driver: Driver
    enabled: bool = True
    threshold_bytes: Annotated[Annotated[int, Ge(1)] | None, Integer] = None
    config: dict[str, Any] | None = None


class _Test(Fields):
    driver: OptionalText = None
    small_payload_bytes: Annotated[Annotated[int, Ge(1), Le(1_048_576)], Integer]
    large_payload_bytes: Annotated[Annotated[int, Ge(1), Le(16_777_216)], Integer]


async def set_policy(call: Call) -> Reply:
    """``PUT /api/namespaces/{namespace}/external-storage``: refused, no driver is available."""
    policy = call.fields(_Policy)
    namespace = await call.node.namespaces.describe(call.parameters["namespace"])
    raise Refused(
        "storage_driver_unavailable",
        "This server has no external payload storage; payloads stay in its store.",
        status=422,
        namespace=namespace.name,
        driver=policy.driver.value,
    )


async def probe(call: Call) -> Reply:
    """``POST /api/storage/test``: refused, no namespace has external storage."""
    call.fields(_Test)
    raise Refused(
        "external_storage_not_configured",
        "The namespace has no external payload storage.",
        status=422,
        namespace=call.namespace,
    )
