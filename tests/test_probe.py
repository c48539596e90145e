"""`gambrel probe`: the definitions, the stream's parser, servers that do well and badly, and a real server."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import sys

import pytest

from gambrel.cli import main
from gambrel.measure import latency, metrics
from gambrel.measure.endpoint import ProbeError, check_url, plain
from gambrel.measure.latency import Arrival, Exchange, summarise
from gambrel.measure.sse import Decoder, Event, StreamError, read_chunk

pytest.importorskip("httpx2", reason="needs httpx2 (pip install gambrel[probe])")

import endpoints
import llama_server
from endpoints import good, serve

from gambrel.measure.probe import Plan, Prompts, Setting, measurements, probe

# The definitions, with scripted times -----------------------------------------------------------


def exchange(sent, times, n=None, client=0, tokens=None, **more):
    tokens = tokens or [None] * len(times)
    arrivals = tuple(Arrival(t, k) for t, k in zip(times, tokens, strict=True))
    return Exchange(client, sent, arrivals, 10, len(times) if n is None else n, **more)


def test_one_request_by_hand():
    x = exchange(1.0, [3.0, 3.5, 4.5, 4.75])
    assert latency.ttft_s(x) == 2.0
    assert latency.tpot_s(x) == 1.75 / 3
    assert latency.e2e_s(x) == 3.75
    assert latency.itl_s(x) == (0.5, 1.0, 0.25)


def test_tokens_of_events_that_tell_them():
    """The first event's further tokens have no gap; an event without a token hands its gap on."""
    x = exchange(0.0, [1.0, 2.0, 2.5, 4.0], n=7, tokens=[2, 4, 0, 1])
    assert latency.itl_s(x) == (0.25, 0.25, 0.25, 0.25, 2.0)
    assert latency.tpot_s(x) == 3.0 / 6


def test_tokens_of_events_that_do_not_tell_are_spread_evenly():
    """Seven tokens in four events: six after the first in three events, two in each."""
    for tokens in (None, [1, 1, None, 1], [3, 3, 3, 3]):
        x = exchange(0.0, [1.0, 2.0, 2.5, 4.0], n=7, tokens=tokens)
        assert latency.itl_s(x) == (0.5, 0.25, 0.75)
    assert sum(latency.itl_s(exchange(0.0, [1.0, 2.0, 4.0], n=7))) == pytest.approx(1.0)


def test_what_has_no_tpot():
    assert latency.tpot_s(exchange(0.0, [1.0])) is None
    assert latency.tpot_s(exchange(0.0, [1.0], n=5)) is None
    assert latency.tpot_s(exchange(0.0, [1.0, 1.0, 1.0])) is None
    assert latency.itl_s(exchange(0.0, [1.0])) == ()
    figures = summarise([exchange(0.0, [1.0], n=5)])
    assert figures.tpot_p50_s is None
    assert any("no TPOT" in line for line in latency.flags(figures, 1, 10, 5))


def test_a_level_by_hand():
    ok = [exchange(0.0, [1.0, 1.5, 1.5, 2.0], client=0), exchange(0.5, [2.0, 2.5, 3.0, 4.0], client=1)]
    figures = summarise([*ok, Exchange(0, 2.0, error="it broke", retries=1)])
    assert (figures.ok, figures.failed, figures.retries) == (2, 1, 1)
    assert figures.window_s == 4.0
    assert figures.output_tokens_per_s == 8 / 4.0
    assert figures.requests_per_s == 0.5
    assert figures.ttft_p50_s == 1.25
    assert figures.ttft_p99_s == pytest.approx(1.0 + 0.99 * 0.5)
    assert figures.tpot_mean_s == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert (figures.gaps, figures.zero_gaps, figures.uneven) == (6, 1, 0)
    told = " | ".join(latency.flags(figures, 2, 10, 5))
    assert "1 of 3 requests failed" in told
    assert "1 of 6 gaps are zero" in told
    assert "answers have 4 tokens, not 5" in told
    nothing = summarise([])
    assert (nothing.ok, nothing.ttft_p50_s, nothing.window_s, nothing.stalls) == (0, None, None, 0)
    assert latency.flags(nothing, 1, 10, 5) == ()


def test_starved_clients():
    """Client 1 waits while client 0's whole answer is streamed; client 2 is late to come; client 3 stalls."""
    first = exchange(0.0, [1.0, 2.0, 3.0], client=0)
    waits = exchange(0.1, [3.5, 4.0], client=1)
    late = exchange(2.5, [5.0, 5.5], client=2)
    assert latency.overtaken([first, waits, late]) == {1, 2}  # 2 waited while the answer to 1 was streamed
    assert latency.overtaken([first, exchange(0.1, [2.9, 4.0], client=1)]) == set()
    assert latency.overtaken([first]) == set()
    steady = exchange(0.0, [i * 0.01 for i in range(1, 50)], client=0)
    stalls = exchange(0.0, [0.01, 0.02, 0.9], client=3)
    figures = summarise([steady, stalls])
    assert (figures.stalls, figures.starved_clients) == (1, 1)
    assert "1 of 4 clients starved, with 1 gaps beyond the limit" in latency.flags(figures, 4, 10, 49)


def test_tokens_in_groups_and_cached_prompts_are_flagged():
    x = exchange(0.0, [1.0, 2.0], n=8, cached_tokens=9)
    told = " | ".join(latency.flags(summarise([x]), 1, 20, 8))
    assert "in 1 of 1 answers events are not single tokens (8 tokens in 2 events)" in told
    assert "90% of the prompts came from the server's cache" in told
    assert "prompts have 10 tokens, not 20" in told
    few = exchange(0.0, [1.0, 2.0], cached_tokens=1)
    assert summarise([Exchange(**{**vars(few), "prompt_tokens": 100})]).cached_share == 0.01


# The stream -------------------------------------------------------------------------------------

STREAM = (
    "\ufeffdata: {\"a\": 1}\n\n: a comment\r\ndata: zwei\r\ndata:drei\r\n\r\nevent: error\rdata: é\r\r"
    "id: 7\nretry: 3\n\nevent: nothing\n\ndata\n\n"
).encode()  # fmt: skip
EVENTS = [Event("message", '{"a": 1}'), Event("message", "zwei\ndrei"), Event("error", "é"), Event("message", "")]


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_chunks_may_be_cut_anywhere(size):
    decoder = Decoder()
    pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in decoder.feed(piece)] + decoder.close() == EVENTS
    assert decoder.comments == 1


def test_a_stream_that_ends_within_an_event():
    decoder = Decoder()
    assert decoder.feed(b"data: [DONE]\n") == []
    assert decoder.close() == [Event("message", "[DONE]")]
    decoder = Decoder()
    assert decoder.feed(b'data: {"half') == []
    assert [read_chunk(event).error for event in decoder.close()] == ["an event that is not JSON"]
    assert Decoder().close() == []


@pytest.mark.parametrize("data", [b"x" * 101, b"data: x\n" * 20, b"data: " + b"y" * 94 + b"\n"])
def test_events_are_bounded(data):
    with pytest.raises(StreamError, match="more than"):
        Decoder(max_bytes=90).feed(data)


def test_what_events_say():
    def read(data, name="message"):
        return read_chunk(Event(name, data if isinstance(data, str) else json.dumps(data)))

    assert read("[DONE]").done
    assert read({"choices": [{"text": "a", "token_ids": [1, 2]}]}).tokens == 2
    assert read({"choices": [{"delta": {"content": "a"}}]}).content
    assert read({"choices": [{"delta": {"reasoning_content": "hm"}}]}).content
    assert read({"choices": [{"delta": {"tool_calls": [{"id": "1"}]}}]}).content
    assert not read({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).content
    assert read({"choices": [{"text": "", "finish_reason": "length"}]}).finished
    assert read({"choices": [], "usage": {"prompt_tokens": 3}}).usage == {"prompt_tokens": 3}
    assert read({"error": {"message": "too long"}}).error == "an error event: too long"
    assert read({"message": "bad"}, "error").error == "an error event: bad"
    for broken in ("{", "[]", "3", '"x"', "null", "[" * 100_000):
        assert "not JSON" in read(broken).error or "not a JSON object" in read(broken).error
    for odd in ({"choices": 3}, {"choices": [3]}, {"choices": [{"delta": 3}]}, {"usage": 3}, {"timings": []}):
        assert read(odd) == read_chunk(Event("message", "{}"))


# Addresses, prompts, fields ---------------------------------------------------------------------


def test_addresses():
    assert check_url("http://h:8000/v1/") == "http://h:8000/v1"
    assert check_url("https://h/v1/chat/completions") == "https://h/v1"
    assert check_url("http://[::1]:80/v1") == "http://[::1]:80/v1"
    for wrong in (
        "ftp://h/v1",
        "h:8000/v1",
        "http://",
        "http://h:99999/v1",
        "http://[h/v1",
        "http://h/v 1",
        "file:///x",
    ):
        with pytest.raises(ProbeError, match="accepted is http"):
            check_url(wrong)
    for secret in ("http://me:geheim@h/v1", "http://h/v1?key=geheim", "http://h/v1#geheim", "http://geheim@[::1"):
        with pytest.raises(ProbeError) as told:
            check_url(secret)
        assert "geheim" not in str(told.value)


def test_text_of_strangers_is_cleaned():
    assert plain("a\x1b[31mb\nc\u202ed") == "a [31mb c d"
    assert plain("key sk-1 shown", "sk-1") == "key … shown"
    assert len(plain("x" * 10_000)) == 160


def test_prompts():
    one, again, other = Prompts(1, False), Prompts(1, False), Prompts(2, False)
    texts = [one.next(50) for _ in range(50)]
    assert texts == [again.next(50) for _ in range(50)]
    assert all(len(text.split()) == 50 for text in texts)
    assert len({tuple(text.split()[:3]) for text in [*texts, other.next(50)]}) == 51
    shared = Prompts(1, True)
    first, second = shared.next(50).split(), shared.next(50).split()
    assert first[:42] == second[:42]
    assert first[42:] != second[42:]


def test_only_accepted_fields_are_sent():
    assert Setting("chat", ("max_tokens",), "m").payload("p", 3) == {
        "model": "m", "messages": [{"role": "user", "content": "p"}], "stream": True, "max_tokens": 3,
    }  # fmt: skip


# Servers that do well ---------------------------------------------------------------------------


def measure(server, **plan):
    return probe(Plan(server.url, **{"input_tokens": 100, "output_tokens": 5, "requests": 4, "seed": 1, **plan}))


def test_a_good_server():
    with serve(pages={"/version": ('{"version": "1.2"}', "application/json")}) as server:
        result = measure(server, concurrency=(1, 3))
    assert (result.model, result.engine, result.version, result.endpoint) == (
        "stub-model",
        "stub",
        "1.2",
        "completions",
    )
    assert result.words == 100
    for level in result.levels:
        figures = level.figures
        assert (figures.ok, figures.failed, figures.prompt_tokens, figures.output_tokens) == (4, 0, 100, 5)
        assert (figures.events, figures.gaps, figures.uneven) == (20, 16, 0)
        assert 0 < figures.ttft_p50_s <= figures.ttft_p99_s <= figures.e2e_p99_s
        assert len(level.warmups) == level.concurrency
        assert not [line for line in level.flags if "zero" not in line and "core" not in line and "starved" not in line]
    bodies = [body for _, body, _ in server.asked]
    assert all(b["stream"] and b["stream_options"]["include_usage"] and b["temperature"] == 0 for b in bodies)
    assert [b["max_tokens"] for b in bodies].count(5) == 8
    assert len({b["prompt"] for b in bodies}) == len(bodies) == 2 + 4 + 8
    assert all("Authorization" not in headers for _, _, headers in server.asked)


def test_chat_where_completions_are_not_there():
    def script(talk):
        return good(talk) if talk.chat else talk.page("no such path", "text/plain", 404)

    with serve(script) as server:
        result = measure(server)
    assert result.endpoint == "chat"
    assert result.levels[0].figures.prompt_tokens == 100  # seven of them the template's
    assert result.words == 93


def test_fields_that_a_server_refuses_are_left_out():
    def script(talk):
        odd = {"ignore_eos", "min_tokens", "temperature", "max_tokens"} & set(talk.body)
        return talk.page('{"error": {"message": "unknown field"}}', status=400) if odd else good(talk)

    with serve(script) as server:
        result = measure(server, endpoint="chat")
    assert result.fields == ("max_completion_tokens", "stream_options")
    assert result.levels[0].figures.ok == 4


def test_events_of_several_tokens():
    def script(talk):
        return good(talk, per_event=2, gap_s=0.02)

    def counted(talk):
        """As vLLM does with continuous_usage_stats."""
        talk.begin()
        for i in (2, 4, 5):
            talk.wait(0.02)
            talk.event(talk.text(finish="length" if i == 5 else None, usage=talk.usage(i)))
        talk.end()

    for each, latencies in ((script, 2), (counted, 3)):
        with serve(each) as server:
            level = measure(server, requests=1).levels[0]
        assert level.figures.events == 3
        assert any("5 tokens in 3 events" in line for line in level.flags)
        assert len(latency.itl_s(level.exchanges[0])) == latencies
        assert latency.itl_s(level.exchanges[0]) != latency.event_gaps_s(level.exchanges[0])


def test_events_in_one_read():
    def script(talk):
        talk.begin()
        events = [talk.text() for _ in range(talk.wanted)] + [talk.text("", "stop"), {"usage": talk.usage(talk.wanted)}]
        talk.raw("".join(f"data: {json.dumps(e)}\r\n\r\n" for e in events).encode())
        talk.end()

    with serve(script) as server:
        level = measure(server).levels[0]
    assert level.figures.zero_gaps == level.figures.gaps == 16
    assert level.figures.tpot_p50_s is None
    assert any("16 of 16 gaps are zero" in line for line in level.flags)


def test_the_servers_own_figures():
    with serve(pages=endpoints.METRICS) as server:
        level = measure(server).levels[0]
    checks = {check.quantity: check for check in level.checks}
    assert checks["TTFT, mean"].server == pytest.approx(0.002)
    assert checks["TTFT, mean"].ours == level.figures.ttft_mean_s
    assert checks["TTFT, mean"].difference == pytest.approx(level.figures.ttft_mean_s - 0.002)
    assert (checks["output tokens"].ours, checks["output tokens"].server) == (20, 16)
    assert checks.keys() == {"TTFT, mean", "output tokens"}
    assert metrics.parse('a{x="} 9"} 1\na 2\nb NaN\nc +Inf\nd x\n\n# a 5\ne 1 1700000000') == {"a": 3, "e": 1}


def test_a_key_is_sent_and_never_shown(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-geheim")
    monkeypatch.setenv("GAMBREL_DATA", str(tmp_path))

    def script(talk):
        echo = f"wrong key {talk.headers['Authorization']}"
        return talk.page(json.dumps({"error": {"message": echo}}), status=500) if talk.number in (5, 16) else good(talk)

    with serve(script) as server:
        for options in ([], ["--format", "json"]):
            assert main(["probe", server.url, "--input", "20", "--output", "3", *options]) == 0
        said = "".join(capsys.readouterr()) + (tmp_path / "runs.jsonl").read_text()
    assert all(headers["Authorization"] == "Bearer sk-geheim" for _, _, headers in server.asked)
    assert "wrong key Bearer …" in said
    assert "geheim" not in said


# Servers that do badly --------------------------------------------------------------------------


def refused(script=good, pages=None, **plan):
    """The one line about it."""
    with serve(script, pages) as server, pytest.raises(ProbeError) as told:
        measure(server, **plan)
    line = str(told.value)
    assert "\n" not in line
    assert len(line) < 500
    return line


def mid_stream(talk):
    talk.begin()
    talk.event(talk.text())
    talk.event(talk.text())
    talk.close_connection = True


def clean_stop(talk):
    talk.begin()
    talk.event(talk.text())
    talk.wfile.write(b"0\r\n\r\n")


def broken_json(talk):
    talk.begin()
    talk.event(talk.text())
    talk.event('{"choices": [')
    talk.event(talk.text("", "stop", usage=talk.usage(1)))
    talk.end()


def huge(talk):
    talk.begin()
    for _ in range(140):
        talk.raw(b": " + b"x" * (1 << 19) + b"\n\n")


def huge_event(talk):
    talk.begin()
    for _ in range(40):
        talk.raw(b"data: " + b"x" * (1 << 20))


def huge_page(talk):
    talk.begin("application/json")
    for _ in range(40):
        talk.raw(b"x" * (1 << 20))


def no_words(talk):
    talk.begin()
    talk.event(talk.text("", "stop", usage=talk.usage(3)))
    talk.end()


def error_event(talk):
    talk.begin()
    talk.event(talk.text())
    talk.raw(b'event: error\ndata: {"error": {"message": "out of \\u001b[1mmemory"}}\n\n')
    talk.end()


def compressed(talk):
    talk.page("x", "text/event-stream", Content_Encoding="gzip")


BAD = [
    (mid_stream, "the connection broke after 2 events of text"),
    (clean_stop, "the stream stopped after 1 events of text, without a reason to finish or [DONE]"),
    (broken_json, "an event that is not JSON"),
    (error_event, "an error event: out of [1mmemory"),
    (huge, "an answer of more than 67,108,864 bytes; reading stopped"),
    (huge_event, "an event of more than 1,048,576 bytes"),
    (huge_page, "an answer of more than 4,194,304 bytes; reading stopped"),
    (no_words, "an answer without text"),
    (compressed, "a compressed stream"),
    (lambda t: good(t, usage=False), "an answer without a usage field"),
    (lambda t: t.page('{"error": {"message": "boom"}}', status=500), "HTTP 500 Internal Server Error: boom"),
    (lambda t: t.page("<html>hello</html>", "text/html"), "HTTP 200: a page of HTML, not an API's answer"),
    (lambda t: t.page('{"choices": []}'), "an answer of type application/json, not an event stream"),
    (lambda t: t.page("busy", "text/plain", 429), "HTTP 429 Too Many Requests: busy"),
    (lambda t: t.page("", status=401), "HTTP 401 Unauthorized; the key is taken from OPENAI_API_KEY"),
    (lambda t: t.page("", status=404), "HTTP 404 Not Found; is the URL the base of the API"),
    (lambda t: t.page("", status=307, Location="http://elsewhere.example/"), "a redirect to http://elsewhere.example/"),
    (lambda t: t.page('{"detail": "nothing suits"}', status=422), "HTTP 422 Unprocessable"),
]


@pytest.mark.parametrize(("script", "told"), BAD, ids=[told for _, told in BAD])
def test_bad_servers_get_one_clear_line(script, told):
    assert told in refused(script)


def test_bad_lists_of_models():
    for page, told in [
        (("<html>", "text/html"), "a page of HTML"),
        (("[]", "application/json"), "no list of models"),
        (('{"data": [3, {}]}', "application/json"), "no list of models"),
        (("", ""), "HTTP 404"),
    ]:
        line = refused(pages={"/v1/models": page})
        assert told in line
        assert "--served-model" in line
    with serve(pages={"/v1/models": ("", "")}) as server:
        assert measure(server, served="mine").model == "mine"
        assert server.asked[0][1]["model"] == "mine"


def test_a_closed_port_is_named():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with pytest.raises(ProbeError, match="no connection"):
        probe(Plan(url))


def silent(talk):
    talk.wait(20)
    talk.close_connection = True


def slow_loris(talk):
    """A byte now and then, never an event."""
    talk.begin()
    while not talk.wait(0.02):
        talk.raw(b"x")


def endless(talk):
    """Events of text without an end."""
    talk.begin()
    while not talk.wait(0.01):
        talk.event(talk.text())


def test_servers_that_never_end_are_bounded():
    from gambrel.measure.endpoint import Limits

    assert "no byte for 0.2 s (--read-timeout)" in refused(silent, limits=Limits(read_s=0.2))
    assert "not finished within --max-time" in refused(silent, max_time_s=0.3)
    assert "not finished within --max-time" in refused(slow_loris, max_time_s=0.8)
    assert "not finished within --max-time after" in refused(endless, max_time_s=1.0)


def test_time_is_over_in_the_middle():
    def script(talk):
        return silent(talk) if talk.number > 5 else good(talk)

    with serve(script) as server:
        result = measure(server, max_time_s=3.0, concurrency=(1, 2), requests=50)
    (level,) = result.levels
    assert level.figures.ok == 3
    assert [(f.message, f.count) for f in level.failures] == [("not finished within --max-time", 1)]
    assert any("4 of 50 requests were sent" in line for line in level.flags)
    assert result.skipped == (2,)


@pytest.mark.parametrize(
    ("after", "ok"), [("0", True), ("0.05", True), ("soon", False), ("9999", False), (None, False)]
)
def test_retry_after_is_respected_once(after, ok):
    def script(talk):
        if talk.number == 4:
            return talk.page("slow down", "text/plain", 429, **({"Retry_After": after} if after else {}))
        return good(talk)

    with serve(script) as server:
        figures = measure(server, max_time_s=30).levels[0].figures
    assert (figures.ok, figures.failed, figures.retries) == ((4, 0, 1) if ok else (3, 1, 0))


def test_retry_after_as_a_date_and_only_once():
    def script(talk):
        return talk.page("no", "text/plain", 429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")

    with serve(script) as server:
        with pytest.raises(ProbeError, match="HTTP 429"):
            measure(server)
        assert len(server.asked) == 2


def test_failures_are_counted_apart():
    with serve(endpoints.partly) as server:
        level = measure(server, requests=10).levels[0]
    assert (level.figures.ok, level.figures.failed) == (7, 3)
    assert [(f.message, f.count) for f in level.failures] == [("HTTP 500 Internal Server Error: out of luck", 3)]


def test_bounds_of_a_plan():
    for wrong in (
        {"concurrency": ()},
        {"concurrency": (0,)},
        {"concurrency": (10_000,)},
        {"requests": 10**6},
        {"input_tokens": 10**9},
        {"output_tokens": 0},
        {"max_time_s": 0},
        {"max_time_s": float("nan")},
    ):
        with pytest.raises(ProbeError):
            Plan("http://h/v1", **wrong)


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GAMBREL_DATA", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    few = ("--input", "100", "--output", "5", "--requests", "4")

    def call(url, *arguments):
        status = main(["probe", url, *few, *arguments])
        return status, *capsys.readouterr()

    return call


BOUND = ("--model", "gpt2", "--device", "h200")


def test_every_format(run, tmp_path):
    with serve(endpoints.partly, endpoints.METRICS) as server:
        status, text, err = run(server.url, *BOUND)
        assert status == 0
        document = json.loads(run(server.url, *BOUND, "--format", "json")[1])
        rows = list(csv.DictReader(io.StringIO(run(server.url, *BOUND, "--format", "csv")[1])))
        assert "| ---" in run(server.url, "--format", "markdown")[1]
    assert max(map(len, text.splitlines())) <= 120
    for told in ("TTFT p50", "(last - first event with text) / (n - 1)", "Against the bound", "server's own figures"):
        assert told in text
    assert "at 1: 1 failed: HTTP 500 Internal Server Error: out of luck" in text
    assert "recorded probe-" in err
    assert (document["schema"], document["model"], document["device"]) == ("gambrel.probe", "gpt2", "h200")
    (level,) = document["levels"]
    bound = level["bound"]
    assert bound["context_tokens"] == 102
    assert bound["decode_fraction"] == bound["decode_bound_s"] / level["tpot_p50_s"]
    assert bound["prefill_fraction"] == bound["prefill_bound_s"] / level["ttft_p50_s"]
    assert {row["table"] for row in rows} == {"levels", "bounds", "checks"}


def test_records(run, tmp_path, capsys):
    from gambrel.measure.record import read_all

    with serve() as server:
        run(server.url, "--concurrency", "1,2", *BOUND)
        assert run(server.url, "--no-record")[2].count("recorded") == 0
    records, told = read_all(str(tmp_path / "runs.jsonl"))
    assert told == []
    phases = [(r.metadata["phase"], r.metadata["concurrency"]) for r in records]
    assert phases == [("decode", 1), ("prefill", 1), ("decode", 2), ("prefill", 2)]
    assert [len(r.values_s) for r in records if r.metadata["phase"] == "prefill"] == [4, 4]
    assert [len(r.warmups_s) for r in records] == [0, 1, 0, 2]
    known = records[2].metadata
    assert (known["batch"], known["new_tokens"], known["context_tokens"]) == (2, 1, 102)
    assert (known["url"], known["model"], known["served_model"]) == (server.url, "gpt2", "stub-model")
    assert known["versions"].keys() >= {"gambrel", "httpx2", "server", "python"}
    assert main(["runs"]) == 0
    assert main(["runs", records[0].id]) == 0


def test_below_the_bound_is_an_error(run):
    with serve() as server:
        status, out, err = run(server.url, "--model", "deepseek-v3", "--device", "rtx-4090")
    assert status == 2
    assert "TTFT p50" in out  # what was measured is shown all the same
    assert "TPOT at 1 client" in err
    assert "an error, not a good result" in err


def test_fewer_decoded_together_than_clients_is_no_error():
    import gambrel
    from gambrel.cost.served import Served, served_bounds

    model, device = gambrel.load_model("llama-3-8b"), gambrel.load_device("h100-sxm")
    one = gambrel.Step(1, 1, 8192)
    many = model.bound(gambrel.Step(64, 1, 8192), device).time_s
    between = (model.bound(one, device).time_s + many) / 2
    found = served_bounds(model, device, 1, Served(64, 8128, 0, 128, between, None))
    assert found.decode_bound_s == many
    assert (found.decode_fraction, found.prefill_fraction, found.errors) == (None, None, ())
    assert "fewer at a time" in found.note
    found = served_bounds(model, device, 1, Served(64, 8128, 128, 128, 2 * many, 10.0))
    assert found.decode_fraction == 0.5
    assert found.prefill_bound_s == model.bound(gambrel.Step(1, 8000, 8000), device).time_s
    assert found.prefill_fraction == found.prefill_bound_s / 10.0


def test_wrong_input(run):
    for arguments, told in [
        (["ftp://h/v1"], "accepted is http"),
        (["http://h/v1", "--model", "gpt2"], "both --model and --device"),
        (["http://h/v1", "--requests", "1000000"], "accepted is 1 to"),
        (["http://h/v1", "--max-time", "0s"], "take a time above 0"),
        (["http://h/v1", "--concurrency", "4096"], "levels of 1 to 1024"),
        (["http://h/v1", "--model", "gpt2", "--device", "h1000"], "h1000"),
        (["http://h/v1", *BOUND, "--tp", "5"], "possible here"),
    ]:
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert told in err
        assert err.count("\n") == 1


def test_a_key_that_is_none(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk\ngeheim")
    status, out, err = run("http://127.0.0.1:1/v1")
    assert (status, out) == (2, "")
    assert "OPENAI_API_KEY holds characters" in err
    assert "geheim" not in err


def test_a_missing_extra_gives_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    assert run("http://127.0.0.1:1/v1") == (2, "", "gambrel: this needs httpx2: pip install 'gambrel[probe]'\n")


# A real server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    pytest.importorskip("xllamacpp", reason="needs llama.cpp's server (pip install xllamacpp)")
    pytest.importorskip("gguf", reason="needs gguf (pip install gambrel[gguf])")
    pytest.importorskip("numpy", reason="needs numpy (pip install gambrel[grid])")
    path = tmp_path_factory.mktemp("llama") / "random.gguf"
    llama_server.write_model(str(path))
    with llama_server.llama_server(path) as address:
        yield address


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_llama_cpp(llama, kind):
    plan = Plan(f"{llama}/v1", (1, 4), 64, 16, 6, endpoint=kind, max_time_s=120)
    result = probe(plan)
    assert result.engine == "llamacpp"
    assert "ignore_eos" in result.fields
    for level in result.levels:
        figures = level.figures
        assert (figures.ok, figures.failed) == (6, 0), level.failures
        assert figures.output_tokens_min == figures.output_tokens_max == 16
        assert abs(figures.prompt_tokens - 64) <= 4
        assert figures.events == 6 * 16  # each token one event
        assert 0 < figures.tpot_p50_s <= figures.tpot_p99_s
        checks = {check.source: check for check in level.checks}
        counted = checks["llamacpp:tokens_predicted_total"]
        assert counted.ours == counted.server == 6 * 16
        assert checks.keys() >= {"llamacpp:tokens_predicted_seconds", "timings.prompt_ms"}
        # The server's clock runs inside ours: it cannot have waited longer for a first token than we did.
        assert checks["timings.prompt_ms"].difference > 0
    assert len(measurements(result, {"model": "random", "device": None})) == 4


def test_llama_cpp_with_more_clients_than_slots(llama):
    """Four slots and eight clients: those without a slot wait for whole answers, and are said to starve."""
    level = probe(Plan(f"{llama}/v1", (8,), 32, 24, 16, max_time_s=120)).levels[0]
    assert level.figures.ok == 16, level.failures
    assert level.figures.starved_clients > 0
    assert any("clients starved" in line for line in level.flags)


def test_llama_cpp_keeps_a_shared_prefix(llama):
    plan = Plan(f"{llama}/v1", (1,), 128, 4, 4, shared_prefix=True, max_time_s=120)
    level = probe(plan).levels[0]
    assert level.figures.cached_share > 0.5
    assert any("came from the server's cache" in line for line in level.flags)


def test_any_endpoint():
    """A slow check by hand: `transformers serve`, vLLM's CPU build, or any other; see docs/probe.md."""
    url = os.environ.get("GAMBREL_ENDPOINT")
    if not url:
        pytest.skip("no endpoint (set GAMBREL_ENDPOINT)")
    plan = Plan(url, (1, 2), 64, 16, 4, served=os.environ.get("GAMBREL_SERVED_MODEL", ""))
    for level in probe(plan).levels:
        assert (level.figures.ok, level.figures.failed) == (4, 0), level.failures
        assert level.figures.output_tokens_total > 0
        assert level.figures.ttft_p50_s > 0
