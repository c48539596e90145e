"""Many devices: how operators divide among them, and what they send each other.

    t  tensor parallel     p  pipeline stages     D  data parallel     c  context parallel     e  expert parallel

Written for operators and bytes, so that inference on many cards and training use the same rules. A collective over n
devices moves at the least, sent by each of them (ring or tree, every byte once; Thakur, Rabenseifner, Gropp 2005,
doi:10.1177/1094342005051521):

    all-gather, reduce-scatter   (n - 1)/n of the whole        all-reduce   2·(n - 1)/n of it
    all-to-all                   (n - 1)/n of what it holds    send         what is sent
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.types import Cost, GambrelError, Op
from gambrel.units import Num, share
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gambrel.types import Device

#: Devices that share the scale-up link, where the user does not say.
NODE = 8


def shard(ops: Iterable[Op], tp: int) -> list[Op]:
    """The operators of one of `tp` devices: work, weights and cache divided as far as they can be.

    A replicated part stays whole; KV heads beyond their number are replicated. Communication is not in them.
    """
    return [op if tp == 1 else _shard(op, tp) for op in ops]


def _shard(op: Op, tp: int) -> Op:
    ways = tp if op.ways is None else min(tp, op.ways)
    kv_ways = tp if op.kv_ways is None else min(tp, op.kv_ways)
    c = op.cost
    # Query heads divide even where their keys are replicated, so attention's FLOPs split further than its cache.
    cost = Cost(
        flops=share(c.flops, ways),
        vector_flops=share(c.vector_flops, ways),
        weight_bytes=share(c.weight_bytes, ways),
        expected_weight_bytes=share(c.expected_weight_bytes, ways),
        kv_read_bytes=share(c.kv_read_bytes, kv_ways),
        kv_write_bytes=share(c.kv_write_bytes, kv_ways),
        act_bytes=share(c.act_bytes, ways),
    )
    return replace(op, cost=cost)


@frozen
class Layout:
    """How many devices share what.

    dp: copies of the model with other data. tp: split every matrix. pp: split the layers. cp: split each sequence.
    ep: split the experts, among the dp x cp devices of a stage. sequence_parallel: tp also splits what lies between
    the matrices (norms, residuals). virtual: chunks of layers on each pipeline stage, 1 for plain 1F1B.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = True
    virtual: int = 1

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "virtual"):
            if getattr(self, name) < 1:
                raise GambrelError(f"--{name} {getattr(self, name)}: accepted is a whole number from 1")
        if (self.dp * self.cp) % self.ep:
            raise GambrelError(f"--ep {self.ep} must divide dp x cp = {self.dp * self.cp}, whose devices it shares")
        if self.virtual > 1 and self.pp == 1:
            raise GambrelError("--virtual needs --pp above 1: chunks of layers are dealt to pipeline stages")

    @property
    def devices(self) -> int:
        """All of them."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Devices that hold the same dense weights, over which ZeRO divides them."""
        return self.dp * self.cp

    def in_flight(self, stage: int, micro_batches: int) -> float:
        """Micro-batches, of a stage's own layers, whose activations a stage keeps at its fullest.

        1F1B: stage i (from 0) of p keeps min(m, p - i). Interleaved with v chunks on each stage: its warm-up runs
        2·(p - i - 1) + (v - 1)·p chunks and one more, each 1/v of its layers. Source: Narayanan et al. 2021,
        arXiv:2104.04473, section 2.2; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3.
        """
        p, v = self.pp, self.virtual
        if v == 1:
            return min(micro_batches, p - stage)
        chunks = 2 * (p - stage - 1) + (v - 1) * p + 1
        return min(micro_batches * v, chunks) / v

    def bubble(self, micro_batches: int) -> float:
        """Idle time of a pipeline over its busy time: (p - 1)/(v·m). Source: arXiv:2104.04473, section 2.2."""
        return (self.pp - 1) / (self.virtual * micro_batches)


#: Share of the payload that each of n devices sends, by collective.
SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "send": lambda n: 1 if n > 1 else 0,
}


@frozen
class Traffic:
    """What one device sends in one step for one purpose.

    name: for people ("tp", "dp", …). collective: a key of SENT. payload_bytes: the whole that is reduced, gathered or
    sent, summed over the step [byte]. group: devices that take part. span: devices over which the group stretches,
    neighbours first, which decides the link.
    """

    name: str
    collective: str
    payload_bytes: Num
    group: int
    span: int

    @property
    def sent_bytes(self) -> Num:
        """Sent by each device at the least [byte]."""
        return self.payload_bytes * SENT[self.collective](self.group)


@frozen
class Network:
    """The links of a cluster, one direction of one device [byte/s].

    scale_up_bytes_per_s: within a node; None where the device has none. node: devices of a node. network_bytes_per_s:
    between nodes; None where the user gave none: then the scale-up link stands in for it, which keeps a bound a bound.
    """

    scale_up_bytes_per_s: float | None
    node: int = NODE
    network_bytes_per_s: float | None = None

    def link(self, span: int) -> tuple[str, float | None]:
        """The slowest link inside a group that stretches over `span` devices: its name and rate."""
        if span > self.node and self.network_bytes_per_s is not None:
            return "network", self.network_bytes_per_s
        return "scale-up", self.scale_up_bytes_per_s

    def time_s(self, traffic: Traffic) -> float:
        """Lower bound on the time of some traffic [s]; 0 where no link is known."""
        _, rate = self.link(traffic.span)
        return float(traffic.sent_bytes / rate) if rate else 0.0


def network_of(device: Device, node: int = NODE, network_bytes_per_s: float | None = None) -> Network:
    """The links of a device of the catalogue, and of the network that the user gives."""
    return Network(device.link.bytes_per_s if device.link else None, node, network_bytes_per_s)
