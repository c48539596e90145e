"""A live profile: a model with random weights runs under PyTorch's profiler, and its trace is read as any other.

Each module's call is a range that carries its qualified path, each pass a range that carries its phase. It runs
eagerly: a graph's replay, or a compiled function, runs no hooks, and so loses which module a kernel is of.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace

from gambrel.measure import engines
from gambrel.measure.build import build, libraries, n_layers
from gambrel.measure.kineto import MODULE
from gambrel.measure.profile import profile
from gambrel.types import GambrelError, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from gambrel.measure.build import Built
    from gambrel.measure.profile import Profile
    from gambrel.measure.run import Setup
    from gambrel.types import Device

#: Passes before the profiler listens: libraries choose kernels and get their workspaces meanwhile.
WARMUPS = 2
#: Decode steps in the trace, where the caller does not say; a prefill is there once.
DECODE_STEPS = 3
#: What the root module, whose own path is empty, is called.
ROOT = "module"
ENDINGS = (".json", ".json.gz")


class LiveError(GambrelError):
    """A model that cannot be profiled here, or a place where its trace cannot be kept."""


def profile_live(
    setup: Setup,
    device: Device | None = None,
    keep: str = "",
    decode_steps: int = DECODE_STEPS,
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Run a prefill and decode steps eagerly under the profiler, and profile the trace.

    device: whose roof to compare with. keep: where the trace stays (.json or .json.gz); "" for nowhere. say: told what
    is being done. Raises LiveError, BuildError or StateError for what cannot run, TraceError for a trace without times.
    """
    _check(setup, keep, decode_steps)
    with tempfile.TemporaryDirectory(prefix="gambrel-") as folder:
        path = keep or os.path.join(folder, "trace.json.gz")
        built = record(setup, path, decode_steps, say)
        say(f"{setup.label}: reading the trace")
        found = profile(path, device)
    if setup.device.startswith("cuda") and found.kind != "device":
        raise LiveError(
            f"the profiler saw no kernel on {setup.device}: CUPTI is missing, not allowed, or another profiler has it"
        )
    source = keep or f"live, {setup.label}"
    return replace(found, source=source, notes=(*_notes(setup, built, decode_steps), *found.notes))


def record(
    setup: Setup, path: str, decode_steps: int = DECODE_STEPS, say: Callable[[str], None] = lambda text: None
) -> Built:
    """Build, warm up, run under the profiler, and write its trace to path. Returns what was built, without hooks.

    Raises as profile_live does.
    """
    hush()
    torch, _ = libraries()
    if setup.device.startswith("cuda") and not torch.cuda.is_available():
        raise LiveError(f"--on {setup.device}: PyTorch sees no CUDA device here")
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    say(f"{setup.label}: random weights in {setup.dtype}")
    built = build(setup.config, setup.dtype, setup.device)
    with _told(setup.label):
        passes = {phase: engines.Pass(torch, built.module, setup.shape(phase)) for phase in setup.phases}
        with module_ranges(torch, built.module):
            for phase, step in passes.items():
                say(f"{setup.label}: {phase}: warming up")
                _run(torch, phase, step, WARMUPS)
            say(f"{setup.label}: profiling")
            made = _profiled(torch, setup.device, passes, {"prefill": 1, "decode": decode_steps})
    try:
        made.export_chrome_trace(path)
    except (OSError, RuntimeError) as error:
        raise LiveError(f"cannot write the trace to {path}: {one_line(error)}"[:300]) from None
    return built


def hush() -> None:
    """Keep the profiler's own log off the terminal; heard only before PyTorch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def range_name(path: str, kind: str) -> str:
    """The name of a module's range: its qualified path, and its class in brackets."""
    return f"{MODULE}{path or ROOT} ({kind})"


@contextlib.contextmanager
def module_ranges(torch: Any, module: Any) -> Iterator[None]:
    """While this holds, every call of every module inside is a range of the profiler; afterwards no hook is left."""
    handles: list[Any] = []
    opened: list[Any] = []

    def hook(child: Any, name: str) -> None:
        def enter(_module: Any, _args: Any) -> None:
            opened.append(torch.profiler.record_function(name))
            opened[-1].__enter__()

        def leave(_module: Any, _args: Any, _result: Any) -> None:
            if opened:
                opened.pop().__exit__(None, None, None)

        # First in and last out, also where the call raises, so that other hooks lie within the range.
        handles.append(child.register_forward_pre_hook(enter, prepend=True))
        handles.append(child.register_forward_hook(leave, always_call=True))

    try:
        for path, child in module.named_modules():
            hook(child, range_name(path, type(child).__name__))
        yield
    finally:
        for handle in handles:
            handle.remove()
        while opened:
            opened.pop().__exit__(None, None, None)


def _run(torch: Any, phase: str, step: engines.Pass, times: int) -> None:
    """Passes of a phase, each a range of its name; as in `run`, putting the state back is part of it."""
    for _ in range(times):
        with torch.profiler.record_function(phase):
            step.reset()
            step.forward()
        if step.module.device.type == "cuda":
            torch.cuda.synchronize()


def _profiled(torch: Any, device: str, passes: Mapping[str, engines.Pass], times: Mapping[str, int]) -> Any:
    """The profiler, after it has listened to every phase."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, *([kinds.CUDA] if device.startswith("cuda") else [])]
    # The first session starts the profiler's own libraries, which would fall into the first pass.
    with torch.profiler.profile(activities=activities):
        torch.ones(1, device=device).sum().item()
    with torch.profiler.profile(activities=activities, record_shapes=True) as made:
        for phase, step in passes.items():
            _run(torch, phase, step, times[phase])
    return made


@contextlib.contextmanager
def _told(label: str) -> Iterator[None]:
    """Whatever a model's own code raises, in one line."""
    try:
        yield
    except GambrelError:
        raise
    except Exception as error:
        raise LiveError(f"{label} cannot run: {one_line(error)}"[:300]) from None


def _check(setup: Setup, keep: str, decode_steps: int) -> None:
    """Raise LiveError for what would fail only after the model is built."""
    other = next((name for name in setup.engines if name != "torch"), "")
    if other:
        raise LiveError(
            f"--engine {other}: a live profile runs eagerly (torch); others lose which module a kernel is of"
        )
    if setup.device != "cpu" and setup.device.partition(":")[0] != "cuda":
        raise LiveError(f"--on {setup.device}: accepted is cpu or cuda:0")
    if decode_steps < 1:
        raise LiveError(f"--steps {decode_steps}: at least 1")
    if not keep:
        return
    if not keep.endswith(ENDINGS):
        raise LiveError(f"--keep {keep}: the name of a trace ends in {' or '.join(ENDINGS)}")
    folder = os.path.dirname(keep) or "."
    if os.path.isdir(keep) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise LiveError(f"--keep {keep}: no file can be written there")


def _notes(setup: Setup, built: Built, decode_steps: int) -> tuple[str, ...]:
    """What ran, and how it differs from what is served."""
    told = []
    for phase in setup.phases:
        batch, new_tokens, context_tokens = setup.shape(phase)
        shape = f"batch {batch}, {new_tokens if phase == 'prefill' else context_tokens} tokens"
        times = 1 if phase == "prefill" else decode_steps
        told.append(f"{phase} {times} x at {shape}{'' if phase == 'prefill' else ' of context'}")
    notes = [
        f"random weights in {setup.dtype}, eager: {'; '.join(told)}; hooks and profiler lengthen what the host does, "
        "so times between operators are longer than in gambrel run",
        *built.notes,
    ]
    layers = n_layers(setup.config)
    if layers != setup.total_layers:
        notes.append(
            f"only the first {layers} of {setup.total_layers} layers: embedding and head weigh more than in the whole "
            "model"
        )
    return tuple(notes)
