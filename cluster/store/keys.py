"""Every Redis key of the system: its name, type, slot and lifetime.

Keys have the form ``<prefix>:{<tag>}:<family>[:<part>...]``. Parts that a tenant can choose are
percent-encoded, so no name can reach another family, another tenant or another slot, and every
key can be parsed back into its parts. The tag of a partition is chosen so that the partitions
lie evenly on the 16384 slots of a Redis Cluster.

Partition keys (slot of ``{pNN.x}``; ``P`` stands for ``<prefix>:{pNN.x}``):

==================  ======  ==============================================================
key                 type    holds; lifetime
==================  ======  ==============================================================
``P:wf:<id>``       hash    workflow instance: namespace, current run, run count; retention
``P:run:<run>``     hash    run: version, info, state, items, request ids; retention
``P:hist:<run>``    list    events of a run, ordinal = index + 1; retention
``P:pend:<run>``    list    events that wait for the leased workflow task; until it ends
``P:cmd:<run>``     hash    answers to clients: ``r:<request id>``, ``u:<update id>``; with its run
``P:runs:<ns>``     zset    runs of a namespace by start time (ms); retention
``P:closed:<ns>``   zset    closed runs by close time (ms); retention
``P:fl:<ns>:<id>``  hash    flow: current run, run count; retention of its current run
``P:steps:<run>``   list    what became of the step attempts of a flow's run; retention
``P:ch:<run>:<ch>`` list    messages of a channel that no step has consumed; until the run closes
``P:once:<run>:<h>`` string a client's request to a flow was served; TTL 10 min
``P:flows:<ns>``    zset    runs of flows of a namespace by start time (ms); retention
``P:fclosed:<ns>``  zset    closed runs of flows by close time (ms); retention
``P:archived:<ns>`` zset    archived runs by close time (ms); kept
``P:failing:<ns>``  zset    open runs whose workflow task fails, by failures in a row; until it succeeds
``P:task:<task>``   hash    task record: the truth about one task; until the task ends
``P:q:<queue>``     stream  undelivered and leased entries of one queue; compacted when idle
``P:b:<queue>``     zset    returned tasks by original ready time; vanishes when empty
``P:h:<heads>``     zset    heads: types with undelivered work by oldest ready time
``P:cur``           hash    last delivered entry id per queue; compacted with its queue
``P:queues``        set     queues that have a stream; compacted with them
``P:leases``        zset    leased tasks by lease expiry (ms); until the lease ends
``P:held``          hash    lease token -> task, attempt, delivery; until the lease ends
``P:timers``        zset    timers by due time (ms); until fired or dropped
``P:work``          list    chunked work (drop the tasks of a closed run); until done
``P:nq:<ns>``       set     ``<kind>:<queue>`` of a namespace's queues; compacted with them
``P:ty:<queue>``    set     ``<marker>:<type>`` of a queue's streams; compacted with them
``P:lq:<queue>``    zset    leased tasks of one queue by lease expiry (ms); until the lease ends
``P:rate:<slot>``   hash    tasks added to and handed out from each queue in 10 s; TTL 80 s
``P:tk``            hash    admission ticket -> task; until the lease ends
``P:adm``           hash    per kind and namespace: version of its limits, whether leases are counted
``P:dead``          zset    buried sessions by burial time, kept 24 h
``P:on:<session>``  set     steps handed out over streams of a node; until the attempt ends
``P:wk:<ns>:<w>``   set     sessions of the nodes where a worker has shared streams; until they end
``P:wt:<ns>:<w>``   hash    session of such a node -> what these streams can run; likewise
``P:ses:<session>`` set     ``<ns>:<worker>`` of the workers with shared streams on a node; likewise
``P:sch:<name>``    hash    schedule: version, definition, state, request ids; retention once deleted
``P:schh:<name>``   list    newest events of a schedule; as the schedule
``P:schs:<ns>``     zset    schedules of a namespace by creation time (ms); until deleted
``P:lease``         hash    partition lease: owner, nonce, epoch, until; cluster record
``P:gen``           hash    server it hands out on, from when on, who spoke in a pause; cluster record
``P:touch``         string  counter behind confirmations in replica durability; cluster record
==================  ======  ==============================================================

There ``<name>`` of a schedule is ``<ns>:<id>``; ``<queue>`` of ``ty`` and ``lq`` is
``<kind>:<ns>:<queue>``: one task queue with all its types and markers.

Admission keys of a namespace (slot of ``{a.<ns>}``; ``A`` stands for ``<prefix>:{a.<ns>}``):

==================  ======  ==============================================================
``A:terms``         hash    limits set at run time and their version; who counts leases
``A:t:<kind>``      zset    tickets of all queues by grant time (ms); until the lease ends
``A:q:<kind>:<q>``  zset    tickets of one queue by grant time (ms); until the lease ends
``A:i:<kind>``      hash    ticket -> grant time, minute, queue, budget group; likewise
``A:m:<kind>:<m>``  hash    dispatches of minute ``m`` per queue, namespace, group; TTL 2 min
``A:w:<kind>:...``  zset    nodes that wait for room by the time of refusal; TTL 10 s
``A:touch``         string  never exists; asks whether memory is full
==================  ======  ==============================================================

Query keys of a task queue (slot of ``{q:<ns>:<queue>}``; ``Q`` stands for ``<prefix>:{q:<ns>:<queue>}``):

==================  ======  ==============================================================
``Q:pending``       zset    ``<id> <marker>:<type>`` of waiting queries by deadline (ms); TTL
``Q:t:<m>:<type>``  zset    the same of one build marker and workflow type; TTL
``Q:task:<id>``     hash    query task: state, body, lease, answer; TTL
``Q:held:<token>``  string  query task leased under this token; TTL
==================  ======  ==============================================================

Cluster-wide keys (one slot each):

==================  ======  ==============================================================
``{sys}:cluster``   hash    cluster record: partitions, schema, created_at, secrets of the nodes
``{sys}:ns``        hash    namespaces, JSON by name
``{sys}:counted``   set     namespaces whose leases are or were counted, or limited at run time
``{sess}:alive``    zset    node sessions by expiry (ms)
``{sess}:info``     hash    session -> JSON description; until buried or released
``{sess}:suspect``  hash    session -> when and in which store generation it was suspected
``{sess}:dead``     zset    buried sessions by burial time, kept 24 h
``{sys}:served``    hash    session -> what its stream workers serve, msgpack; until the node is gone
``{w.<ns>}:sa``     hash    search attribute definitions, type by name; until removed
``{w.<ns>}:reg``    hash    worker registrations, JSON by worker id; until deregistered
``{w.<ns>}:beat``   hash    last heartbeat (ms) by worker id; until deregistered
``{w.<ns>}:vital``  hash    slots and process metrics, JSON by worker id; until deregistered
``{w.<ns>}:fleet``  zset    ``:<queue>``: workers of one queue by last heartbeat (ms); likewise
``{w.<ns>}:cohort`` hash    ``<queue>:<build>`` -> drain intent, JSON; operator's record
``{w.<ns>}:drain``  set     workers that were told that their cohort drains; until deregistered
``{w.<ns>}:on``     set     ``:<worker>``: sessions of the nodes where it has streams; until they end
``{w.<ns>}:no``     set     ``:<worker>``: what it declined as unsupported; until its last stream ends
``{w.<ns>}:ses``    hash    ``:<session>``: a worker session's holder, lease, options; a day longer than it
``{w.<ns>}:busy``   zset    ``:<session>``: activities that run in it by lease expiry (ms); likewise
``{w.<ns>}:wait``   set     ``:<session>``: partitions where tasks may wait for it; TTL
``{w.<ns>}:pulse``  list    samples of what happens, while somebody watches, msgpack; TTL 1 h
``{w.<ns>}:holds``  string  ``:<worker>``: sessions it holds; a day longer than the last of them
``poll:<hash>``     string  idempotent poll in flight or its result; TTL
``receipt:<hash>``  string  deregistration receipt; TTL 600 s
``turn:<what>:<ns>``  string  something was done for a namespace lately; TTL
``probe:<random>``  string  readiness probe; TTL 10 s
==================  ======  ==============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

import msgspec
from redis.crc import key_slot

CLUSTER_SLOTS = 16384
DEFAULT_PREFIX = "hr1"


@lru_cache(maxsize=16_384)
def encode(name: str) -> str:
    """``name`` as one key part: injective, and free of ``:{}*`` and control characters."""
    return quote(name, safe="")


def decode(part: str) -> str:
    """The inverse of :func:`encode`."""
    return unquote(part, errors="strict")


@lru_cache(maxsize=4096)
def partition_tag(partition: int, partitions: int) -> str:
    """Hash tag of a partition, drawn so that partitions spread evenly over the slots."""
    low = partition * CLUSTER_SLOTS // partitions
    high = (partition + 1) * CLUSTER_SLOTS // partitions
    draw = 0
    while not low <= key_slot(f"p{partition:02d}.{draw:x}".encode()) < high:
        draw += 1
    return f"p{partition:02d}.{draw:x}"


@lru_cache(maxsize=16_384)
def _heads(kind: str, namespace: str, queue: str, marker: str) -> str:
    return ":".join((kind, encode(namespace), encode(queue), encode(marker)))


class QueueName(msgspec.Struct, frozen=True):
    """Names one set of heads: (kind, namespace, task queue, build marker).

    ``marker`` is the build id that stamped tasks need, or "" for tasks anyone may take.
    """

    kind: str
    namespace: str
    queue: str
    marker: str = ""

    def encode(self) -> str:
        """The ``<heads>`` part of a key: four encoded names joined by colons."""
        return _heads(self.kind, self.namespace, self.queue, self.marker)

    @staticmethod
    def parse(text: str) -> QueueName:
        """The inverse of :meth:`encode`."""
        kind, namespace, queue, marker = text.split(":")
        return QueueName(kind, decode(namespace), decode(queue), decode(marker))


@lru_cache(maxsize=4096)
def _base(prefix: str, partition: int, partitions: int) -> str:
    return f"{prefix}:{{{partition_tag(partition, partitions)}}}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds keys for one cluster."""

    prefix: str = DEFAULT_PREFIX
    partitions: int = 16

    # -- partitions -------------------------------------------------------------------------

    def base(self, partition: int) -> str:
        """The common start of all keys of a partition."""
        return _base(self.prefix, partition, self.partitions)

    def workflow(self, partition: int, workflow_id: str) -> str:
        return f"{self.base(partition)}:wf:{encode(workflow_id)}"

    def run(self, partition: int, run_id: str) -> str:
        return f"{self.base(partition)}:run:{run_id}"

    def history(self, partition: int, run_id: str) -> str:
        return f"{self.base(partition)}:hist:{run_id}"

    def pending(self, partition: int, run_id: str) -> str:
        return f"{self.base(partition)}:pend:{run_id}"

    def commands(self, partition: int, run_id: str) -> str:
        return f"{self.base(partition)}:cmd:{run_id}"

    def runs(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:runs:{encode(namespace)}"

    def closed(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:closed:{encode(namespace)}"

    def flow(self, partition: int, namespace: str, flow_id: str) -> str:
        return f"{self.base(partition)}:fl:{encode(namespace)}:{encode(flow_id)}"

    def steps(self, partition: int, run_id: str) -> str:
        return f"{self.base(partition)}:steps:{run_id}"

    def channel(self, partition: int, run_id: str, name: str) -> str:
        return f"{self.base(partition)}:ch:{run_id}:{encode(name)}"

    def once(self, partition: int, run_id: str, digest: str) -> str:
        return f"{self.base(partition)}:once:{run_id}:{digest}"

    def flows(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:flows:{encode(namespace)}"

    def closed_flows(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:fclosed:{encode(namespace)}"

    def archived(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:archived:{encode(namespace)}"

    def failing(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:failing:{encode(namespace)}"

    def task(self, partition: int, task_id: str) -> str:
        return f"{self.base(partition)}:task:{task_id}"

    def stream(self, partition: int, queue: QueueName, type_name: str) -> str:
        return f"{self.base(partition)}:q:{queue.encode()}:{encode(type_name)}"

    def back(self, partition: int, queue: QueueName, type_name: str) -> str:
        return f"{self.base(partition)}:b:{queue.encode()}:{encode(type_name)}"

    def heads(self, partition: int, queue: QueueName) -> str:
        return f"{self.base(partition)}:h:{queue.encode()}"

    def cursors(self, partition: int) -> str:
        return f"{self.base(partition)}:cur"

    def queues(self, partition: int) -> str:
        return f"{self.base(partition)}:queues"

    def leases(self, partition: int) -> str:
        return f"{self.base(partition)}:leases"

    def queue_leases(self, partition: int, kind: str, namespace: str, queue: str) -> str:
        return f"{self.base(partition)}:lq:{kind}:{encode(namespace)}:{encode(queue)}"

    def held(self, partition: int) -> str:
        return f"{self.base(partition)}:held"

    def generation(self, partition: int) -> str:
        return f"{self.base(partition)}:gen"

    def timers(self, partition: int) -> str:
        return f"{self.base(partition)}:timers"

    def work(self, partition: int) -> str:
        return f"{self.base(partition)}:work"

    def schedule(self, partition: int, namespace: str, schedule_id: str) -> str:
        return f"{self.base(partition)}:sch:{encode(namespace)}:{encode(schedule_id)}"

    def schedule_history(self, partition: int, namespace: str, schedule_id: str) -> str:
        return f"{self.base(partition)}:schh:{encode(namespace)}:{encode(schedule_id)}"

    def schedules(self, partition: int, namespace: str) -> str:
        return f"{self.base(partition)}:schs:{encode(namespace)}"

    def dead(self, partition: int) -> str:
        return f"{self.base(partition)}:dead"

    def handed_out(self, partition: int, session: str) -> str:
        return f"{self.base(partition)}:on:{session}"

    def present(self, partition: int, namespace: str, worker: str) -> str:
        return f"{self.base(partition)}:wk:{encode(namespace)}:{encode(worker)}"

    def lease(self, partition: int) -> str:
        return f"{self.base(partition)}:lease"

    def touch(self, partition: int) -> str:
        return f"{self.base(partition)}:touch"

    # -- admission --------------------------------------------------------------------------

    def admission(self, namespace: str) -> str:
        """The common start of all admission keys of a namespace."""
        return f"{self.prefix}:{{a.{encode(namespace)}}}"

    def terms(self, namespace: str) -> str:
        return f"{self.admission(namespace)}:terms"

    # -- cluster ----------------------------------------------------------------------------

    def cluster(self) -> str:
        return f"{self.prefix}:{{sys}}:cluster"

    def served(self) -> str:
        return f"{self.prefix}:{{sys}}:served"

    def namespaces(self) -> str:
        return f"{self.prefix}:{{sys}}:ns"

    def counted(self) -> str:
        return f"{self.prefix}:{{sys}}:counted"

    def sessions(self, family: str) -> str:
        """``family`` is one of alive, info, suspect, dead."""
        return f"{self.prefix}:{{sess}}:{family}"

    def search_attributes(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:sa"

    def registrations(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:reg"

    def heartbeats(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:beat"

    def vitals(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:vital"

    def fleet(self, namespace: str, queue: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:fleet:{encode(queue)}"

    def cohorts(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:cohort"

    def draining(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:drain"

    def connected(self, namespace: str, worker: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:on:{encode(worker)}"

    def unsupported(self, namespace: str, worker: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:no:{encode(worker)}"

    def worker_session(self, family: str, namespace: str, session_id: str) -> str:
        """``family`` is one of ses, busy, wait."""
        return f"{self.prefix}:{{w.{encode(namespace)}}}:{family}:{encode(session_id)}"

    def pulse(self, namespace: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:pulse"

    def holds(self, namespace: str, worker: str) -> str:
        return f"{self.prefix}:{{w.{encode(namespace)}}}:holds:{encode(worker)}"

    def queries(self, namespace: str, queue: str) -> str:
        """The common start of the query keys of a task queue."""
        return f"{self.prefix}:{{q:{encode(namespace)}:{encode(queue)}}}"

    def pending_queries(self, namespace: str, queue: str) -> str:
        return f"{self.queries(namespace, queue)}:pending"

    def poll(self, digest: str) -> str:
        return f"{self.prefix}:poll:{digest}"

    def receipt(self, digest: str) -> str:
        return f"{self.prefix}:receipt:{digest}"

    def turn(self, what: str, namespace: str) -> str:
        """Whoever sets this does ``what`` for the namespace; nobody else until it expires."""
        return f"{self.prefix}:turn:{what}:{encode(namespace)}"

    def probe(self, random: str) -> str:
        return f"{self.prefix}:probe:{random}"

    # -- channels ---------------------------------------------------------------------------

    def wake_channel(self, queue: QueueName) -> str:
        """Wakes of one set of heads; message ``<partition> <encoded type> <ready ms>``."""
        return f"{self.prefix}:wake:{queue.encode()}"

    def room_channel(self, node: str) -> str:
        """Room for a node that was refused; message ``<kind> <encoded namespace> <encoded queue>``."""
        return f"{self.prefix}:room:{node}"

    def query_channel(self, namespace: str, queue: str) -> str:
        """A query waits on a task queue; the message is empty."""
        return f"{self.prefix}:query:{encode(namespace)}:{encode(queue)}"

    def answer_channel(self, node: str) -> str:
        """Queries that ``node`` asked were answered; message is the query task's id."""
        return f"{self.prefix}:answer:{node}"

    def flow_end_channel(self, run_id: str) -> str:
        """The run of a flow closed, the message is its status; or a request to one was answered."""
        return f"{self.prefix}:flowend:{run_id}"

    def unsupported_channel(self) -> str:
        """What workers declined; message JSON ``[namespace, worker, item]``, item "" for "all forgotten"."""
        return f"{self.prefix}:unsupported"

    def rpc_channel(self, session: str) -> str:
        """Talk between nodes about RPCs; message JSON."""
        return f"{self.prefix}:rpc:{session}"

    def cancel_channel(self, session: str) -> str:
        """Attempts on streams of ``session`` are not wanted any more; message ``<attempt id> <reason>``."""
        return f"{self.prefix}:cancel:{session}"

    def events_channel(self, run_id: str) -> str:
        """A watched run changed; the message is empty."""
        return f"{self.prefix}:events:{run_id}"

    def due_channel(self) -> str:
        """A timer, lease or work item became the earliest; message ``<partition> <due ms>``."""
        return f"{self.prefix}:due"

    def changed_channel(self) -> str:
        """A cached record changed; message ``<family> <encoded name>...``."""
        return f"{self.prefix}:changed"

    # -- back to parts ----------------------------------------------------------------------

    def parse(self, key: str) -> tuple[str, ...]:
        """The parts of a key: tag (or ""), family, then the decoded names. Raises ValueError."""
        head, _, rest = key.partition(":")
        if head != self.prefix or not rest:
            raise ValueError(f"not a key of {self.prefix!r}: {key!r}")
        tag = ""
        if rest.startswith("{"):
            tag, _, rest = rest[1:].partition("}:")
        family, *parts = rest.split(":")
        return (tag, family, *(decode(part) for part in parts))
