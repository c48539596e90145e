"""llama.cpp's own server (the xllamacpp wheel) on a small model with random weights, in a process of its own.

The rows of the output matrix that belong to byte, start, end and unknown tokens are zero, so that the most likely token
is always a whole word and each token is one event of the stream.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

LAYERS, HIDDEN, HEADS, KV_HEADS, WORDS, CONTEXT = 4, 256, 4, 2, 200, 2048


def write_model(path):
    """A llama of 4 layers with hidden size 256: 2.6 million parameters."""
    import gguf
    import numpy as np

    out = gguf.GGUFWriter(path, "llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    special = len(tokens)
    tokens += ["▁" + chr(97 + i % 26) + chr(97 + i // 26) for i in range(WORDS)]
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(2 * HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(HIDDEN // HEADS)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * special + [-float(i) for i in range(WORDS)])
    out.add_token_types([2, 3, 3] + [6] * 256 + [1] * WORDS)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    draw = np.random.default_rng(0)

    def matrix(name, rows, columns, scale=0.05):
        values = (draw.standard_normal((rows, columns)) * scale).astype(np.float32)
        values[: special if name == "output" else 0] = 0
        out.add_tensor(f"{name}.weight", values)

    matrix("token_embd", len(tokens), HIDDEN, 1.0)
    matrix("output", len(tokens), HIDDEN, 1.0)
    out.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in (f"blk.{i}" for i in range(LAYERS)):
        for norm in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", kv, HIDDEN),
            ("attn_v", kv, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", 2 * HIDDEN, HIDDEN),
            ("ffn_up", 2 * HIDDEN, HIDDEN),
            ("ffn_down", HIDDEN, 2 * HIDDEN),
        ):
            matrix(f"{layer}.{name}", rows, columns)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@contextmanager
def llama_server(path, slots=4):
    """Its address, once it says that it is healthy; ended, and waited for, afterwards."""
    command = [sys.executable, __file__, str(path), str(slots)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            _healthy(address)
            yield address
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _healthy(address):
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server never became healthy")


def main(path, slots):
    """Serve until stdin is closed. One thread of arithmetic; a thread of HTTP for each connection."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel = CONTEXT * slots, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port, params.n_threads_http = ["127.0.0.1"], 0, 16
    params.endpoint_metrics, params.warmup, params.verbosity = True, False, 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
