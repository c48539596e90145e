"""Products with a single row for torch.compile on a processor: multiply and sum, which streams a matrix as reads do.

The library's matrix-vector kernel reaches about half of the read ceiling on one thread (docs/measured). Three things
bring compiled loops to it: what multiplies the rows is finished before the loop and not recomputed in each of them; two
halves of the matrix are read side by side, so that it is loaded once for two rows; and it stays in the first cache. A
single query's attention is such a product too.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Longest part of a row that is summed at once: 16 kB in fp32, less than a first cache holds. Longer sums take a
#: slower, cascading path in the compiler too.
LONGEST = 4096
#: And the shortest into which a row is divided.
SHORTEST = 256


def compiler(torch: Any) -> Callable[[Any, Any], Any]:
    """A backend of torch.compile: the default one, given single rows as multiply and sum."""
    inductor = torch._dynamo.lookup_backend("inductor")
    linear, attention = torch.nn.functional.linear, torch._C._nn.scaled_dot_product_attention

    def backend(module: Any, examples: Any) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target is linear and math.prod(_shape(node)[:-1]) == 1:
                node.target = row
            if node.op == "call_function" and node.target is attention and _plain_query(node):
                node.target = query
        module.recompile()
        return inductor(module, examples)

    return backend


def _shape(node: Any) -> tuple[int, ...]:
    """Of a call's first argument."""
    return tuple(node.args[0].meta["example_value"].shape)


def _plain_query(node: Any) -> bool:
    """Whether attention is that of one query of one sequence, without a mask."""
    masked = len(node.args) > 3 or any(node.kwargs.get(name) for name in ("attn_mask", "dropout_p", "is_causal"))
    batch, _, queries, _ = _shape(node)
    return batch == queries == 1 and not masked


def row(x: Any, weight: Any, bias: Any = None) -> Any:
    """torch.nn.functional.linear of one row: x [..., k] with all but k one, weight [n, k]."""
    import torch

    flat = _finished(x.reshape(-1))
    halves = weight.chunk(2) if weight.shape[0] % 2 == 0 else (weight,)
    product = torch.cat([_dots(half, flat) for half in halves]).to(x.dtype).reshape(*x.shape[:-1], -1)
    return product if bias is None else product + bias


def _dots(weight: Any, flat: Any) -> Any:
    """Each row times the vector, summed in float32, in parts that the first cache holds."""
    import torch

    rows, n = weight.shape
    few = range(-(-n // LONGEST), n // SHORTEST + 1)
    parts = next((d for d in few if n % d == 0), 1)
    return (weight.view(rows, parts, -1) * flat.view(parts, -1)).sum(-1, dtype=torch.float32).sum(-1)


def query(q: Any, k: Any, v: Any, *_: Any, scale: float | None = None, **__: Any) -> Any:
    """Attention of one query: q [1, heads, 1, d], k [1, groups, keys, d], v [1, groups, keys, e]."""
    _, heads, _, size = q.shape
    groups = k.shape[1]
    grouped = _finished(q.reshape(groups, heads // groups, 1, size))
    scores = (grouped * k[0, :, None]).sum(-1).float() * (size**-0.5 if scale is None else scale)
    mixed = (scores.softmax(-1).to(v.dtype)[..., None] * v[0, :, None]).sum(-2)
    return mixed.reshape(1, heads, 1, -1)


def _finished(x: Any) -> Any:
    """A copy that the compiler computes before what uses it, and does not repeat inside the loop over the rows."""
    import torch

    copied = x.clone(memory_format=torch.contiguous_format)
    return torch.as_strided(copied, copied.shape, copied.stride())
