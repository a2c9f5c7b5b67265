"""``dw namespace:...`` and ``storage:test``: tenants, and where their large payloads go."""

from __future__ import annotations

from typing import Annotated

from nodes.cli.dw.arguments import Yes, argument, confirm, option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.views import Result, facts, table
from nodes.cli.dw.workflows import pages

Name = Annotated[str, argument("NAMESPACE", "the namespace")]
Description = Annotated[str | None, option("--description", "-d", metavar="TEXT", text="what it is for")]
Retention = Annotated[
    int | None,
    option("--retention-days", "-r", metavar="DAYS", text="how long closed runs are kept, 1 to 365"),
]
Limit = Annotated[int, option("--limit", "-l", metavar="N", text="most to show (100)", min=1)]
_MEMBERS = "name description retention_days status"


@command(
    "namespace:list",
    table("namespaces", "name status retention_days description"),
    json="namespaces next_page_token",
    examples=("dw namespace:list", "dw namespace:list -l 500 --output jsonl"),
    watch=True,
)
def list_namespaces(dw: Dw, limit: Limit = 100) -> Result:
    """List the namespaces, by name."""
    return pages(dw, "namespaces", key="namespaces", limit=limit, query={})


@command(
    "namespace:create",
    facts(),
    json=f"{_MEMBERS} created_at",
    examples=('dw namespace:create billing -d "production orders" -r 90',),
)
def create(dw: Dw, name: Name, description: Description = None, retention_days: Retention = 30) -> Result:
    """Create a namespace; needs an administrator's token."""
    body = {"name": name, "description": description, "retention_days": retention_days}
    return dw.post("namespaces", body=body)


@command(
    "namespace:describe",
    facts(),
    json=f"{_MEMBERS} created_at updated_at",
    examples=("dw namespace:describe default",),
    watch=True,
)
def describe(dw: Dw, name: Name) -> Result:
    """Show one namespace."""
    return dw.get("namespaces", name)


@command(
    "namespace:update",
    facts(),
    json=f"{_MEMBERS} updated_at",
    examples=("dw namespace:update default --retention-days 60",),
)
def update(dw: Dw, name: Name, description: Description = None, retention_days: Retention = None) -> Result:
    """Change what is given of a namespace; needs an administrator's token."""
    body = {"description": description, "retention_days": retention_days}
    return dw.put("namespaces", name, body=body)


@command("namespace:delete", facts(), json="name", examples=("dw namespace:delete trial --yes",))
def delete(dw: Dw, name: Name, yes: Yes = False) -> Result:
    """Delete a namespace with everything in it; needs an administrator's token."""
    confirm(f"delete the namespace {name} with everything in it", yes=yes)
    return dw.delete("namespaces", name)


@command(
    "namespace:set-storage-driver",
    facts(),
    json="name external_payload_storage",
    examples=("dw namespace:set-storage-driver default local --uri file:///var/lib/payloads",),
)
def set_storage_driver(
    dw: Dw,
    name: Name,
    driver: Annotated[str, argument("DRIVER", "local, s3, gcs or azure")],
    disable: Annotated[bool, option("--disable", text="keep the policy, but do not use it")] = False,
    threshold: Annotated[
        int | None,
        option("--threshold-bytes", metavar="BYTES", text="smallest payload that goes there", min=1),
    ] = None,
    uri: Annotated[str | None, option("--uri", metavar="URI", text="where it is")] = None,
    bucket: Annotated[str | None, option("--bucket", metavar="NAME", text="the bucket")] = None,
    prefix: Annotated[
        str | None, option("--prefix", metavar="TEXT", text="start of each object's name")
    ] = None,
    region: Annotated[str | None, option("--region", metavar="NAME", text="the region")] = None,
    endpoint: Annotated[
        str | None, option("--endpoint", metavar="URL", text="the service, if not its own")
    ] = None,
    auth_profile: Annotated[
        str | None, option("--auth-profile", metavar="NAME", text="the server's credentials for it")
    ] = None,
) -> Result:
    """Say where large payloads of a namespace are kept; needs an administrator's token."""
    given = {
        "uri": uri,
        "bucket": bucket,
        "prefix": prefix,
        "region": region,
        "endpoint": endpoint,
        "auth_profile": auth_profile,
    }
    config = {key: value for key, value in given.items() if value is not None}
    body = {"driver": driver, "enabled": not disable, "threshold_bytes": threshold, "config": config}
    return dw.put("namespaces", name, "external-storage", body=body)


@command(
    "storage:test",
    facts(),
    json="status driver small_payload large_payload",
    examples=("dw storage:test --small-bytes 64 --large-bytes 65536",),
)
def storage_test(
    dw: Dw,
    driver: Annotated[
        str | None, option("--driver", metavar="NAME", text="another than the namespace's")
    ] = None,
    small: Annotated[
        int, option("--small-bytes", metavar="BYTES", text="size of the small payload", min=1)
    ] = 64,
    large: Annotated[
        int, option("--large-bytes", metavar="BYTES", text="size of the large payload", min=1)
    ] = 65_536,
) -> Result:
    """Write, read and compare two payloads in the namespace's storage; needs an administrator's token."""
    body = {"driver": driver, "small_payload_bytes": small, "large_payload_bytes": large}
    return dw.post("storage", "test", body=body)
