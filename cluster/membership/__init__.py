"""Who is in the cluster, and who keeps which partition."""

from cluster.membership.housekeeping import HeldPartition, Housekeep
from cluster.membership.membership import Membership, MembershipStatistics
from cluster.membership.sessions import NodeInfo, NodeLoad, Session
from cluster.membership.timing import Timing

__all__ = [
    "HeldPartition",
    "Housekeep",
    "Membership",
    "MembershipStatistics",
    "NodeInfo",
    "NodeLoad",
    "Session",
    "Timing",
]
