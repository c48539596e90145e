"""An OpenAI-compatible endpoint measured: latency, throughput and errors at levels of concurrency.

A closed loop: at each level N clients send one request after the other until all are done, after a warm-up that is kept
apart. Prompts are made of random words, as long as wanted by the server's own count, and none shares a beginning with
another unless that is asked for, since servers keep prefixes. Requests and time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import field

from gambrel.measure import latency, metrics
from gambrel.measure.endpoint import BASE, Endpoint, Limits, ProbeError, check_url, load_httpx, plain
from gambrel.measure.record import Measurement
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from gambrel.measure.latency import Exchange, Latency
    from gambrel.measure.metrics import Check

#: Output tokens of a warm-up request, and of the requests that find the length of prompts.
FEW_TOKENS = 4
#: Words of the first of these.
FEW_WORDS = 64
#: Words at the end of a prompt that differ under --shared-prefix.
OWN_WORDS = 8
#: Bounds of a plan.
MOST_REQUESTS, MOST_CLIENTS, MOST_LEVELS, MOST_INPUT, MOST_OUTPUT = 100_000, 1024, 32, 1 << 22, 1 << 17
#: Share of a core beyond which this client's own work is in its times.
BUSY = 0.8

WORDS = """
able acid aged also area army away baby back ball band bank base bath bear beat been beer bell belt best bill bird blow
blue boat body bomb bond bone book boom born boss both bowl bulk burn bush busy cake call calm came camp card care case
cash cast cell chat chip city club coal coat code cold come cook cool cope copy core cost crew crop dark data date dawn
days dead deal dean dear debt deep deny desk dial diet disc disk does door dose down draw drew drop drug dual duke dust
duty each earn ease east easy edge else even ever face fact fail fair fall farm fast fate fear feed feel feet fell felt
file fill film find fine fire firm fish five flat flow food foot ford form fort four free from fuel full fund gain game
""".split()

#: What is asked of the server, from all that helps to what every server takes; the first set that is accepted is used.
FIELDS = (
    ("max_tokens", "temperature", "stream_options", "min_tokens", "ignore_eos", "continuous_usage_stats"),
    ("max_tokens", "temperature", "stream_options", "ignore_eos"),
    ("max_tokens", "temperature", "stream_options"),
    ("max_completion_tokens", "stream_options"),
)


@frozen
class Plan:
    """What to measure. input_tokens, output_tokens: of each request. concurrency: clients, a level each.

    requests: timed ones of each level, None for twice the clients and at least 8. max_time_s: of everything. endpoint:
    "completions", "chat", or "auto" for the first that answers. served: the model's name at the server, "" for the
    first that it lists. shared_prefix: prompts differ in their last words alone. seed: of the prompts, None for another
    each time.
    """

    url: str
    concurrency: tuple[int, ...] = (1,)
    input_tokens: int = 1024
    output_tokens: int = 128
    requests: int | None = None
    max_time_s: float = 300.0
    endpoint: str = "auto"
    served: str = ""
    shared_prefix: bool = False
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 1 <= len(self.concurrency) <= MOST_LEVELS or not all(1 <= n <= MOST_CLIENTS for n in self.concurrency):
            raise ProbeError(f"--concurrency takes 1 to {MOST_LEVELS} levels of 1 to {MOST_CLIENTS} clients")
        if self.requests is not None and not 1 <= self.requests <= MOST_REQUESTS:
            raise ProbeError(f"--requests {self.requests}: accepted is 1 to {MOST_REQUESTS}")
        if not (1 <= self.input_tokens <= MOST_INPUT and 1 <= self.output_tokens <= MOST_OUTPUT):
            raise ProbeError(f"--input takes 1 to {MOST_INPUT} tokens, --output 1 to {MOST_OUTPUT}")
        if not 0 < self.max_time_s <= 86_400 or not 0 < self.limits.read_s <= 86_400:
            raise ProbeError("--max-time and --read-timeout take a time above 0 and at most 24 h")

    def requests_of(self, clients: int) -> int:
        """Timed requests of a level."""
        return self.requests if self.requests is not None else max(2 * clients, 8)


@frozen
class Failure:
    """Requests that failed in the same way."""

    message: str
    count: int


@frozen
class Level:
    """One level of concurrency. figures: see Latency. failures, flags: lines for people. checks: with the server's own.

    client_busy: processor time of this client over wall time [1]. warmups: requests apart.
    """

    concurrency: int
    figures: Latency
    failures: tuple[Failure, ...]
    flags: tuple[str, ...]
    checks: tuple[Check, ...]
    client_busy: float
    warmups: tuple[Exchange, ...]
    exchanges: tuple[Exchange, ...]


@frozen
class Probe:
    """What was measured. url: as given. model, engine, version: as the server names them. fields: what it was asked.

    words: of a prompt. skipped: levels that --max-time left no time for. notes: lines for people.
    """

    plan: Plan
    url: str
    model: str
    engine: str
    version: str
    endpoint: str
    fields: tuple[str, ...]
    words: int
    seed: int
    started_at: str
    elapsed_s: float
    levels: tuple[Level, ...]
    skipped: tuple[int, ...]
    notes: tuple[str, ...]


@frozen
class Setting:
    """What a server accepts, found before anything is timed. words: of a prompt."""

    kind: str
    fields: tuple[str, ...]
    model: str
    words: int = FEW_WORDS

    def payload(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        """The body of a request."""
        options = {"include_usage": True}
        if "continuous_usage_stats" in self.fields:
            options["continuous_usage_stats"] = True
        values = {
            "max_tokens": output_tokens,
            "max_completion_tokens": output_tokens,
            "temperature": 0,
            "stream_options": options,
            "min_tokens": output_tokens,
            "ignore_eos": True,
        }
        text: dict[str, Any] = {"prompt": prompt}
        if self.kind == "chat":
            text = {"messages": [{"role": "user", "content": prompt}]}
        return {"model": self.model, **text, "stream": True, **{k: v for k, v in values.items() if k in self.fields}}


class Prompts:
    """Random words, the same for the same seed; each next prompt is another from its first word on."""

    def __init__(self, seed: int, shared_prefix: bool) -> None:
        from random import Random

        self.seed, self.shared, self.sent = seed, shared_prefix, 0
        self._random: Callable[[str], Random] = Random

    def next(self, words: int) -> str:
        """The next prompt of so many words."""
        self.sent += 1
        own = self._random(f"{self.seed}/{self.sent}")
        if not self.shared:
            return " ".join(own.choices(WORDS, k=words))
        shared = self._random(f"{self.seed}").choices(WORDS, k=max(words - OWN_WORDS, 0))
        return " ".join([*shared, *own.choices(WORDS, k=min(words, OWN_WORDS))])


def probe(plan: Plan, told: Callable[[str], object] = lambda line: None) -> Probe:
    """Measure an endpoint; `told` gets a line at each level. Raises ProbeError for one that cannot be measured."""
    load_httpx()
    base = check_url(plan.url)
    return asyncio.run(_probe(plan, base, told))


async def _probe(plan: Plan, base: str, told: Callable[[str], object]) -> Probe:
    loop, key = asyncio.get_running_loop(), os.environ.get("OPENAI_API_KEY", "").strip()
    began, started_at = loop.time(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    seed = plan.seed if plan.seed is not None else int.from_bytes(os.urandom(4), "big")
    prompts = Prompts(seed, plan.shared_prefix)
    levels, skipped = [], []
    async with Endpoint(base, plan.limits, began + plan.max_time_s, key, max(plan.concurrency)) as endpoint:
        model, engine, notes = await _identify(endpoint, plan)
        setting, sample = await _calibrate(endpoint, plan, prompts, model)
        version = await _version(endpoint) or sample.fingerprint
        for clients in plan.concurrency:
            if endpoint.left_s() <= 0:
                skipped.append(clients)
                continue
            told(f"{plan.requests_of(clients)} requests of {clients} {_clients(clients)}")
            levels.append(await _level(endpoint, plan, setting, prompts, clients))
    if not any(level.figures.ok for level in levels):
        failures = [f.message for level in levels for f in level.failures]
        raise ProbeError(f"no request went well: {failures[0] if failures else 'no time was left (--max-time)'}")
    return Probe(
        plan,
        base,
        plain(model, key),
        engine,
        version,
        setting.kind,
        setting.fields,
        setting.words,
        seed,
        started_at,
        loop.time() - began,
        tuple(levels),
        tuple(skipped),
        tuple(notes),
    )


def _clients(number: int) -> str:
    return "clients" if number > 1 else "client"


# Before anything is timed ---------------------------------------------------------------------


async def _identify(endpoint: Endpoint, plan: Plan) -> tuple[str, str, list[str]]:
    """The model's name at the server, who made the server, and notes."""
    page = await endpoint.get(endpoint.base + "/models")
    listed = page.json() if not page.error else None
    rows = listed.get("data") if isinstance(listed, dict) else None
    models = [row for row in rows if isinstance(row, dict) and row.get("id")] if isinstance(rows, list) else []
    notes = []
    if endpoint.key and endpoint.base.startswith("http://") and not _local(endpoint.base):
        notes.append("OPENAI_API_KEY was sent over plain http")
    named = {str(row["id"]): plain(str(row.get("owned_by") or ""), endpoint.key, 40) for row in models}
    if plan.served:
        return plan.served, named.get(plan.served, next(iter(named.values()), "")), notes
    if not models:
        problem = page.error or f"no list of models; {BASE}"
        raise ProbeError(f"GET {endpoint.base}/models: {problem} (or name the model with --served-model)")
    first = next(iter(named))
    if len(named) > 1:
        notes.append(f"the server lists {len(named)} models; the first was used (--served-model names another)")
    return first, named[first], notes


def _local(url: str) -> bool:
    from urllib.parse import urlsplit

    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


async def _version(endpoint: Endpoint) -> str:
    """As vLLM tells it; "" where there is none."""
    page = await endpoint.get(endpoint.root + "/version")
    found = page.json() if page.status == 200 and not page.error else None
    return plain(str(found.get("version") or ""), endpoint.key, 60) if isinstance(found, dict) else ""


async def _calibrate(endpoint: Endpoint, plan: Plan, prompts: Prompts, model: str) -> tuple[Setting, Exchange]:
    """Find what the server accepts, and how many words make a prompt of the wanted length.

    Two requests: one short, one as long as the first suggests; the number of words is on the line through both, since
    a chat template adds tokens of its own.
    """
    few = min(FEW_WORDS, plan.input_tokens)
    output = min(FEW_TOKENS, plan.output_tokens)
    setting, first = await _negotiate(endpoint, plan, prompts.next(few), output, model)
    tokens = first.prompt_tokens or 1
    words = max(round(few * plan.input_tokens / tokens), 1)
    second = await endpoint.complete(0, setting.kind, setting.payload(prompts.next(words), output))
    if second.error:
        raise ProbeError(f"POST {endpoint.base}, a prompt of about {plan.input_tokens} tokens: {second.error}")
    more = (second.prompt_tokens or tokens) - tokens
    if words != few and more * (words - few) > 0:
        words = max(round(few + (plan.input_tokens - tokens) * (words - few) / more), 1)
    return Setting(setting.kind, setting.fields, model, words), second


async def _negotiate(
    endpoint: Endpoint, plan: Plan, prompt: str, output_tokens: int, model: str
) -> tuple[Setting, Exchange]:
    """The first kind of request and set of fields that the server accepts."""
    kinds = ("completions", "chat") if plan.endpoint == "auto" else (plan.endpoint,)
    problem = ""
    for setting in (Setting(kind, fields, model) for kind in kinds for fields in FIELDS):
        if problem.startswith(f"POST {setting.kind} is not"):
            continue
        exchange = await endpoint.complete(0, setting.kind, setting.payload(prompt, output_tokens))
        if not exchange.error:
            return setting, exchange
        problem = f"POST {endpoint.base}, {setting.kind}: {exchange.error}"
        if exchange.status in (404, 405, 501):
            problem = f"POST {setting.kind} is not at {endpoint.base}: {exchange.error}"
        elif exchange.status not in (400, 422):
            break
    raise ProbeError(problem)


# One level ------------------------------------------------------------------------------------


async def _level(endpoint: Endpoint, plan: Plan, setting: Setting, prompts: Prompts, clients: int) -> Level:
    """A warm-up of each client, then the timed requests, and the server's own figures around them."""
    few = min(FEW_TOKENS, plan.output_tokens)
    warmups = await _closed_loop(endpoint, setting, prompts, iter([few] * clients), clients)
    before = await _metrics(endpoint)
    wall, busy = time.perf_counter(), time.process_time()
    work = iter([plan.output_tokens] * plan.requests_of(clients))
    exchanges = await _closed_loop(endpoint, setting, prompts, work, clients)
    busy = (time.process_time() - busy) / max(time.perf_counter() - wall, 1e-9)
    after = await _metrics(endpoint) if before is not None else None
    figures = latency.summarise(exchanges)
    flags = latency.flags(figures, clients, plan.input_tokens, plan.output_tokens)
    if busy > BUSY:
        flags += (f"this client used {busy:.0%} of a core: its own work is in the times",)
    if len(exchanges) < plan.requests_of(clients):
        flags += (f"{len(exchanges)} of {plan.requests_of(clients)} requests were sent within --max-time",)
    messages = [x.error for x in exchanges if x.error]
    return Level(
        clients,
        figures,
        tuple(Failure(message, messages.count(message)) for message in dict.fromkeys(messages)),
        flags,
        metrics.checks(before or {}, after or {}, exchanges),
        busy,
        tuple(warmups),
        tuple(exchanges),
    )


async def _closed_loop(
    endpoint: Endpoint, setting: Setting, prompts: Prompts, work: Iterator[int], clients: int
) -> list[Exchange]:
    """Each client sends its next request when its last one is over, until there is no work or no time."""
    done: list[Exchange] = []

    async def client(number: int) -> None:
        for output_tokens in work:
            if endpoint.left_s() <= 0:
                return
            payload = setting.payload(prompts.next(setting.words), output_tokens)
            done.append(await endpoint.complete(number, setting.kind, payload))

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return done


async def _metrics(endpoint: Endpoint) -> dict[str, float] | None:
    """What the server counts; None where it does not say."""
    page = await endpoint.get(endpoint.root + "/metrics")
    return metrics.parse(page.text) if page.status == 200 and not page.error else None


# Afterwards -----------------------------------------------------------------------------------


def to_dict(result: Probe) -> dict[str, Any]:
    """In SI units, for the JSON document."""
    plan = result.plan
    return {
        "url": result.url,
        "served_model": result.model,
        "engine": result.engine,
        "version": result.version,
        "endpoint": result.endpoint,
        "fields": list(result.fields),
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
        "prompt_words": result.words,
        "shared_prefix": plan.shared_prefix,
        "seed": result.seed,
        "started_at": result.started_at,
        "elapsed_s": result.elapsed_s,
        "notes": list(result.notes),
        "skipped": list(result.skipped),
        "definitions": dict(latency.DEFINITIONS),
        "levels": [level_dict(level) for level in result.levels],
    }


def level_dict(level: Level) -> dict[str, Any]:
    """One level in numbers."""
    return {
        "concurrency": level.concurrency,
        **vars(level.figures),
        "warmups": len(level.warmups),
        "client_busy": level.client_busy,
        "failures": [dict(vars(failure)) for failure in level.failures],
        "flags": list(level.flags),
        "checks": [{**vars(check), "difference": check.difference} for check in level.checks],
    }


def measurements(result: Probe, about: Mapping[str, Any]) -> list[Measurement]:
    """Records of each level: each request's TPOT as decode, its TTFT as prefill. about: model, dtype, device."""
    from uuid import uuid4

    from gambrel.measure.machine import describe

    client = describe()
    facts = {
        "machine": client["machine"],
        "client": {"cpu": client["cpu"], "cores": client["cores"], "os": client["os"]},
        "versions": {**client["versions"], "httpx2": str(load_httpx().__version__), "server": result.version},
        "engine": result.engine or "unknown",
        "git_revision": client["git_revision"],
        **{k: v for k, v in to_dict(result).items() if k not in ("definitions", "levels", "engine", "version")},
        **about,
    }
    found = []
    for level in result.levels:
        f = level.figures
        good = [x for x in level.exchanges if not x.error]
        context = round((f.prompt_tokens or 0) + (f.output_tokens or 0) / 2)
        shared = {**facts, "concurrency": level.concurrency, "flags": list(level.flags), "failed": f.failed}
        decode = {**shared, "phase": "decode", "batch": level.concurrency, "new_tokens": 1, "context_tokens": context}
        tokens = round(f.prompt_tokens or 0)
        prefill = {**shared, "phase": "prefill", "batch": 1, "new_tokens": tokens, "context_tokens": tokens}
        warm = tuple(latency.ttft_s(x) for x in level.warmups if not x.error)
        tpots = tuple(t for x in good if (t := latency.tpot_s(x)) is not None)
        for what, values, warmups, metadata in (
            ("TPOT", tpots, (), decode),
            ("TTFT", tuple(latency.ttft_s(x) for x in good), warm, prefill),
        ):
            if values:
                name = f"{what} of {result.model}, {level.concurrency} {_clients(level.concurrency)}"
                found.append(Measurement(f"probe-{uuid4().hex[:12]}", name, values, warmups, metadata))
    return found
