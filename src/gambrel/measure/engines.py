"""Ways to run the same forward pass: eager, torch.compile, and a captured CUDA graph that is replayed.

What a graph needs of the device stands behind the small interface `Capturer`, so that its logic runs without a GPU.
"""

from __future__ import annotations

import warnings

from gambrel.measure import single_rows, state
from gambrel.types import GambrelError, one_line
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Engine(Protocol):
        """One way to run a pass. name: as in --engine."""

        name: str

        def prepare(self, step: Pass) -> None:
            """Compile or capture; nothing of it is timed."""

        def run(self) -> Any:
            """One repetition from the same state: the logits, which the next one may overwrite."""

    class Capturer(Protocol):
        """What a graph needs of the device."""

        def capture(self, before: Callable[[], None], call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
            """Warm the call up apart, capture it once: what replays it, and its output, whose memory replays write."""


#: Calls before a capture, which libraries need for their workspaces and choices.
CAPTURE_WARMUPS = 3


class EngineError(GambrelError):
    """An engine that this machine does not have, or a model that it cannot run."""


class Pass:
    """One forward pass that begins from the same state every time.

    new_tokens: 1 is a decode step to context_tokens keys; more is a fresh prompt of as many. An encoder-decoder encodes
    the prompt and makes one token; its decode step attends to a source of context_tokens too.
    """

    def __init__(
        self, torch: Any, module: Any, shape: tuple[int, int, int], fill: Callable[[int, str, Any], None] | None = None
    ) -> None:
        batch, new_tokens, context_tokens = shape
        kind = "a decode step" if new_tokens == 1 else "a prefill"
        self.what = f"{kind} of {batch} x {max(new_tokens, context_tokens):,} tokens"
        self.torch, self.module = torch, module
        if new_tokens > 1:
            self.cache = state.empty_cache(torch, module, batch)
        else:
            self.cache = state.filled_cache(torch, module, batch, context_tokens, fill)
        if state.encodes(module):
            tokens, fresh = (new_tokens, True) if new_tokens > 1 else (context_tokens, False)
            self.inputs = state.source_inputs(torch, module, batch, tokens, self.cache, fresh)
        else:
            self.inputs = state.inputs(torch, module, (batch, new_tokens), self.cache)
        self.snapshot = state.Snapshot(torch, self.cache)
        self.reset, self.restore = self.snapshot.reset, self.snapshot.restore

    def forward(self, call: Any = None) -> Any:
        """The logits of the last row of each sequence [batch, 1, vocabulary]. Raises EngineError."""
        try:
            with self.torch.no_grad():
                return (self.module if call is None else call)(**self.inputs).logits
        except Exception as error:  # whatever the model's own code raises: positions it has not, memory that is full
            raise EngineError(f"{self.what} cannot run: {one_line(error)}"[:300]) from None

    def result(self, engine: Engine) -> Any:
        """Logits from the state as it was at first, as a float32 copy on the host."""
        self.restore()
        return engine.run().float().cpu().clone()


class Eager:
    """Operators launched one by one, as transformers runs them."""

    name = "torch"

    def prepare(self, step: Pass) -> None:
        """Nothing to do."""
        self.step = step

    def run(self) -> Any:
        """One repetition."""
        self.step.reset()
        return self.step.forward()


class Compiled:
    """torch.compile with fixed shapes: operators fused, fewer launches.

    On a processor products with a single row become loops, which stream the weights nearly as fast as they can be read.
    """

    name = "compile"

    def prepare(self, step: Pass) -> None:
        """Compile, by running twice: the first run may still specialise."""
        self.step = step
        step.torch._dynamo.reset()
        backend = single_rows.compiler(step.torch) if step.module.device.type == "cpu" else "inductor"
        self.call = step.torch.compile(step.module, dynamic=False, backend=backend)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(2):
                    self.run()
        except Exception as error:  # whatever the compiler and the toolchain behind it raise
            raise EngineError(f"torch.compile fails: {one_line(error)}"[:300]) from None

    def run(self) -> Any:
        """One repetition."""
        self.step.reset()
        with state.unmasked():
            return self.step.forward(self.call)


class Graph:
    """The kernels of the eager run captured once and replayed: the same work, one launch."""

    name = "graph"

    def __init__(self, capturer: Capturer) -> None:
        self.capturer = capturer

    def prepare(self, step: Pass) -> None:
        """Capture the pass from the state that every repetition begins with."""
        self.step = step
        try:
            self.replay, self.output = self.capturer.capture(step.reset, step.forward)
        except (RuntimeError, EngineError) as error:
            told = one_line(error).partition(": ")[2]
            raise EngineError(f"this pass cannot be captured as a CUDA graph: {told}"[:300]) from None
        finally:
            step.reset()

    def run(self) -> Any:
        """One replay. Lengths on the device are put back first, as the captured kernels advance them."""
        self.step.reset()
        self.replay()
        return self.output


class CudaCapturer:
    """torch.cuda's graphs."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def capture(self, before: Callable[[], None], call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Warm up on a stream of its own, as capture requires, then capture."""
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(CAPTURE_WARMUPS):
                before()
                call()
        cuda.current_stream().wait_stream(stream)
        before()
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            output = call()
        return graph.replay, output


def engine(name: str, torch: Any, device: str) -> Engine:
    """An engine by name. Raises EngineError for one that this device does not have."""
    if name == "graph" and not device.startswith("cuda"):
        raise EngineError("--engine graph captures CUDA graphs, and this runs on a CPU; accepted here: torch, compile")
    if name == "graph":
        return Graph(CudaCapturer(torch))
    kinds: dict[str, Callable[[], Engine]] = {"torch": Eager, "compile": Compiled}
    if name not in kinds:
        raise EngineError(f"--engine {name}: accepted is torch, compile, graph")
    return kinds[name]()


@frozen
class Agreement:
    """Two engines' logits. difference: largest, over the largest logit [1]. same_tokens: the same token everywhere."""

    difference: float
    same_tokens: bool


#: Largest difference between engines that rounding explains, over the largest logit, by dtype [1].
TOLERANCE = {"fp32": 1e-3, "bf16": 6e-2, "fp16": 1e-2}


def agreement(one: Any, other: Any) -> Agreement:
    """How far two results are apart."""
    largest = float(one.abs().max())
    difference = float((one - other).abs().max()) / largest if largest else float(other.abs().max())
    return Agreement(difference, bool((one.argmax(-1) == other.argmax(-1)).all()))
