"""Start-up logs of engines: the lines of the KV cache as receipts against the predicted capacity.

Lines as the engines print them; the places in their code are named in src/gambrel/measure/logs.py.
"""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gambrel
from gambrel import GambrelError
from gambrel.cli import main
from gambrel.cost.others import Setup, receipt_lines
from gambrel.cost.report import Options, capacity
from gambrel.measure.logs import GIB, Receipt, read_receipt, read_told, receipt_in

V1 = """\
INFO 11-30 01:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{model}', \
max_seq_len={max_len}, tensor_parallel_size=1, quantization=None
INFO 11-30 01:00:20 [gpu_model_runner.py:2392] Model loading took {weights} GiB and 20.432 seconds
INFO 11-30 01:00:30 [gpu_worker.py:298] Available KV cache memory: {memory} GiB
INFO 11-30 01:00:31 [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens
INFO 11-30 01:00:31 [kv_cache_utils.py:1091] Maximum concurrency for {max_len:,} tokens per request: {most}x
"""
V0 = """\
INFO 02-11 09:15:44 llm_engine.py:234] Initializing a V0 LLM engine with config: model='meta-llama/Llama-3.1-8B'
INFO 02-11 09:15:52 model_runner.py:1115] Loading model weights took 14.9888 GB
INFO 02-11 09:15:53 worker.py:267] the current vLLM instance can use total_gpu_memory (23.52GiB) x \
gpu_memory_utilization (0.90) = 21.16GiB
INFO 02-11 09:15:53 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.08GiB; PyTorch activation \
peak memory takes 1.03GiB; the rest of the memory reserved for KV Cache is 5.05GiB.
INFO 02-11 09:15:53 executor_base.py:110] # CUDA blocks: 2588, # CPU blocks: 2048
INFO 02-11 09:15:53 executor_base.py:115] Maximum concurrency for 32768 tokens per request: 1.26x
"""
SGLANG = """\
[2025-11-04 05:27:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B', tp_size=2, mem_fraction_static=0.88)
[2025-11-04 05:27:10 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.1 GB, \
mem usage=7.51 GB.
[2025-11-04 05:27:13 TP0] KV Cache is allocated. #tokens: 500000, K size: 15.26 GB, V size: 15.26 GB
[2025-11-04 05:27:13 TP1] KV Cache is allocated. #tokens: 500000, K size: 15.26 GB, V size: 15.26 GB
[2025-11-04 05:27:13 TP0] max_total_num_tokens=500000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=8.0 GB
"""


def v1(model="openai/gpt-oss-120b", weights=64.38, memory="5.38", tokens=78384, max_len=131072, most=1.17):
    return V1.format(model=model, weights=weights, memory=memory, tokens=tokens, max_len=max_len, most=most)


def setup(model, device, **options):
    m, d = gambrel.load_model(model), gambrel.load_device(device)
    return Setup(m, d, capacity(m, d, Options(**options)), options.get("tp", 1))


def lines(model, device, text, **options):
    return {line.name: line for line in receipt_lines(setup(model, device, **options), receipt_in("x.log", text))}


# The receipts of shared/cases.md ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "memory", "tokens", "reserved"),
    [("gpt-oss-120b", "5.38", 78_384, 73_728), ("gemma-4-31b", "24.54", 26_800, 983_040)],
)
def test_reserved_bytes_of_a_token(model, memory, tokens, reserved):
    line = lines(model, "h100-sxm", v1(memory=memory, tokens=tokens))["KV a token, reserved"]
    assert line.predicted == reserved
    assert line.told == pytest.approx(reserved, rel=1e-3)
    assert line.agrees
    assert "layers differ" in line.why
    half = lines(model, "h100-sxm", v1(memory=memory, tokens=2 * tokens))["KV a token, reserved"]
    assert half.agrees is False


def test_the_capacity_of_an_rtx_4090():
    """41,408 tokens at 0.9 of the memory: 2,588 blocks of 16."""
    receipt = receipt_in("x", V0)
    assert receipt.kv_tokens == 41_408
    assert receipt.notes == ("2,588 blocks of 16 tokens",)
    assert receipt.weights_bytes == pytest.approx(14.9888 * GIB)
    assert receipt.max_len == 32768
    found = lines("llama-3.1-8b", "rtx-4090", V0)
    assert found["KV tokens"].predicted == pytest.approx(41_408, rel=0.005)
    assert found["weights"].predicted == pytest.approx(found["weights"].told, rel=0.003)
    assert found["KV memory"].predicted == pytest.approx(found["KV memory"].told, rel=0.01)
    assert found["KV a token, reserved"].agrees
    assert found["KV a token, reserved"].predicted == 131_072
    assert "all layers alike" in found["KV a token, reserved"].why
    assert found["longest requests at once"].predicted == pytest.approx(1.26, abs=0.01)


def test_the_trap_where_layers_differ():
    """Newer vLLM prints int(max concurrency x max_model_len): with windows it grows with the maximum."""
    from gambrel.model.arch import state_bytes

    model = gambrel.load_model("gemma-3-27b")
    most = 10 * GIB / state_bytes(model.caches, 131072)
    text = v1(memory="10.00", tokens=int(most * 131072), max_len=131072, most=round(most, 2))
    found = lines("gemma-3-27b", "h100-sxm", text)
    assert found["KV a token, reserved"].agrees is False
    assert "layers differ" in found["KV a token, reserved"].why
    assert found["KV a token, reserved"].told < found["KV a token, reserved"].predicted / 2
    assert found["longest requests at once"].predicted == pytest.approx(most, rel=1e-3)


# Wordings ---------------------------------------------------------------------------------------


def test_vllm_v1():
    receipt = receipt_in("x", v1())
    assert receipt.engine == "vLLM"
    assert (receipt.kv_tokens, receipt.max_len, receipt.max_requests, receipt.tp) == (78_384, 131_072, 1.17, 1)
    assert receipt.kv_bytes == pytest.approx(5.38 * GIB)
    assert receipt.kv_rounding_bytes == pytest.approx(0.005 * GIB)
    assert receipt.model_id == "openai/gpt-oss-120b"
    assert [number for number, _ in receipt.lines] == [2, 3, 4, 5]


def test_vllm_in_one_line_and_many_ranks():
    text = (
        "(Worker_TP0 pid=1) INFO Model loading took 15.0 GiB memory and 3.500000 seconds\n"
        "(Worker_TP0 pid=1) INFO Available KV cache memory: 30.10 GiB\n"
        "(Worker_TP1 pid=2) INFO Available KV cache memory: 30.00 GiB\n"
        "INFO GPU KV cache size: 491,520 tokens, Maximum concurrency for 8,192 tokens per request: 60.00x\n"
        "INFO non-default args: {'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.95, 'block_size': 32}\n"
    )
    receipt = receipt_in("x", text)
    assert (receipt.kv_tokens, receipt.max_len, receipt.max_requests) == (491_520, 8192, 60)
    assert receipt.kv_bytes == 30 * GIB
    assert (receipt.tp, receipt.utilization, receipt.block_tokens) == (2, 0.95, 32)
    assert "2 values of KV memory in GiB, the smallest is used: 30.0, 30.1" in receipt.notes
    assert lines("llama-3.1-8b", "h100-sxm", text, tp=2)["KV a token, reserved"].agrees


def test_sglang():
    receipt = receipt_in("x", SGLANG)
    assert receipt.engine == "SGLang"
    assert (receipt.kv_tokens, receipt.max_len, receipt.tp) == (500_000, 131_072, 2)
    assert receipt.kv_bytes == pytest.approx(30.52 * GIB)
    found = lines("llama-3.1-8b", "h100-sxm", SGLANG, tp=2)
    assert found["KV a token, reserved"].agrees
    assert found["KV a token, reserved"].predicted == 65_536
    assert found["weights"].predicted == pytest.approx(found["weights"].told, rel=0.01)
    latent = "[2025-11-04 05:27:13] KV Cache is allocated. #tokens: 524288, KV size: 14.81 GB"
    assert lines("deepseek-v2-lite", "h100-sxm", latent)["KV a token, reserved"].agrees is not None


def test_sglang_with_a_pool_for_windows():
    model = gambrel.load_model("gemma-3-27b")
    full = sum(cache.bytes_per_token * n for cache, n in model.caches if cache.window is None)
    window = sum(cache.bytes_per_token * n for cache, n in model.caches if cache.window)
    size = (200_000 * full + 160_000 * window) / GIB
    parts = [f"KV Cache is allocated. #tokens: {n}, K size: 1.00 GB, V size: 1.00 GB" for n in (160000, 200000)]
    text = "\n".join([*parts, f"SWAKVPool mem usage: {size:.2f} GB, swa size: 160000, full size: 200000"])
    line = lines("gemma-3-27b", "h200", text)["memory of both pools"]
    assert line.agrees
    assert (receipt_in("x", text).window_tokens, receipt_in("x", text).kv_tokens) == (160_000, 200_000)


def test_a_draft_model_comes_after_the_model():
    draft = "[2025-11-04 05:28:13 TP0] KV Cache is allocated. #tokens: 500000, K size: 0.48 GB, V size: 0.48 GB\n"
    loaded = "[2025-11-04 05:28:10 TP0] Load weight end. type=LlamaForCausalLMEagle, mem usage=0.90 GB.\n"
    receipt = receipt_in("x", SGLANG + loaded + draft)
    assert receipt.kv_bytes == pytest.approx(30.52 * GIB)
    assert receipt.weights_bytes == pytest.approx(7.51 * GIB)
    assert receipt.notes == ("2 values of KV memory in GiB, the first is used: 0.48, 15.26",)


# The command ------------------------------------------------------------------------------------


def test_command(tmp_path, capsys):
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(v1().encode()))
    line = ["compare", "gpt-oss-120b", "--device", "h100-sxm", "--file", str(path)]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "78,384 tokens of KV in 5.38 GiB" in shown
    assert "line 4: INFO 11-30 01:00:31" in shown
    assert main([*line, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gambrel.compare_receipt"
    assert {row["name"]: row["agrees"] for row in document["rows"]}["KV a token, reserved"] is True
    for kind in ("csv", "markdown"):
        assert main([*line, "--format", kind]) == 0
    path.write_text(SGLANG)
    assert main(["compare", "llama-3.1-8b", "--device", "h100-sxm", "--file", str(path), "--format", "json"]) == 0


def test_the_logs_own_settings_are_used(tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(SGLANG + "INFO gpu_memory_utilization=0.8\n")
    capsys.readouterr()
    assert main(["compare", "llama-3.1-8b", "--device", "h100-sxm", "--file", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["tp"], document["utilization"]) == (2, 0.8)


# Hostile input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "INFO nothing here",
        "<html>GPU KV cache</html>",
        "GPU KV cache size: many tokens",
        "GPU KV cache size: -5 tokens",
        "GPU KV cache size: " + "9" * 400 + " tokens",
        "Model loading took 15.0 GiB",
        "x" * 30_000 + "GPU KV cache size: 5 tokens",
        "[not json, not a log",
    ],
)
def test_no_receipt(text, tmp_path):
    path = tmp_path / "a.log"
    path.write_text(text)
    with pytest.raises(GambrelError) as caught:
        read_told(str(path))
    assert "a.log" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(GambrelError):
        read_receipt(str(path))


def test_odd_values_give_no_traceback():
    for text in (
        "GPU KV cache size: 0 tokens\nAvailable KV cache memory: 0.00 GiB",
        "Available KV cache memory: 5 GiB",
        "# GPU blocks: 0, # CPU blocks: 0",
        "KV cache size: 5 tokens\n"
        "Maximum concurrency for 0 tokens per request: 0.00x\nAvailable KV cache memory: 1 GiB",
    ):
        for model in ("llama-3.1-8b", "gemma-3-27b", "mamba2-7b", "qwen3-next-80b-a3b"):
            found = receipt_lines(setup(model, "h100-sxm"), receipt_in("x", text))
            assert json.dumps([vars(line) for line in found], allow_nan=False)


LINE = st.sampled_from((*v1().splitlines(), *V0.splitlines(), *SGLANG.splitlines()))
PLAIN = setup("gemma-3-27b", "h100-sxm")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(LINE, st.integers(0, 200), st.text(max_size=6)), max_size=6))
def test_any_log(parts):
    text = "\n".join(line[:cut] + extra + line[cut:] for line, cut, extra in parts)
    try:
        receipt = receipt_in("x", text)
    except GambrelError:
        return
    assert isinstance(receipt, Receipt)
    json.dumps([vars(line) for line in receipt_lines(PLAIN, receipt)], allow_nan=False)
