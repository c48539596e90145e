"""Start-up logs of vLLM and SGLang: the lines that say what memory the KV cache got are receipts for a prediction.

Where the lines were read: vllm/v1/core/kv_cache_utils.py ("GPU KV cache size", "Maximum concurrency"),
vllm/v1/worker/gpu_worker.py ("Available KV cache memory"), vllm/v1/worker/gpu_model_runner.py ("Model loading took");
of V0, vllm/executor/executor_base.py ("# GPU blocks") and vllm/worker/worker.py ("the rest of the memory reserved for
KV Cache"); python/sglang/srt/mem_cache/memory_pool.py ("KV Cache is allocated"), managers/scheduler.py
("max_total_num_tokens") and model_executor/model_runner.py ("Load weight end").

A trap: the KV memory divided by the tokens is not the size of a token where layers differ. Early V1 divides its blocks
by the groups of layers, later ones print int(max concurrency x max_model_len), so a model with windows has more
"tokens" the longer its maximum is.
"""

from __future__ import annotations

import re

from gambrel.measure.files import FileError, plain_text, read_text
from gambrel.measure.results import ServingResult, results_in
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GIB = 2**30
#: Tokens of a block where the log does not say: vLLM's default on GPUs.
BLOCK_TOKENS = 16
#: Longer lines hold no receipt, only text of requests.
LONGEST_LINE = 20_000
#: More than these digits are no memory and no token count.
LARGEST = 10**15


class LogError(FileError):
    """A log without a receipt, or with one that cannot be."""


@frozen
class Receipt:
    """What an engine said of its memory at the start; None where it did not.

    engine: "vLLM" or "SGLang". kv_tokens: tokens that the cache holds [token]. kv_bytes: its memory on one device
    [byte], printed to plus or minus kv_rounding_bytes. weights_bytes: of one device [byte]. max_len: longest request
    [token]. max_requests: requests of that length at once. block_tokens: of one block [token]. utilization: share of
    memory [1]. tp: devices, by the log. window_tokens: that window layers hold where they have their own pool [token].
    model_id: as told. lines: the lines used, by number. notes: what else to know.
    """

    engine: str
    kv_tokens: int | None = None
    kv_bytes: float | None = None
    kv_rounding_bytes: float = 0
    weights_bytes: float | None = None
    max_len: int | None = None
    max_requests: float | None = None
    block_tokens: int | None = None
    utilization: float | None = None
    tp: int | None = None
    window_tokens: int | None = None
    model_id: str | None = None
    lines: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()


_WHOLE = r"(\d{1,3}(?:,\d{3})+|\d+)"
_REAL = r"(\d+(?:\.\d+)?)"

#: Pattern of a line, the engine that prints it, and what its groups are. SGLang's GB and old vLLM's are 2**30 bytes.
PATTERNS: tuple[tuple[re.Pattern[str], str, tuple[str, ...]], ...] = tuple(
    (re.compile(pattern), engine, names)
    for pattern, engine, names in (
        (rf"Available KV cache memory: {_REAL} GiB", "vLLM", ("kv_gib",)),
        (rf"memory reserved for KV Cache is {_REAL} ?GiB", "vLLM", ("kv_gib",)),
        (rf"(?:GPU )?KV cache size: {_WHOLE} tokens", "vLLM", ("kv_tokens",)),
        (
            rf"Maximum concurrency for {_WHOLE} tokens per request: {_REAL}x",
            "vLLM",
            ("max_len", "max_requests"),
        ),
        (rf"# (?:GPU|cuda|CUDA|rocm|hip) blocks: {_WHOLE}", "vLLM", ("gpu_blocks",)),
        (rf"Model loading took {_REAL} Gi?B", "vLLM", ("weights_gib",)),
        (rf"Loading model weights took {_REAL} Gi?B", "vLLM", ("weights_gib",)),
        (rf"Using max model len {_WHOLE}", "vLLM", ("max_len",)),
        (rf"KV Cache is allocated\..*?#tokens: {_WHOLE}", "SGLang", ("kv_tokens",)),
        (
            rf"KV Cache is allocated\..*?K size: {_REAL} GB, V size: {_REAL} GB",
            "SGLang",
            ("kv_gib", "v_gib"),
        ),
        (rf"KV Cache is allocated\..*?KV size: {_REAL} GB", "SGLang", ("kv_gib",)),
        (
            rf"SWAKVPool mem usage: {_REAL} GB, swa size: {_WHOLE}, full size: {_WHOLE}",
            "SGLang",
            ("pools_gib", "window_tokens", "full_tokens"),
        ),
        (rf"max_total_num_tokens={_WHOLE}", "SGLang", ("kv_tokens",)),
        (rf"context_len={_WHOLE}", "SGLang", ("max_len",)),
        (rf"Load weight end\..*?mem usage={_REAL} GB", "SGLang", ("weights_gib",)),
    )
)

#: Settings that either engine prints among its arguments.
SETTINGS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (rf"['\"]?block_size['\"]?[=:] ?{_WHOLE}", "block_tokens"),
        (rf"['\"]?gpu_memory_utilization['\"]?[=:] ?{_REAL}", "utilization"),
        (rf"(?:['\"]?tensor_parallel_size['\"]?[=:] ?|\btp_size=){_WHOLE}", "tp"),
        (rf"\b(?:max_seq_len|max_model_len)['\"]?[=:] ?{_WHOLE}", "max_len"),
        (r"(?:model|model_path)=['\"]([^'\"]{1,200})['\"]", "model_id"),
    )
)


def read_receipt(path: str) -> Receipt:
    """The receipt in a log. Raises LogError for a file without one, FileError for one that cannot be read."""
    return receipt_in(path, read_text(path))


def receipt_in(path: str, text: str) -> Receipt:
    """The receipt in the text of a log."""
    told: dict[str, list[str]] = {}
    used: list[tuple[int, str]] = []
    engines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE:
            continue
        hit = False
        for pattern, engine, names in PATTERNS:
            match = pattern.search(line)
            if match:
                hit = True
                engines.append(engine)
                for name, value in zip(names, match.groups(), strict=True):
                    told.setdefault(name, []).append(value)
        if hit:
            used.append((number, plain_line(line)))
        for setting, name in SETTINGS:
            match = setting.search(line)
            if match:
                told.setdefault(f"set {name}", []).append(match.group(1))
    if not engines or not {"kv_tokens", "kv_gib", "gpu_blocks", "pools_gib"} & told.keys():
        raise LogError(f"{path} has no line of vLLM or SGLang that says the size of the KV cache")
    return _receipt(path, engines[0], told, used)


def plain_line(line: str) -> str:
    """A line for people: printable, and short."""
    return "".join(char for char in line if char.isprintable()).strip()[:200]


def _receipt(path: str, engine: str, told: dict[str, list[str]], used: list[tuple[int, str]]) -> Receipt:
    if "pools_gib" in told:  # its parts are told too, each as a cache of its own
        told = {**told, "kv_gib": told["pools_gib"], "kv_tokens": told["full_tokens"], "v_gib": []}
    choose, word = (min, "smallest") if engine == "vLLM" else (_first, "first")

    def one(name: str, choose: Callable[[list[float]], float] = _first) -> float | None:
        values = [_real(path, name, text) for text in told.get(name, ())]
        return choose(values) if values else None

    notes = []
    for name, figure in (("kv_tokens", "KV tokens"), ("kv_gib", "KV memory in GiB"), ("gpu_blocks", "blocks")):
        values = sorted({_real(path, name, text) for text in told.get(name, ())})
        if len(values) > 1:
            notes.append(f"{len(values)} values of {figure}, the {word} is used: {_some(values)}")
    block, tokens, blocks = one("set block_tokens"), one("kv_tokens", choose), one("gpu_blocks", choose)
    if tokens is None and blocks is not None:
        block = block or BLOCK_TOKENS
        tokens = blocks * block
        notes.append(f"{blocks:,.0f} blocks of {block:,.0f} tokens")
    weights, max_len, models = one("weights_gib"), one("max_len"), told.get("set model_id")
    kv, rounding = _memory(path, told, engine)
    return Receipt(
        engine,
        _whole(tokens),
        kv,
        rounding,
        None if weights is None else weights * GIB,
        _whole(one("set max_len") if max_len is None else max_len),
        one("max_requests"),
        _whole(block),
        one("set utilization"),
        _whole(one("set tp")),
        _whole(one("window_tokens")),
        plain_text(models[0]) if models else None,
        tuple(used[:40]),
        tuple(notes),
    )


def _first(values: list[float]) -> float:
    """The value of the model itself: a draft model's comes later."""
    return values[0]


def _memory(path: str, told: dict[str, list[str]], engine: str) -> tuple[float | None, float]:
    """KV memory of one device, and half a unit of its last digit [byte]. vLLM takes the least of all ranks."""
    texts = told.get("kv_gib")
    if not texts:
        return None, 0
    parts = [min(texts, key=float) if engine == "vLLM" else texts[0], *told.get("v_gib", [])[:1]]
    size = sum(_real(path, "KV memory", part) for part in parts) * GIB
    return size, sum(0.5 * 10.0 ** -len(part.partition(".")[2]) for part in parts) * GIB


def _real(path: str, name: str, text: str) -> float:
    plain = text.replace(",", "")
    value = float(plain) if "." in plain or len(plain) > 18 else int(plain)
    if value > LARGEST:
        raise LogError(f"{path}: {name} is {plain[:30]}; accepted is at most {LARGEST:.0e}")
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _some(values: Iterable[float]) -> str:
    few = [f"{value:,}" for value in values]
    return ", ".join(few[:4]) + (" …" if len(few) > 4 else "")


def read_told(path: str) -> tuple[ServingResult, ...] | Receipt:
    """A result file of a benchmark tool, or an engine's log: told apart by content, whatever the file's name."""
    text = read_text(path)
    try:
        return results_in(path, text)
    except FileError as not_results:
        if "is not JSON" not in str(not_results):
            raise
        try:
            return receipt_in(path, text)
        except LogError as error:
            if text.lstrip()[:1] in "{[":
                raise not_results from None
            raise LogError(f"{error}, and it is no result file of a known tool either") from None
