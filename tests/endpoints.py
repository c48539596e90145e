"""Stub servers on 127.0.0.1 that answer as scripted, well and badly. Every one is closed, its threads joined."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Talk(BaseHTTPRequestHandler):
    """One connection; helpers that scripts use."""

    protocol_version = "HTTP/1.1"
    timeout = 5
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        body, kind = self.server.pages.get(self.path, ("", ""))
        if callable(body):
            return body(self)
        status = 200 if kind else 404
        return self.page(body or "nothing here", kind or "text/plain", status)

    def do_POST(self):
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.number = len(self.server.asked)
            self.server.asked.append((self.path, self.body, dict(self.headers)))
        try:
            self.server.script(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def page(self, text, kind="application/json", status=200, **headers):
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self, kind="text/event-stream; charset=utf-8"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def raw(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, data):
        self.raw(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

    def end(self):
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def wait(self, seconds):
        """As long as that, or until the server is closed."""
        return self.server.closing.wait(seconds)

    @property
    def chat(self):
        return self.path.endswith("/chat/completions")

    @property
    def wanted(self):
        return self.body.get("max_tokens") or self.body.get("max_completion_tokens")

    @property
    def prompt_tokens(self):
        """A token a word; a chat template adds seven."""
        text = self.body["messages"][0]["content"] if self.chat else self.body["prompt"]
        return len(text.split()) + 7 * self.chat

    def usage(self, tokens):
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens}

    def text(self, text=" word", finish=None, **more):
        choice = {
            "index": 0,
            "finish_reason": finish,
            **({"delta": {"content": text}} if self.chat else {"text": text}),
        }
        return {"choices": [choice], "system_fingerprint": "stub-1", **more}


def good(talk, per_event=1, gap_s=0.004, usage=True, events=None):
    """A well-behaved stream."""
    talk.begin()
    if talk.chat:
        talk.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for _ in range(events if events is not None else -(-talk.wanted // per_event)):
        talk.wait(gap_s)
        talk.event(talk.text(" word" * per_event))
    talk.event(talk.text("", "length"))
    if usage:
        talk.event({"choices": [], "usage": talk.usage(talk.wanted)})
    talk.end()


MODELS = json.dumps({"object": "list", "data": [{"id": "stub-model", "owned_by": "stub"}]})


@contextmanager
def serve(script=good, pages=None):
    """The address of a server with this script for POST, and these pages for GET."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Talk)
    server.daemon_threads = False
    server.script, server.lock, server.closing, server.asked = script, threading.Lock(), threading.Event(), []
    server.pages = {"/v1/models": (MODELS, "application/json"), **(pages or {})}
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def metered(talk):
    """/metrics with vLLM's names that grow with what was asked; the first reading comes before any timed request."""
    n = len(talk.server.asked)
    talk.page(
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        f'vllm:time_to_first_token_seconds_bucket{{le="0.1",model_name="a b"}} {n}\n'
        f'vllm:time_to_first_token_seconds_sum{{model_name="a b"}} {n * 0.002}\n'
        f'vllm:time_to_first_token_seconds_count{{model_name="a b"}} {n}\n'
        f"vllm:generation_tokens_total {n * 4}\nnot a sample at all\nbroken{{ 1\n",
        "text/plain",
    )


def partly(talk):
    """Of the requests for more than four tokens, which warm-ups are not, one in four fails."""
    timed = sum(body["max_tokens"] > 4 for _, body, _ in list(talk.server.asked))
    if talk.wanted > 4 and timed % 4 == 2:
        return talk.page('{"error": {"message": "out of luck"}}', status=500)
    return good(talk, gap_s=0.01)


METRICS = {"/metrics": (metered, "")}
