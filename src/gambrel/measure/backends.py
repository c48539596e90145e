"""The cases of a calibration, run by PyTorch on a processor or a CUDA device."""

from __future__ import annotations

from gambrel.measure import machine
from gambrel.measure.calibrate import COPY, LAUNCH, PRODUCT, READ, Case, Unsupported
from gambrel.measure.clock import EventTimer, WallTimer
from gambrel.types import one_line
from gambrel.units import si

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from gambrel.measure.calibrate import Shape
    from gambrel.measure.clock import Timer

#: PyTorch's names of the dtypes that are stored as such; tf32 is stored as fp32.
STORED = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CPU_DTYPES = ("fp32", "bf16", "fp16", "int8")
CUDA_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
#: First compute capability whose matrix units multiply it; below that it would be something else that is timed.
CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9), "int8": (7, 5)}
#: Columns of the matrix that a matrix-vector product reads.
COLUMNS = 4096


def backend(device: str | None = None, threads: int | None = None) -> TorchBackend:
    """The backend of a device; by default the first CUDA device, else the processor."""
    torch = machine.load_torch()
    chosen = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    kind, _, number = chosen.partition(":")
    if kind == "cuda" and (number.isdigit() or chosen == "cuda"):
        return CudaBackend(torch, f"cuda:{number or 0}")
    if chosen != "cpu":
        raise machine.MachineError(f"--device {chosen}: accepted is cpu or cuda:0, cuda:1, …")
    return TorchBackend(torch, threads)


class TorchBackend:
    """The processor. Random data; buffers are first touched by all threads, so that every memory node holds a part."""

    device = "cpu"
    dtypes: Sequence[str] = CPU_DTYPES

    def __init__(self, torch: Any, threads: int | None = None) -> None:
        self.torch = torch
        most = threads or torch.get_num_threads()
        self.thread_counts: Sequence[int] = (1, most) if most > 1 else (1,)
        self.memory_bytes = machine.memory_bytes() or 0
        if not self.memory_bytes:
            raise machine.MachineError("this system does not say how much memory it has")
        self.last_cache_bytes = machine.last_cache_bytes() or 2**25

    def set_threads(self, threads: int) -> None:
        """Use this many threads from now on."""
        self.torch.set_num_threads(threads)

    def describe(self, threads: int) -> dict[str, Any]:
        """Metadata of the machine."""
        return machine.describe(self.device, threads)

    def timer(self, kind: str) -> Timer:
        """The wall clock."""
        return WallTimer()

    def product(self, dtype: str, shape: Shape) -> Case:
        """An m x k matrix times a k x n one: 2·m·n·k FLOPs."""
        m, n, k = shape
        torch = self.torch
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            call = self._product(dtype, m, n, k)
            call()
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            raise Unsupported(one_line(error)[:120]) from None
        return Case(PRODUCT, "matmul", 2 * m * n * k, call, dtype, f"m {m} n {n} k {k}")

    def _product(self, dtype: str, m: int, n: int, k: int) -> Any:
        torch = self.torch
        if dtype == "fp8":
            a, b = (self._random((rows, k), "float32").to(torch.float8_e4m3fn) for rows in (m, n))
            one = torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(
                a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        if dtype == "int8":
            a, b = (self._whole((rows, k)) for rows in (m, n))
            return lambda: torch._int_mm(a, b.t())
        a, b = self._random((m, k), STORED[dtype]), self._random((k, n), STORED[dtype])
        out = torch.empty((m, n), dtype=a.dtype, device=self.device)
        return lambda: torch.mm(a, b, out=out)

    def reads(self, n_bytes: int) -> Iterator[Case]:
        """Sum, maximum, dot product and matrix-vector product over n_bytes of fp32."""
        torch, rows = self.torch, max(n_bytes // 4 // COLUMNS, 2)
        matrix = self._random((rows, COLUMNS), "float32")
        flat, vector = matrix.view(-1), self._random((COLUMNS,), "float32")
        halves = flat[: flat.numel() // 2], flat[flat.numel() // 2 :]
        moved = 4 * flat.numel()
        yield Case(READ, "sum", moved, lambda: torch.sum(flat), "fp32", si(moved, "B"))
        yield Case(READ, "max", moved, lambda: torch.amax(flat), "fp32", si(moved, "B"))
        yield Case(READ, "dot", moved, lambda: torch.dot(*halves), "fp32", si(moved, "B"))
        yield Case(READ, "matrix-vector", moved, lambda: torch.mv(matrix, vector), "fp32", si(moved, "B"))

    def copies(self, n_bytes: int) -> Iterator[Case]:
        """A copy (one read, one write) and a sum of two (two reads, one write), n_bytes in all."""
        torch = self.torch
        source = self._random((n_bytes // 4,), "float32")
        half, third = source.numel() // 2, source.numel() // 3
        a, b = source[:half], source[half : 2 * half]
        yield Case(COPY, "copy", 8 * half, lambda: b.copy_(a), "fp32", si(8 * half, "B"))
        x, y, z = source[:third], source[third : 2 * third], source[2 * third : 3 * third]
        yield Case(COPY, "add", 12 * third, lambda: torch.add(x, y, out=z), "fp32", si(12 * third, "B"))

    def tiny(self) -> Case:
        """One number plus one, in place."""
        number = self.torch.zeros((), device=self.device)
        return Case(LAUNCH, "add of one number", 1, lambda: number.add_(1.0), "fp32", "1")

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        buffer = self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=self.device)
        machine.use_huge_pages(buffer)
        return buffer.fill_(0).uniform_(-1.0, 1.0)

    def _whole(self, shape: tuple[int, ...]) -> Any:
        return self.torch.randint(-127, 128, shape, dtype=self.torch.int8, device=self.device)


class CudaBackend(TorchBackend):
    """A CUDA device: kernels timed by its own events, launches by the clock around many of them."""

    def __init__(self, torch: Any, device: str) -> None:
        facts = machine.gpu_facts(device)
        self.torch, self.device = torch, device
        self.thread_counts = (1,)
        self.memory_bytes = int(facts["memory_bytes"])
        self.last_cache_bytes = int(facts["l2_bytes"] or 2**26)
        capability = tuple(int(part) for part in str(facts["capability"]).split("."))
        amd = getattr(torch.version, "hip", None) is not None
        self.dtypes = [dtype for dtype in CUDA_DTYPES if amd or capability >= CAPABILITY.get(dtype, (0, 0))]
        torch.cuda.set_device(device)

    def set_threads(self, threads: int) -> None:
        """A launch comes from one thread."""

    def timer(self, kind: str) -> Timer:
        """Events; for launches the clock, since the processor is what takes the time."""
        cuda = self.torch.cuda
        return WallTimer(cuda.synchronize, on_host=False) if kind == LAUNCH else EventTimer(cuda)

    def reads(self, n_bytes: int) -> Iterator[Case]:
        """Those of fp32, and the matrix-vector product of a decode step in bf16."""
        yield from super().reads(n_bytes)
        if "bf16" in self.dtypes:
            matrix = self._random((max(n_bytes // 2 // COLUMNS, 2), COLUMNS), "bfloat16")
            vector = self._random((COLUMNS,), "bfloat16")
            moved, torch = 2 * matrix.numel(), self.torch
            yield Case(READ, "matrix-vector", moved, lambda: torch.mv(matrix, vector), "bf16", si(moved, "B"))
