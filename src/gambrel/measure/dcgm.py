"""DCGM's profiling counters through its command line tool, for GPUs without GPM.

`dcgmi dmon` runs beside the measurement with a fixed list of arguments, no shell, no input, a number of rows after
which it ends by itself, and is ended when the region is. Field ids: dcgm_fields.h.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading

from gambrel.measure.readings import UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gambrel.measure.readings import Tally

DCGM = "DCGM"
#: Counter, id of the field DCGM_FI_PROF_…, and the heading under which dmon prints it.
FIELDS = {
    "sm_active": (1002, "SMACT"),
    "sm_occupancy": (1003, "SMOCC"),
    "tensor_active": (1004, "TENSO"),
    "dram_active": (1005, "DRAMA"),
}
#: What dcgmi says, and what it means here; the first that is found.
SAYS = (
    ("not currently loaded", "its profiling module does not load for this GPU (GeForce has it since Blackwell)"),
    ("non-root", "nv-hostengine may not read performance counters: it must run as root"),
    ("permission", "nv-hostengine may not read performance counters: it must run as root"),
    ("unrecoverable error", "its profiling module failed: another profiler has the counters, or it may not read them"),
    ("unable to connect", "nv-hostengine does not run"),
    ("unable to establish a connection", "nv-hostengine does not run"),
    ("not supported", "this GPU does not support these fields"),
)
#: Rows after which dmon ends in any case, and the longest line that is read of it.
MOST_ROWS = 36_000
LONGEST_LINE = 4096
#: Longest wait for the list of GPUs, for the first row, and for the end [s].
DISCOVERY_S, FIRST_ROW_S, END_S = 10.0, 5.0, 2.0


class Dcgm:
    """One `dcgmi dmon` beside the region; rows count by when they came."""

    def __init__(
        self, uuid: str, interval_s: float, tally: Tally, environ: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        """Raises UnavailableError where there is no DCGM, or it does not know the GPU."""
        self.tally, self.clock, self.interval_s = tally, clock, interval_s
        tool = shutil.which("dcgmi", path=environ.get("PATH"))
        if tool is None:
            raise UnavailableError("dcgmi is not installed")
        self.id = _gpu_id(tool, uuid)
        fields = ",".join(str(number) for number, _ in FIELDS.values())
        delay = str(max(round(interval_s * 1000), 1))
        self.command = [tool, "dmon", "-e", fields, "-i", self.id, "-d", delay, "-c", str(MOST_ROWS)]
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._said: list[str] = []
        self._blank = False
        self._ready = threading.Event()
        self._began_s = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._open()

    def _open(self) -> None:
        """Start the tool and wait for its first row. Raises UnavailableError with what it says instead."""
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise UnavailableError(f"dcgmi does not start: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, name="gambrel-dcgmi", daemon=True)
        self._reader.start()
        self._ready.wait(FIRST_ROW_S)
        if not self._rows:
            self.close()
            raise UnavailableError(self._why() or f"dcgmi gave no value within {FIRST_ROW_S:g} s")

    def begin(self, now_s: float) -> None:
        """From here on rows count."""
        self._began_s = now_s

    def sample(self, now_s: float) -> None:
        """Nothing: rows come by themselves."""

    def end(self, now_s: float, interval_s: float) -> None:
        """Count the rows whose time lies mostly within the region."""
        first_s = self._began_s + self.interval_s / 2
        for at_s, row in tuple(self._rows):
            if first_s <= at_s <= now_s:
                for name, value in row.items():
                    self.tally.add(name, value, DCGM)
        for name in FIELDS:
            if name not in self.tally.values:
                self.tally.refuse(name, self._why() or "no row of dcgmi fell into the region", DCGM)

    def close(self) -> None:
        """End the tool, by force where it does not listen."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(END_S)
        if process.stdout and not self._reader.is_alive():
            process.stdout.close()

    def _why(self) -> str:
        blank = "DCGM gives these fields as N/A for this GPU" if self._blank and not self._rows else ""
        return _meaning(self._said) or blank

    def _read(self) -> None:
        """Rows with the moment at which they came, until the tool ends."""
        process = self._process
        headings: list[str] = []
        for line in _lines(process):
            if line.lstrip().startswith("#"):
                headings = [word for word in line.replace("#", " ").split() if word.lower() != "entity"]
            elif row := parse(line, headings, self.id):
                if len(self._rows) < MOST_ROWS:
                    self._rows.append((self.clock(), row))
                self._ready.set()
            elif "N/A" in line:
                self._blank = True
            elif line.strip() and len(self._said) < 20:
                self._said.append(line.strip())
        self._ready.set()


def _lines(process: subprocess.Popen[str] | None) -> Iterator[str]:
    while process and process.stdout:
        try:
            line = process.stdout.readline(LONGEST_LINE)
        except ValueError:
            return
        if not line:
            return
        yield line


def parse(line: str, headings: list[str], gpu_id: str) -> dict[str, float]:
    """A row "GPU 4   0.571   0.468 …" as shares by counter; empty for any other line, N/A is left out."""
    words = line.split()
    cells = words[len(words) - len(headings) :] if headings else []
    if not cells or words[: len(words) - len(headings)][-1:] != [gpu_id]:
        return {}
    names = {heading: name for name, (_, heading) in FIELDS.items()}
    found = {}
    for heading, cell in zip(headings, cells, strict=True):
        if heading in names and re.fullmatch(r"[01]\.\d+|[01]", cell) and float(cell) <= 1:
            found[names[heading]] = float(cell)
    return found


def _meaning(said: list[str]) -> str:
    """The reason in what the tool said; "" where it said nothing."""
    lines = [line for line in said if line.upper() != "ID"]
    text = " ".join(lines).lower()
    for words, meaning in SAYS:
        if words in text:
            return meaning
    told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    plain = "".join(sign if sign.isprintable() else " " for sign in told)[:160]
    return f"dcgmi says: {plain}" if plain else ""


def _gpu_id(tool: str, uuid: str) -> str:
    """The number that DCGM gives the GPU, which need not be CUDA's or NVML's. Raises UnavailableError."""
    try:
        done = subprocess.run(
            [tool, "discovery", "-l"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DISCOVERY_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise UnavailableError("dcgmi does not answer") from None
    number = ""
    for line in done.stdout[: 2**20].splitlines():
        if line.startswith("+"):
            number = ""
        if row := re.match(r"\|\s*(\d+)\s*\|", line):
            number = row[1]
        if number and uuid and f"UUID: {uuid}" in line:
            return number
    told = _meaning([*done.stdout[-2000:].splitlines(), *done.stderr[-2000:].splitlines()])
    raise UnavailableError(told if done.returncode and told else "DCGM does not know this GPU")
