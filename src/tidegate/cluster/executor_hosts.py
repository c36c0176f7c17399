"""The machines of Spark's executors, with supervisors that Spark itself starts there."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING
from uuid import uuid4

from tidegate.cluster.warming import WARM_UP
from tidegate.errors import HostError, TidegateError
from tidegate.security.security import VARIABLE, Security
from tidegate.spark.executors import executors_of, give_up, hosts_by_executor, rows_on
from tidegate.spark.reasons import reason
from tidegate.state.supervisor.client import SupervisorClient
from tidegate.state.wire.beside import beside

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_TRIES = 4
"""How often a supervisor is sent to a host: a task's place is a preference."""

_BRIEFLY = 1.0
"""Seconds that Spark's master has to hear of a host that is out of reach before anything else happens."""
_ROUNDS = 2
"""Renewals without an answer until another supervisor may be started in the place of one."""


class ExecutorHosts:
    """One supervisor per machine, started by a small job on one of its executors. It outlives the job, and
    the executor where that lets it; without its driver it ends when its lease runs out."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        security: Security,
        lease: float,
        staying: Callable[[], frozenset[str]],
    ) -> None:
        """`security` is the driver's. `staying` tells the executors that are to stay; none in a local
        Spark, which has none."""
        self._spark = spark
        self._security = security
        self._told = {VARIABLE: security.party("node").as_text()}
        self._lease = lease
        self._staying = staying
        self._known: dict[str, SupervisorClient] = {}
        self._silent = Counter[str]()
        """For how many renewals in a row a supervisor has not answered, by host."""
        self._change = threading.Lock()
        self._starting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def names(self) -> Sequence[str]:
        """Those of the oldest executors first: the newest leave first. Each as often as it has executors."""
        return list(hosts_by_executor(self._spark).values())

    def leaving(self) -> frozenset[str]:
        staying = self._staying()
        if not staying:
            return frozenset()
        now = hosts_by_executor(self._spark)
        return frozenset(now.values()) - {host for id, host in now.items() if id in staying}

    def known(self, host: str) -> SupervisorClient | None:
        with self._change:
            return self._known.get(host)

    def supervisor(self, host: str) -> SupervisorClient:
        with self._change:
            starting = self._starting[host]
        with starting:
            client = self.known(host)
            if client is not None and _answers(client):
                return client
            client = SupervisorClient(self._started(host), host, security=self._security)
            with self._change:
                self._known[host] = client
            return client

    def renew(self) -> None:
        with self._change:
            clients = list(self._known.values())
        with ThreadPoolExecutor(max(len(clients), 1)) as pool:
            answers = list(pool.map(_answers, clients))
        with self._change:
            for client, answered in zip(clients, answers, strict=True):
                if answered:
                    self._silent.pop(client.host, None)
                    continue
                self._silent[client.host] += 1
                _log.info("the supervisor of state nodes on %s does not answer", client.host)
                # By now Spark knows whether the machine is gone: if it is not, another one may start there.
                if self._silent[client.host] >= _ROUNDS and self._known.get(client.host) is client:
                    del self._known[client.host], self._silent[client.host]

    def lost(self, host: str) -> None:
        """Spark is told what it would find out later: until then its tasks there hang."""
        giving_up = beside(lambda: give_up(self._spark, host), name="giving-up")
        wait([giving_up], _BRIEFLY)
        if giving_up.done() and (error := giving_up.exception()) is not None:
            _log.warning("Spark could not be told that %s is out of reach: %s", host, error)

    def close(self) -> None:
        """They end by themselves, and at once those that can be reached."""
        with self._change:
            clients, self._known = list(self._known.values()), {}
        for client in clients:
            try:
                client.stop()
            except TidegateError as error:
                _log.info("the supervisor on %s is left to end with its lease: %s", client.host, error)
            client.close()

    def _started(self, host: str) -> str:
        """The address of a new supervisor there."""
        why = "it has no executor any more"
        for _ in range(_TRIES):
            executors = [id for id, place in hosts_by_executor(self._spark).items() if place == host]
            if not executors:
                break
            try:
                address, problem, ran_on = _placed(self._spark, executors[0], host, self._lease, self._told)
            except Exception as error:
                why = reason(error)
                continue
            if address is not None:
                return address
            why = problem
            if ran_on & {*executors}:
                break  # It is what happens there, and not where it happened.
        raise HostError(f"no supervisor of state nodes could be started on {host}: {why}", host=host)


def _answers(client: SupervisorClient) -> bool:
    try:
        client.look()
    except TidegateError:
        return False
    return True


def _placed(
    spark: SparkSession, executor: str, host: str, lease: float, told: Mapping[str, str]
) -> tuple[str | None, str, frozenset[str]]:
    """Run a task that starts a supervisor, on this executor if Spark can arrange it: the address or what went
    wrong, and the executors that it ran on."""
    context = spark.sparkContext
    group = f"supervisor-{uuid4().hex}"
    # Ahead of the batches, whose tasks may be waiting for the very nodes that are to start.
    context.setLocalProperty("spark.scheduler.pool", WARM_UP)
    context.setJobGroup(group, f"state nodes on {host}")
    rows = rows_on(spark, executor, 1)
    (row,) = rows.mapInArrow(_task(host, lease, dict(told)), "address string, problem string").collect()
    return row["address"], row["problem"], executors_of(spark, group)


def _task(
    host: str, lease: float, told: dict[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from tidegate.state.supervisor.spawning import spawn

        for batch in batches:
            for _ in range(batch.num_rows):
                address, problem = spawn(host, lease, told)
                columns = [pa.array([address], pa.string()), pa.array([problem], pa.string())]
                yield pa.RecordBatch.from_arrays(columns, names=["address", "problem"])

    return run
