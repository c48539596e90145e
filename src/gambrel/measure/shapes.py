"""FLOPs and bytes of an operator from the shapes of its inputs, never from a profiler's own figures.

A multiply-add is 2 FLOPs. Bytes: every input and the output once, as an unfused operator moves them; a dimension with
stride 0 is stored once. Operators without a formula, or with shapes that do not fit theirs, have no number.
Letters: m rows, k inner, n columns of a product; B sequences, H heads, q queries, s keys, d head size.
"""

from __future__ import annotations

import math

from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: Name and bytes of an element, by what the profiler calls it.
TYPES = {
    "c10::BFloat16": ("bf16", 2.0),
    "c10::Half": ("fp16", 2.0),
    "float": ("fp32", 4.0),
    "double": ("fp64", 8.0),
    "c10::Float8_e4m3fn": ("fp8", 1.0),
    "c10::Float8_e5m2": ("fp8", 1.0),
    "c10::Float8_e4m3fnuz": ("fp8", 1.0),
    "c10::Float8_e5m2fnuz": ("fp8", 1.0),
    "c10::Float8_e8m0fnu": ("fp8", 1.0),
    "c10::Float4_e2m1fn_x2": ("fp4", 1.0),
    "signed char": ("int8", 1.0),
    "unsigned char": ("uint8", 1.0),
    "bool": ("bool", 1.0),
    "short": ("int16", 2.0),
    "int": ("int32", 4.0),
    "long": ("int64", 8.0),
    "long int": ("int64", 8.0),
    "long long": ("int64", 8.0),
}
#: Bytes of PyTorch's dtype numbers, as a concrete input gives them.
DTYPE_CODES = {"5": 2.0, "6": 4.0, "7": 8.0, "15": 2.0, "23": 1.0, "24": 1.0}
MOST_DIMS, MOST_ELEMENTS = 16, 2**60


@frozen
class Work:
    """What one call of an operator does and moves.

    flops: of matrix products and attention [FLOP]. vector_flops: one for each element of the output (of the input, for
    a reduction) [FLOP]. moved_bytes: inputs and output, each once [byte]. dtype: of the inputs. shape: for people.
    query: (B, q, s) of attention.
    """

    flops: int = 0
    vector_flops: int = 0
    moved_bytes: float | None = None
    dtype: str = ""
    shape: str = ""
    query: tuple[int, int, int] | None = None


@frozen
class Tensor:
    """An input: its dims, the bytes of what it stores, the name and bytes of an element's dtype."""

    dims: tuple[int, ...]
    stored: int
    dtype: str
    element_bytes: float | None

    @property
    def elements(self) -> int:
        """Elements, those that stand for one stored element included."""
        return math.prod(self.dims)

    @property
    def moved_bytes(self) -> float:
        """Bytes that it stores [byte]. Raises ValueError where the dtype is not known."""
        if self.element_bytes is None:
            raise ValueError("dtype")
        return self.stored * self.element_bytes


@frozen
class Call:
    """The inputs of one call: tensors by place (None for what is no tensor), and the values that were recorded."""

    tensors: tuple[Tensor | None, ...]
    concrete: tuple[str, ...]

    def tensor(self, place: int) -> Tensor:
        """The tensor at a place. Raises ValueError where there is none."""
        found = self.tensors[place] if place < len(self.tensors) else None
        if found is None:
            raise ValueError("no tensor")
        return found

    @property
    def given(self) -> list[Tensor]:
        """Every tensor with dims."""
        return [each for each in self.tensors if each is not None]

    def value(self, place: int) -> str:
        """A recorded value, "" where there is none."""
        return self.concrete[place] if place < len(self.concrete) else ""


def read_call(args: Mapping[str, Any]) -> Call | None:
    """The inputs as the trace has them, checked; None where it has no shapes. Raises ValueError for nonsense."""
    dims = args.get("dims")
    if not isinstance(dims, list) or len(dims) > 64:
        return None
    types, strides = _listed(args.get("types")), _listed(args.get("strides"))
    tensors = []
    for place, each in enumerate(dims):
        kind = types[place] if place < len(types) else None
        tensors.append(_tensor(each, kind, strides[place] if place < len(strides) else None))
    concrete = tuple(value[:64] if isinstance(value, str) else "" for value in _listed(args.get("concrete"))[:64])
    return Call(tuple(tensors), concrete)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tensor(dims: Any, kind: Any, strides: Any) -> Tensor | None:
    """A tensor with at least one dimension; None for scalars and lists of tensors. Raises ValueError for nonsense."""
    if isinstance(dims, list) and (not dims or all(isinstance(each, list) for each in dims)):
        return None
    sizes = _sizes(dims)
    if sizes is None or math.prod(sizes) > MOST_ELEMENTS:
        raise ValueError("no shape")
    steps = _sizes(strides) or ()
    stored = sizes
    if len(steps) == len(sizes):
        stored = tuple(1 if step == 0 and size else size for size, step in zip(sizes, steps, strict=True))
    dtype, element_bytes = TYPES.get(kind, ("", None)) if isinstance(kind, str) else ("", None)
    return Tensor(sizes, math.prod(stored), dtype, element_bytes)


def _sizes(dims: Any) -> tuple[int, ...] | None:
    if not isinstance(dims, list) or len(dims) > MOST_DIMS:
        return None
    fine = all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= MOST_ELEMENTS for each in dims)
    return tuple(dims) if fine else None


# Products -------------------------------------------------------------------------------------


def _product(a: Tensor, m: int, k: int, n: int, batch: int, extra: tuple[Tensor, ...], out_bytes: float | None) -> Work:
    """batch · 2mkn FLOPs; both factors, what is added, and the result [byte]."""
    try:
        element = out_bytes if out_bytes is not None else a.element_bytes
        moved = sum(each.moved_bytes for each in extra) + batch * m * n * (element if element is not None else math.nan)
    except ValueError:
        moved = math.nan
    shape = f"{m}x{k}x{n}" if batch == 1 else f"{batch}x {m}x{k}x{n}"
    return Work(2 * batch * m * k * n, 0, None if math.isnan(moved) else moved, a.dtype, shape)


def _mm(call: Call, first: int = 0, out_bytes: float | None = None) -> Work:
    a, b = call.tensor(first), call.tensor(first + 1)
    (m, k), (k2, n) = a.dims, b.dims
    _same(k, k2)
    added = (call.tensor(0),) if first else ()
    return _product(a, m, k, n, 1, (a, b, *added), out_bytes)


def _addmm(call: Call) -> Work:
    return _mm(call, 1)


def _scaled_mm(call: Call) -> Work:
    """The result's dtype is an input of its own; without it the bytes are not known."""
    code = next((call.value(place) for place in (6, 7, 5) if call.value(place) in DTYPE_CODES), "")
    return _mm(call, 0, DTYPE_CODES.get(code, math.nan))


def _bmm(call: Call, first: int = 0) -> Work:
    a, b = call.tensor(first), call.tensor(first + 1)
    (batch, m, k), (batch2, k2, n) = a.dims, b.dims
    _same(k, k2)
    _same(batch, batch2)
    added = (call.tensor(0),) if first else ()
    return _product(a, m, k, n, batch, (a, b, *added), None)


def _baddbmm(call: Call) -> Work:
    return _bmm(call, 1)


def _linear(call: Call) -> Work:
    x, w = call.tensor(0), call.tensor(1)
    n, k = w.dims
    _same(x.dims[-1], k)
    bias = call.tensors[2] if len(call.tensors) > 2 else None
    return _product(x, math.prod(x.dims[:-1]), k, n, 1, (x, w, bias) if bias else (x, w), None)


def _matmul(call: Call) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    if len(a.dims) < 2 or len(b.dims) < 2:
        raise ValueError("vectors")
    _same(a.dims[-1], b.dims[-2])
    if len(b.dims) == 2:
        return _product(a, math.prod(a.dims[:-1]), b.dims[0], b.dims[1], 1, (a, b), None)
    batch = math.prod(_broadcast((a.dims[:-2], b.dims[:-2])))
    return _product(a, a.dims[-2], a.dims[-1], b.dims[-1], batch, (a, b), None)


def _mv(call: Call) -> Work:
    a, x = call.tensor(0), call.tensor(1)
    m, k = a.dims
    _same(x.dims, (k,))
    return _product(a, m, k, 1, 1, (a, x), None)


def _same(one: object, other: object) -> None:
    if one != other:
        raise ValueError("shapes do not fit")


# Attention ------------------------------------------------------------------------------------


def _attention(call: Call, heads_first: bool, causal_at: int) -> Work:
    """2·B·H·pairs·(d + d_v): scores and their product with the values; queries, keys, values and output once.

    pairs: q·s, or Σ min(i, s) over i = 1 … q where the call is causal (aligned to the top left, as PyTorch has it).
    """
    tensors = [call.tensor(place) for place in range(3)]
    seq, head = (2, 1) if heads_first else (1, 2)
    if any(len(each.dims) != 4 for each in tensors):
        raise ValueError("attention over packed sequences, whose lengths the trace does not tell")
    query, key, value = tensors
    _same(query.dims[3], key.dims[3])
    _same(key.dims[seq], value.dims[seq])
    batch, q, s, heads = query.dims[0], query.dims[seq], key.dims[seq], query.dims[head]
    inside = min(q, s)
    pairs = inside * (inside + 1) // 2 + max(q - s, 0) * s if call.value(causal_at) == "True" else q * s
    flops = 2 * batch * heads * pairs * (query.dims[3] + value.dims[3])
    try:
        out = batch * heads * q * value.dims[3] * query.moved_bytes / max(query.stored, 1)
        moved: float | None = sum(each.moved_bytes for each in tensors) + out
    except ValueError:
        moved = None
    return Work(flops, 0, moved, query.dtype, f"{batch}x{heads} heads, {q} over {s}", (batch, q, s))


#: Whether heads come before tokens, and the place of is_causal (99: there is none), by operator.
ATTENTION = {
    "scaled_dot_product_attention": (True, 5),
    "_scaled_dot_product_flash_attention": (True, 4),
    "_scaled_dot_product_flash_attention_for_cpu": (True, 4),
    "_scaled_dot_product_efficient_attention": (True, 6),
    "_scaled_dot_product_cudnn_attention": (True, 6),
    "_scaled_dot_product_fused_attention_overrideable": (True, 5),
    "_flash_attention_forward": (False, 8),
    "_flash_attn_forward": (False, 5),
    "FlashAttnFunc": (False, 5),
    "flash_attn_func": (False, 5),
}


# Element-wise, reductions, movement -------------------------------------------------------------


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that several broadcast to. Raises ValueError where they do not."""
    dims: list[int] = []
    for place in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(sizes) > 1:
            raise ValueError("shapes do not broadcast")
        dims.append(sizes.pop() if sizes else 1)
    if math.prod(dims) > MOST_ELEMENTS:
        raise ValueError("too large")
    return tuple(reversed(dims))


def _widest(tensors: Sequence[Tensor]) -> Tensor:
    """The tensor whose dtype the result has: floating point before whole numbers, the wider first."""
    return max(tensors, key=lambda each: (each.dtype[:2] in ("fp", "bf"), each.element_bytes or 0))


def _elementwise(call: Call) -> Work:
    tensors = call.given
    if not tensors:
        raise ValueError("no tensor")
    widest = _widest(tensors)
    out = math.prod(_broadcast([each.dims for each in tensors]))
    if widest.element_bytes is None:
        return Work(0, out, None, widest.dtype)
    moved = sum(each.moved_bytes for each in tensors) + out * widest.element_bytes
    return Work(0, out, moved, widest.dtype)


def _compared(call: Call) -> Work:
    """As above, with one byte of truth an element."""
    found = _elementwise(call)
    out = math.prod(_broadcast([each.dims for each in call.given]))
    return Work(0, out, sum(each.moved_bytes for each in call.given) + out, found.dtype)


def _copied(call: Call) -> Work:
    """Source read and target written, as they are stored."""
    target, source = call.tensor(0), call.tensor(1)
    return Work(0, 0, target.elements * _element(target) + source.moved_bytes, source.dtype)


def _cloned(call: Call) -> Work:
    source = call.tensor(0)
    return Work(0, 0, source.moved_bytes + source.elements * _element(source), source.dtype)


def _filled(call: Call) -> Work:
    return Work(0, 0, call.tensor(0).moved_bytes, call.tensor(0).dtype)


def _element(tensor: Tensor) -> float:
    if tensor.element_bytes is None:
        raise ValueError("dtype")
    return tensor.element_bytes


def _reduced(call: Call) -> Work:
    """Input once; the output by the dims that are reduced, all of them where none are told."""
    x = call.tensor(0)
    text = call.value(1).strip("[]")
    axes = {int(part) % len(x.dims) for part in text.split(",") if part.strip()} if text else set(range(len(x.dims)))
    out = math.prod(size for axis, size in enumerate(x.dims) if axis not in axes)
    return Work(0, x.elements, x.moved_bytes + out * _element(x), x.dtype)


def _normalised(call: Call) -> Work:
    """Input, weights and an output as large as the input."""
    x = call.tensor(0)
    return Work(0, x.elements, sum(each.moved_bytes for each in call.given) + x.elements * _element(x), x.dtype)


def _looked_up(call: Call) -> Work:
    """The rows that are asked for, read and written, and the indices."""
    table, index = call.tensor(0), call.tensor(1)
    row = math.prod(table.dims[1:])
    return Work(0, 0, 2 * index.elements * row * _element(table) + index.moved_bytes, table.dtype)


def _selected(call: Call) -> Work:
    table, index = call.tensor(0), call.tensor(2)
    if call.value(1) != "0":
        raise ValueError("rows only")
    row = math.prod(table.dims[1:])
    return Work(0, 0, 2 * index.elements * row * _element(table) + index.moved_bytes, table.dtype)


def _every_argument(call: Call) -> Work:
    """Operators that take their output as an argument: each argument once."""
    tensors = call.given
    return Work(0, tensors[0].elements, sum(each.moved_bytes for each in tensors), _widest(tensors).dtype)


def _added_and_normalised(call: Call) -> Work:
    """Input and residual, read and written in place; the weight once."""
    x, residual, weight = (call.tensor(place) for place in range(3))
    moved = 2 * (x.elements * _element(x) + residual.elements * _element(residual)) + weight.moved_bytes
    return Work(0, x.elements, moved, x.dtype)


def _rotated(call: Call) -> Work:
    """Queries and keys, read and written in place; positions; a row of cosines and sines for each."""
    at, q, k = (call.tensor(place) for place in range(3))
    table = next((each for each in call.given[3:] if len(each.dims) == 2), None)
    rows = at.elements * table.dims[1] * _element(table) if table else 0.0
    moved = 2 * (q.elements * _element(q) + k.elements * _element(k)) + at.moved_bytes + rows
    return Work(0, q.elements + k.elements, moved, q.dtype)


FORMULAS: dict[str, Callable[[Call], Work]] = {
    "mm": _mm,
    "_int_mm": lambda call: _mm(call, 0, 4.0),
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "_scaled_mm": _scaled_mm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "matmul": _matmul,
    "mv": _mv,
    "copy": _copied,
    "clone": _cloned,
    "contiguous": _cloned,
    "fill": _filled,
    "zero": _filled,
    "embedding": _looked_up,
    "index_select": _selected,
    "native_layer_norm": _normalised,
    "_fused_rms_norm": _normalised,
    "_softmax": _normalised,
    "_log_softmax": _normalised,
    "softmax": _normalised,
    "rms_norm": _every_argument,
    "silu_and_mul": _every_argument,
    "gelu_and_mul": _every_argument,
    "gelu_tanh_and_mul": _every_argument,
    "static_scaled_fp8_quant": _every_argument,
    "fused_add_rms_norm": _added_and_normalised,
    "rotary_embedding": _rotated,
}
FORMULAS |= dict.fromkeys("mean sum amax amin prod".split(), _reduced)
FORMULAS |= dict.fromkeys("eq ne lt le gt ge logical_not logical_and logical_or isnan isinf".split(), _compared)
FORMULAS |= dict.fromkeys(
    """add sub mul div neg pow rsqrt sqrt exp log cos sin abs reciprocal square silu gelu relu sigmoid tanh clamp
    clamp_min clamp_max maximum minimum where masked_fill addcmul rsub bitwise_and bitwise_or bitwise_not erf
    softplus leaky_relu""".split(),
    _elementwise,
)
#: Operators of PyTorch that share a name with another library's but not its arguments.
ONLY_ENGINES = {"rms_norm"}


def work_of(name: str, args: Mapping[str, Any]) -> Work | None:
    """What one call does and moves; None where the operator has no formula or its shapes do not fit it."""
    space, _, bare = name.rpartition("::")
    attention = ATTENTION.get(bare)
    formula = FORMULAS.get(bare) or FORMULAS.get(bare.rstrip("_"))
    if (attention is None and formula is None) or (space == "aten" and bare in ONLY_ENGINES):
        return None
    try:
        call = read_call(args)
        if call is None:
            return None
        return _attention(call, *attention) if attention else formula(call) if formula else None
    except (ValueError, IndexError, ZeroDivisionError):
        return None
