"""What a slot stream may be given; a module of its own, because workers need it without Redis."""

from __future__ import annotations

from enum import StrEnum


class SlotKind(StrEnum):
    """What a slot stream may be given."""

    STEP_AND_RPC = "step_and_rpc"
    RPC_ONLY = "rpc_only"
