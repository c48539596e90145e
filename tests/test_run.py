"""Models with random weights: built once, filled, run by every engine, timed, recorded, judged.

CUDA graphs are tried on a device that is not there: what they need of one stands behind a small interface.
"""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

from gambrel.cli import main
from gambrel.measure import build as building
from gambrel.measure import clock, engines, machine, record, single_rows, state
from gambrel.measure import run as running
from gambrel.measure.build import BuildError, config_dtype, config_hash, n_layers, trim
from gambrel.measure.verdict import CEILINGS, Evidence, judge
from gambrel.types import Bound, GambrelError, one_line

BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
LLAMA = {**BASE, "model_type": "llama"}
LATENT = {
    **BASE,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
#: One for each kind of cache layer whose contents a growing cache has too.
FILLED = {
    "dense": LLAMA,
    "windows alone": {**BASE, "model_type": "mistral", "sliding_window": 8},
    "window and dense": {**BASE, "model_type": "gemma3_text", **WINDOWS},
    "experts and sinks": {**BASE, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, **WINDOWS},
    "latent": {**LATENT, "model_type": "deepseek_v3"},
    "learned positions": {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128},
}
#: And those with a state.
STATEFUL = {
    "linear": {
        **BASE,
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "state space": {"model_type": "mamba2", "num_hidden_layers": 2, "hidden_size": 64, "num_heads": 8, "head_dim": 16}
    | {"state_size": 16, "n_groups": 1, "vocab_size": 128},
    "both at once": {**BASE, "model_type": "falcon_h1", "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}
    | {"mamba_d_state": 16},
    "convolution": {**BASE, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
    # with few index heads many scores are zero, and which of equal ones are picked is chance
    "indexed": {**LATENT, "model_type": "deepseek_v32", "index_head_dim": 16, "index_n_heads": 16, "index_topk": 8},
}
ENCODERS = {
    "relative positions": {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    | {"num_decoder_layers": 2, "vocab_size": 128, "is_encoder_decoder": True, "decoder_start_token_id": 0},
    "text": {"model_type": "bart", "d_model": 64, "encoder_layers": 3, "decoder_layers": 2, "vocab_size": 128}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    | {"max_position_embeddings": 64, "is_encoder_decoder": True, "forced_eos_token_id": None},
    "audio": {"model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 128}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    | {"max_source_positions": 12, "max_target_positions": 64, "num_mel_bins": 8, "is_encoder_decoder": True}
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1},
}
QUICK = clock.Plan(1, 3, 0.001, 1.0, 0)
TORCH = "needs CPU PyTorch (pip install gambrel[oracle])"


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("transformers", reason="needs transformers (pip install gambrel[oracle])")
    return pytest.importorskip("torch", reason=TORCH)


@pytest.fixture
def one_thread(torch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(config, dtype="fp32"):
    return building.build(config, dtype, "cpu")


def setup(config=LLAMA, **options):
    options = {"dtype": "fp32", "threads": 1, "prompt_tokens": 8, "context_tokens": 8, "plan": QUICK} | options
    return running.Setup("tiny", config, n_layers(config), **options)


# Building -------------------------------------------------------------------------------------


def test_one_copy_of_the_weights(torch):
    """Tied weights are one tensor, nothing is left on the meta device, small parameters have their own values."""
    built = tiny({**LLAMA, "tie_word_embeddings": True})
    model = built.module
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert built.n_params == sum(p.numel() for p in model.parameters())
    assert {p.device.type for p in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert bool((model.model.norm.weight == 1).all())
    assert model.model.rotary_emb.inv_freq[0] == 1
    weight = model.model.layers[0].mlp.up_proj.weight
    assert float(weight.std()) == pytest.approx(64**-0.5, rel=0.05)
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu", "building leaves PyTorch as it was"


def test_memory_is_that_of_one_copy(torch):
    """The allocator hands out the matrices once: one storage each, of exactly their bytes."""
    module = tiny({**LLAMA, "hidden_size": 128}, "bf16").module
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in module.parameters()}
    assert sum(storages.values()) == sum(p.numel() * 2 for p in module.parameters())


def test_what_cannot_be_built_is_named(torch):
    for config, told in [
        ({"model_type": "nothing"}, "no model_type 'nothing'"),
        ({"model_type": "vit"}, "no language model for vit"),
        ({**LLAMA, "hidden_size": "wide"}, "cannot build this config"),
    ]:
        with pytest.raises(BuildError, match=told):
            tiny(config)
    with pytest.raises(BuildError, match="accepted is fp32, bf16, fp16"):
        tiny(LLAMA, "fp8")


def test_no_remote_code(torch):
    built = tiny({**LLAMA, "auto_map": {"AutoModelForCausalLM": "evil--evil.Model"}, "quantization_config": {"x": 1}})
    assert type(built.module).__module__ == "transformers.models.llama.modeling_llama"
    assert "quantisation is left out" in built.notes[0]


def test_fewer_layers():
    config = {
        **LLAMA,
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "a", "b"],
        "mlp_only_layers": [0, 3],
        "eos_token_id": [1, 2],
    }
    cut = trim(config, 3)
    assert cut["num_hidden_layers"] == 3
    assert cut["layer_types"] == ["a", "b", "a"]
    assert cut["mlp_only_layers"] == [0]
    assert cut["eos_token_id"] == [1, 2]
    assert config["num_hidden_layers"] == 4
    nested = trim({"model_type": "x", "text_config": config}, 1)
    assert (n_layers(nested), nested["text_config"]["layer_types"]) == (1, ["a"])
    assert trim({**config, "num_kv_shared_layers": 2}, 3)["num_kv_shared_layers"] == 0
    assert trim(config, None) == config
    for wrong in (0, 5):
        with pytest.raises(BuildError, match="accepted is 1 to 4"):
            trim(config, wrong)
    with pytest.raises(BuildError, match="names no number of layers"):
        trim({"model_type": "x"}, 1)
    assert config_hash(config) == config_hash(dict(reversed(config.items()))) != config_hash(cut)


@pytest.mark.parametrize("kind", ["window and dense", "latent"])
def test_fewer_layers_run(torch, one_thread, kind):
    (found,) = running.run(setup(trim(FILLED[kind], 1), phases=("decode",)), lambda made: None)
    assert found.metadata["layers"] == 1


def test_dtype_of_a_config():
    for named, told in [("float16", "fp16"), ("torch.bfloat16", "bf16"), ("float32", "bf16"), (None, "bf16")]:
        assert config_dtype({"torch_dtype": named}) == told
    assert config_dtype({"text_config": {"dtype": "float16"}}) == "fp16"


# The cache ------------------------------------------------------------------------------------


def contents(torch, module, ids):
    """What a real prefill of the prompt leaves in a growing cache."""
    import transformers

    from gambrel.measure.state import cache_argument

    cache = transformers.DynamicCache(config=module.config)
    with torch.no_grad():
        module(**{"input_ids": ids, cache_argument(module): cache, "use_cache": True})
    return cache


@pytest.mark.parametrize("context", [6, 20])
@pytest.mark.parametrize("kind", [*FILLED, *STATEFUL])
def test_a_filled_cache_is_a_prompt(torch, one_thread, kind, context):
    """With the contents of a real prefill in place of random ones, decode gives the whole prompt's last logits."""
    from gambrel.measure.engines import Eager, Pass

    module = tiny({**FILLED, **STATEFUL}[kind]).module
    ids = torch.arange(2 * context).reshape(2, context) * 37 % 128
    real = contents(torch, module, ids[:, :-1])

    def fill(layer, name, tensor):
        name, _, key = name.partition(".")
        kept = getattr(real.layers[layer], name)
        kept = kept[int(key)] if key else kept
        if tensor.shape[-2] == kept.shape[-2]:
            tensor.copy_(kept)
            return
        oldest = (context - 1) % tensor.shape[-2]  # a ring: its oldest key is overwritten, the others are in any order
        assert kept.shape[-2] == tensor.shape[-2] - 1
        others = [slot for slot in range(tensor.shape[-2]) if slot != oldest]
        tensor[..., others, :] = kept

    step, eager = Pass(torch, module, (2, 1, context), fill), Eager()
    step.inputs["input_ids"] = ids[:, -1:]
    eager.prepare(step)
    with torch.no_grad():
        whole = module(input_ids=ids).logits[:, -1:]
    torch.testing.assert_close(step.result(eager), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_filled_cache_is_a_text_and_its_source(torch, one_thread, kind):
    """The same for an encoder-decoder, whose decode step attends to its own tokens and to the source."""
    import transformers

    module, context = tiny(ENCODERS[kind]).module, 12
    ids = torch.arange(2 * context).reshape(2, context) * 37 % 128
    real = transformers.EncoderDecoderCache(*(transformers.DynamicCache(config=module.config) for _ in range(2)))
    cached = {state.cache_argument(module): real}
    source = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.randn(2, 12, 64))
    with torch.no_grad():
        module(decoder_input_ids=ids[:, :-1], encoder_outputs=source, use_cache=True, **cached)
        whole = module(decoder_input_ids=ids, encoder_outputs=source, use_cache=False).logits[:, -1:]
    kept = state.layers(real)
    step, eager = (
        engines.Pass(torch, module, (2, 1, context), lambda i, n, t: t.copy_(getattr(kept[i], n))),
        engines.Eager(),
    )
    step.inputs |= {"decoder_input_ids": ids[:, -1:], "encoder_outputs": source}
    eager.prepare(step)
    torch.testing.assert_close(step.result(eager), whole, rtol=1e-4, atol=1e-4)
    assert {layer.keys.shape[-2] for layer in state.layers(step.cache)} == {context}


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_prefill_encodes(torch, one_thread, kind):
    """What a repetition left in the cache of the source is not taken for the next one's."""
    module = tiny(ENCODERS[kind]).module
    step, eager = engines.Pass(torch, module, (2, 12, 12)), engines.Eager()
    eager.prepare(step)
    first = step.result(eager)
    name = module.main_input_name
    step.inputs[name] = step.inputs[name] + 1
    with torch.no_grad():
        given = {name: step.inputs[name], "decoder_input_ids": step.inputs["decoder_input_ids"]}
        wanted = module(**given, use_cache=False).logits
    torch.testing.assert_close(step.result(eager), wanted, rtol=1e-4, atol=1e-4)
    assert engines.agreement(first, wanted).difference > 1e-3


@pytest.mark.parametrize("kind", [*FILLED, *STATEFUL, *ENCODERS])
def test_repetitions_begin_from_the_same_state(torch, one_thread, kind):
    """Finite, the same again after many repetitions, and a cache that has not grown."""
    from gambrel.measure.engines import Eager, Pass, agreement

    module = tiny({**FILLED, **STATEFUL, **ENCODERS}[kind]).module
    for shape in ((2, 1, 24), (2, 16, 16)):
        step, eager = Pass(torch, module, shape), Eager()
        eager.prepare(step)
        first = step.result(eager)
        assert first.shape == (2, 1, 128)
        assert bool(first.isfinite().all())
        held = sizes(torch, step.cache)
        for _ in range(5):
            eager.run()
        assert sizes(torch, step.cache) == held
        assert agreement(first, step.result(eager)).difference == 0


def sizes(torch, cache):
    return [
        (name, tuple(value.shape))
        for layer in state.layers(cache)
        for name, value in vars(layer).items()
        if isinstance(value, torch.Tensor)
    ]


def test_the_cache_holds_the_context(torch):
    from gambrel.measure.engines import Pass

    step = Pass(torch, tiny(LLAMA).module, (3, 1, 24))
    for layer in step.cache.layers:
        assert layer.keys.shape == (3, 2, 24, 16)
        assert int(layer.cumulative_length) == 23
        assert float(layer.keys[:, :, :23].std()) > 0.5
    windowed = Pass(torch, tiny(FILLED["windows alone"]).module, (3, 1, 24))
    assert {layer.keys.shape[-2] for layer in windowed.cache.layers} == {8}


def test_a_state_of_its_own_kind_is_refused(torch):
    from gambrel.measure.engines import Pass
    from gambrel.measure.state import StateError

    rwkv = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    with pytest.raises(StateError, match="state of its own kind"):
        Pass(torch, tiny({**rwkv, "attention_hidden_size": 64}).module, (1, 1, 8))


# Engines --------------------------------------------------------------------------------------


class Recorder:
    """A device that captures: every operator runs once while it is captured, and a replay runs them again."""

    def __init__(self, broken=0.0):
        self.broken, self.told = broken, []

    def capture(self, before, call):
        for _ in range(3):
            before()
            call()
        before()
        output = call()
        self.told.append("captured")

        def replay():
            self.told.append("replayed")
            output.copy_(call() + self.broken)

        return replay, output


@pytest.mark.parametrize("kind", ["dense", "window and dense", "latent"])
@pytest.mark.parametrize("shape", [(2, 1, 24), (2, 16, 16)])
def test_a_graph_replays_the_same(torch, one_thread, kind, shape):
    """Every replay begins from the state of the capture, though the captured kernels advance it."""
    from gambrel.measure.engines import Eager, Graph, Pass, agreement

    step, device = Pass(torch, tiny(FILLED[kind]).module, shape), Recorder()
    eager, graph = Eager(), Graph(device)
    eager.prepare(step)
    plain = step.result(eager)
    graph.prepare(step)
    for _ in range(3):
        assert agreement(plain, step.result(graph)).difference == 0
    assert device.told == ["captured", "replayed", "replayed", "replayed"]


@pytest.mark.parametrize("kind", [*FILLED, *STATEFUL])
@pytest.mark.parametrize("shape", [(2, 1, 24), (2, 1, 6), (2, 16, 16)])
def test_nothing_that_a_capture_forbids(torch, one_thread, kind, shape):
    """No number goes to the host and none comes from it: both wait for the device, which no capture permits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from gambrel.measure.engines import Pass

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func._overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    step = Pass(torch, tiny({**FILLED, **STATEFUL}[kind]).module, shape)
    step.forward()  # what is made once is made here, as in a capture's warm-up
    step.reset()
    with Watch():
        step.forward()
    assert {"_local_scalar_dense", "lift_fresh", "nonzero"} & set(seen) == set()
    assert "addmm" in seen or "mm" in seen


def test_a_capture_that_fails_is_one_line(torch):
    from gambrel.measure.engines import EngineError, Graph, Pass

    class Refuses:
        def capture(self, before, call):
            raise RuntimeError("operation not permitted when stream is capturing\nand a long story")

    step = Pass(torch, tiny(LLAMA).module, (1, 1, 8))
    with pytest.raises(EngineError, match="cannot be captured as a CUDA graph: operation not permitted") as caught:
        Graph(Refuses()).prepare(step)
    assert "\n" not in str(caught.value)
    assert int(step.cache.layers[0].cumulative_length) == 7, "the state is as before"


def test_a_pass_that_fails_inside_a_capture_is_told_as_a_capture(torch):
    """The model's own error arrives wrapped, and the reason that matters is that it was captured."""
    step = engines.Pass(torch, tiny(LLAMA).module, (1, 1, 8))
    step.module = lambda **_: (_ for _ in ()).throw(RuntimeError("not permitted when capturing"))

    class Direct:
        def capture(self, before, call):
            return before, call()

    with pytest.raises(engines.EngineError, match=r"cannot be captured as a CUDA graph: .*not permitted") as caught:
        engines.Graph(Direct()).prepare(step)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ValueError: "),
        ("plain", "ValueError: plain"),
        ("\n  first\nsecond", "ValueError: first"),
        ("validator 'x':\n    wrong size\nmore", "ValueError: validator 'x': wrong size"),
        ("alone:", "ValueError: alone:"),
    ],
)
def test_another_librarys_error_is_one_line(text, told):
    assert one_line(ValueError(text)) == told


def test_the_cuda_capturer_asks_in_the_right_order(torch):
    """Warm-ups on a side stream that waits and is waited for, the state put back before each, then the capture."""
    from contextlib import contextmanager, nullcontext
    from types import SimpleNamespace

    from gambrel.measure.engines import CudaCapturer

    told = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            told.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def graph(into):
        told.append("capture begins")
        yield
        told.append("capture ends")

    cuda = SimpleNamespace(
        Stream=Stream,
        current_stream=lambda: Stream("main"),
        stream=lambda stream: nullcontext(told.append(f"on {stream.name}")),
        synchronize=lambda: told.append("synchronise"),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: told.append("replay")),
        graph=graph,
    )
    capturer = CudaCapturer(SimpleNamespace(cuda=cuda))
    replay, output = capturer.capture(lambda: told.append("reset"), lambda: told.append("call") or "logits")
    replay()
    assert output == "logits"
    assert told == [
        "side waits for main",
        "on side",
        *["reset", "call"] * 3,
        "main waits for side",
        "reset",
        "synchronise",
        "capture begins",
        "call",
        "capture ends",
        "replay",
    ]


def test_engines_that_are_not_there(torch):
    from gambrel.measure.engines import CudaCapturer, EngineError, Graph, engine

    with pytest.raises(EngineError, match="this runs on a CPU"):
        engine("graph", torch, "cpu")
    assert isinstance(engine("graph", torch, "cuda:0"), Graph)
    assert isinstance(engine("graph", torch, "cuda:0").capturer, CudaCapturer)
    with pytest.raises(EngineError, match="accepted is torch, compile, graph"):
        engine("magic", torch, "cpu")


def with_graph(monkeypatch, device):
    """A machine whose graphs are those of `device`."""
    from gambrel.measure import engines

    plain = engines.engine
    fake = lambda name, *rest: engines.Graph(device) if name == "graph" else plain(name, *rest)
    monkeypatch.setattr(engines, "engine", fake)


def test_engines_agree_and_are_recorded(torch, one_thread, monkeypatch, tmp_path):
    with_graph(monkeypatch, Recorder())
    path = str(tmp_path / "runs.jsonl")
    done = running.run(setup(engines=("torch", "graph")), lambda made: record.append(made, path))
    stored, told = record.read_all(path)
    assert told == []
    assert [one.to_dict() for one in stored] == [one.to_dict() for one in done]
    assert [(m.metadata["phase"], m.metadata["engine"]) for m in stored] == [
        ("prefill", "torch"),
        ("prefill", "graph"),
        ("decode", "torch"),
        ("decode", "graph"),
    ]
    assert len({one.id for one in stored}) == 4
    for one in stored:
        known = one.metadata
        assert {*record.SAME, *DOCUMENTED} <= known.keys()
        assert known["finite"] is True
        assert known["versions"].keys() >= {"gambrel", "python", "torch", "transformers"}
        assert (known["difference"], known["same_tokens"]) == (
            (0.0, True) if known["engine"] == "graph" else (None,) * 2
        )
        assert 0 < known["harness_s"] < one.median_s


DOCUMENTED = """read huge_page_bytes threads versions git_revision started_at busy cpu_share config_hash layers
layers_total params_total weights engine finite difference same_tokens harness_s calls rejected""".split()


def test_engines_that_disagree_get_no_time(torch, one_thread, monkeypatch, tmp_path):
    """And what was recorded before stays."""
    with_graph(monkeypatch, Recorder(broken=1.0))
    kept = []
    with pytest.raises(running.RunError, match="engine graph differs from the first engine"):
        running.run(setup(engines=("torch", "graph"), phases=("decode",)), kept.append)
    assert [one.metadata["engine"] for one in kept] == ["torch"]


def test_what_is_not_finite_gets_no_time(torch, one_thread, monkeypatch):
    with_graph(monkeypatch, Recorder(broken=float("nan")))
    with pytest.raises(running.RunError, match="not finite"):
        running.run(setup(engines=("torch", "graph"), phases=("decode",)), lambda made: None)


def test_a_failed_write_leaves_earlier_records(torch, one_thread, monkeypatch, tmp_path):
    """The disk is full from the second record on."""
    path, written = str(tmp_path / "runs.jsonl"), []
    write = record._write

    def full(file, data):
        written.append(data)
        if len(written) > 1:
            file.write(data[:20])
            raise OSError(28, "No space left on device")
        write(file, data)

    monkeypatch.setattr(record, "_write", full)
    with pytest.raises(record.RecordError, match="No space left"):
        running.run(setup(), lambda made: record.append(made, path))
    stored, told = record.read_all(path)
    assert [one.metadata["phase"] for one in stored] == ["prefill"]
    assert told == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line():
    made = record.Measurement("a", "a", (1.0,))
    with pytest.raises(record.RecordError, match="cannot write the record to /dev/full"):
        record.append(made, "/dev/full")


@pytest.mark.filterwarnings("ignore")
def test_compiled_agrees(torch, one_thread):
    one, other = running.run(setup(trim(LLAMA, 1), engines=("torch", "compile"), phases=("decode",)), lambda made: None)
    assert other.metadata["difference"] < 1e-4
    assert one.metadata["difference"] is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tokens", [1, 8], ids=["decode", "prefill"])
def test_compiled_passes_get_no_mask_and_are_compiled_once(torch, one_thread, monkeypatch, tokens):
    """transformers gives compiled passes a mask, which expands the keys; and a decode step is loops alone."""
    called, inductor = [], torch._dynamo.lookup_backend("inductor")

    def watched(module, examples):
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        called.append({node.target: node.kwargs for node in nodes})
        return inductor(module, examples)

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: watched)
    step = engines.Pass(torch, tiny(trim(LLAMA, 1)).module, (1, tokens, 8))
    compiled = engines.Compiled()
    compiled.prepare(step)
    compiled.run()
    (only,) = called
    attention = torch._C._nn.scaled_dot_product_attention
    if tokens == 1:
        assert {single_rows.row, single_rows.query} <= only.keys()
        assert not {attention, torch.nn.functional.linear} & only.keys()
    else:
        assert only[attention]["attn_mask"] is None
        assert only[attention]["enable_gqa"] is True
    from transformers import masking_utils

    assert masking_utils._ignore_causal_mask_sdpa.__module__ == "transformers.masking_utils", "put back"


@pytest.mark.parametrize("shape", [(6, 64), (7, 64), (8, 8192), (2, 4099), (1, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_single_rows_are_the_product(torch, shape, dtype):
    """Odd numbers of rows, rows in parts, a row that begins inside other data, a bias."""
    torch.manual_seed(0)
    weight, bias = torch.randn(shape, dtype=getattr(torch, dtype)), torch.randn(shape[0], dtype=getattr(torch, dtype))
    x = torch.randn(1, 2, shape[1], dtype=weight.dtype)[:, 1:]
    wanted = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    found = single_rows.row(x, weight, bias)
    assert (found.shape, found.dtype) == (wanted.shape, x.dtype)
    largest = float(wanted.abs().max())
    assert float((found - wanted).abs().max()) < largest * (1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_single_query_is_attention(torch, scale):
    """Grouped heads, values of another size than keys."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
    torch.testing.assert_close(single_rows.query(q, k, v, attn_mask=None, dropout_p=0.0, scale=scale), wanted)


def test_weights_are_in_huge_pages(torch):
    """As far as this system gives any; small tensors and those elsewhere are left alone."""
    machine.use_huge_pages(torch.empty(3))
    machine.use_huge_pages(torch.empty(2**23, device="meta"))
    before = machine.huge_page_bytes()
    if before is None or "[never]" in machine._text("/sys/kernel/mm/transparent_hugepage/enabled"):
        pytest.skip("no huge pages here")
    large = torch.empty(2**25)
    machine.use_huge_pages(large)
    large.fill_(1.0)
    assert machine.huge_page_bytes() - before >= 2**26, "half of it at the least: memory may be in pieces"


# Setup and what follows -----------------------------------------------------------------------


def test_setup_refuses():
    for options, told in [
        ({"phases": ("train",)}, "--phase train: accepted is prefill, decode"),
        ({"engines": ("vllm",)}, "--engine vllm: accepted is torch, compile, graph"),
        ({"dtype": "fp8"}, "--dtype fp8: accepted is fp32, bf16, fp16"),
        ({"prompt_tokens": 1}, "--prompt 1"),
    ]:
        with pytest.raises(running.RunError, match=told):
            setup(**options)
    assert setup(trim(LLAMA, 1)).label == "tiny"
    assert running.Setup("tiny", trim(LLAMA, 1), 2).label == "tiny (1 of 2 layers)"


ARTICLE = {"memory_s": 2.57e-3, "compute_s": 0.01e-3}
VERDICTS = {
    "the article's decode": ((8.0e-3, 3.43e-3, "graph"), ARTICLE, "launch", "gain of 2.33 x"),
    "a graph that gains nothing": ((3.5e-3, 3.43e-3, "graph"), ARTICLE, "memory", "75% of the 3.43 ms"),
    "prefill": ((9e-3, 8.9e-3, "graph"), {"memory_s": 3e-3, "compute_s": 7e-3}, "compute", "launches are not"),
    "just under a fifth": ((1.0, 0.81, "graph"), {}, "undecided", "no floor"),
    "just over a fifth": ((1.0, 0.79, "graph"), {}, "launch", "210 ms were launches"),
    "compile proves no launches": ((8.0e-3, 3.43e-3, "compile"), {}, "undecided", "other kernels and fewer launches"),
    "compile near the floor": ((4e-3, 3.43e-3, "compile"), ARTICLE, "memory", "torch.compile gains 1.17 x"),
    "eager alone": ((3.43e-3,), ARTICLE, "memory", "75%"),
    "far from every floor": ((9e-3,), ARTICLE, "undecided", "29% of the 9.00 ms"),
    "below the floor": ((2e-3,), ARTICLE, "error", "below the memory floor"),
    "above a measured ceiling": ((2e-3,), {**ARTICLE, "at": CEILINGS}, "memory", "128% of the 2.00 ms"),
    "a graph alone": ((None, 3.43e-3, "graph"), ARTICLE, "memory", "75%"),
    "nothing known": ((3e-3,), {}, "undecided", "--device"),
}


@pytest.mark.parametrize(("times", "floors", "limit", "told"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(times, floors, limit, told):
    verdict = judge(Evidence(*times, **floors))
    assert verdict.limit == limit
    assert told in verdict.evidence
    assert "\n" not in str(verdict)


def stored(engine, value, **known):
    facts = {"phase": "decode", "batch": 1, "new_tokens": 1, "context_tokens": 8, "machine": "m", "device": "d"}
    facts |= {"dtype": "bf16", "model": "tiny", "config_hash": "c", "threads": 1, "layers": 2, "layers_total": 2}
    facts |= {"harness_s": 1e-6, "busy": False, "difference": None, "same_tokens": None, "notes": [], "engine": engine}
    return record.Measurement(f"{engine}-{value}", engine, (value,) * 3, (), {**facts, **known})


def test_launches_are_eager_minus_graph():
    eager, graph = stored("torch", 8e-3), stored("graph", 3e-3)
    assert running.launch_s(eager, [eager, graph]) == pytest.approx(5e-3)
    assert running.launch_s(eager, [graph, stored("graph", 4e-3)]) == pytest.approx(4e-3), "the newest"
    assert running.launch_s(graph, [eager, graph]) is None
    for other in ({"machine": "n"}, {"context_tokens": 9}, {"config_hash": "d"}, {"dtype": "fp32"}):
        assert running.launch_s(eager, [eager, stored("graph", 3e-3, **other)]) is None


def test_what_does_not_fit_is_said_before_anything_is_built(command, monkeypatch):
    """Weights, cache and the largest operator's activations, against what is free; a kernel would end the process."""
    monkeypatch.setattr(building, "build", None)
    for options, told in [
        (["--context", "1000000000"], "does not fit on cpu: decode of 1 x 1,000,000,000 tokens takes at least 256 GB"),
        (["--prompt", "500000000", "--phase", "prefill", "--batch", "3"], "prefill of 3 x 500,000,000 tokens"),
    ]:
        status, out, err = command(*RUN, *options)
        assert (status, out) == (2, ""), err
        assert told in err
        assert "are free; try --layers, --batch, --context, --prompt or --dtype" in err
    monkeypatch.setattr(machine, "free_bytes", lambda device: 10**5)
    status, _, err = command("profile", "config.json", "--prompt", "8", "--context", "8")
    assert (status, "weights 181 kB" in err) == (2, True), err


def test_positions_that_a_model_has_not_are_one_line(command, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**FILLED["learned positions"], "n_positions": 16}))
    status, out, err = command(*RUN[:-4], "--context", "32", "--prompt", "8")
    assert (status, out) == (2, "")
    assert "a decode step of 1 x 32 tokens cannot run: IndexError" in err
    assert err.count("\n") == 1


def test_a_model_of_audio_reads_its_own_number_of_frames(command, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(ENCODERS["audio"]))
    document = json.loads(command(*RUN, "--dtype", "fp32", "--format", "json")[1])
    assert [(run["phase"], run["new_tokens"]) for run in document["runs"]] == [("prefill", 12), ("decode", 1)]


def test_a_hybrid_is_not_cut_below_its_attention(command, tmp_path):
    hybrid = {**STATEFUL["linear"], "head_dim": 16, "linear_conv_kernel_dim": 4, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(hybrid))
    status, out, err = command(*RUN, "--layers", "1")
    assert (status, out) == (2, ""), err
    assert "the first with attention is number 2: --layers 2" in err


def test_both_sides_of_an_encoder_decoder_are_cut():
    bart = ENCODERS["text"]
    assert n_layers(bart) == 2
    assert trim(bart, 2) == bart, "all of its decoder's layers are all of the model"
    assert {key: trim(bart, 1)[key] for key in ("encoder_layers", "decoder_layers")} == {
        "encoder_layers": 1,
        "decoder_layers": 1,
    }
    neo = {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "layer_types": ["a", "b", "c", "d", "extra"]}
    assert trim(neo, 3) == {
        "num_layers": 3,
        "attention_types": [[["global", "local", "global"], 1]],
        "layer_types": ["a", "b", "c", "extra"],
    }


def test_free_memory(torch, tmp_path):
    """What the kernel has, or a container's limit where it is lower; a device that is not there is named."""
    limit = tmp_path / "memory.max"
    assert 0 < machine.free_bytes("cpu") <= machine.memory_bytes()
    limit.write_text("4096\n")
    assert machine.free_bytes("cpu", str(limit)) == 4096
    limit.write_text("max\n")
    assert machine.free_bytes("cpu", str(limit)) > 4096
    with pytest.raises(machine.MachineError, match="no CUDA device cuda:63"):
        machine.free_bytes("cuda:63")


def test_rows_stand_beside_their_bounds():
    floor = running.Floor(1e6, Bound({"memory": 2e-3, "compute": 1e-3}, 2e-3))
    row = running.row(stored("torch", 4e-3, batch=3), floor)
    assert (row.fraction, row.binding, row.tokens_per_s) == (0.5, "memory", pytest.approx(750))
    assert (row.moved_bytes_per_s, row.read_bytes_per_s, row.of_reads) == (pytest.approx(250e6), None, None)
    assert running.row(stored("torch", 4e-3)).fraction is None
    judged = running.judged([stored("torch", 8e-3), stored("graph", 3e-3)], {"decode": floor})
    assert [(one.verdict.limit, one.gain) for one in judged] == [("launch", pytest.approx(8 / 3))]


def test_reads_in_turn_are_a_floor_where_no_device_is_named():
    """1 MB at 400 MB/s: 2.5 ms of the 4 ms."""
    read = {"kernel": "sum", "bytes": 2e6, "values_s": [4e-3, 5e-3, 9e-3]}
    made, floor = stored("torch", 4e-3, read=read), running.Floor(1e6)
    row = running.row(made, floor)
    assert (row.read_bytes_per_s, row.of_reads, row.fraction) == (400e6, pytest.approx(0.625), None)
    (judged,) = running.judged([made], {"decode": floor})
    assert judged.verdict.limit == "memory"
    assert "takes 2.50 ms, 62% of the 4.00 ms" in judged.verdict.evidence
    (other,) = running.judged([made], {"decode": running.Floor(1e6, Bound({"memory": 1e-3, "compute": 3e-3}, 3e-3))})
    assert other.verdict.limit == "compute", "a device that is named comes first"


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def command(torch, one_thread, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAMBREL_DATA", str(tmp_path / "data"))
    config = {**LLAMA, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))

    def call(*arguments):
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return call


RUN = ["run", "config.json", "--quick", "--engine", "torch", "--threads", "1", "--prompt", "8", "--context", "8"]
DEVICE = ["--device", "cpu-epyc-9654"]


def test_the_command_prints_and_records(command, tmp_path):
    status, out, err = command(*RUN, *DEVICE, "--layers", "1")
    assert (status, err) == (0, "")
    assert "(1 of 2 layers) with random weights in bf16" in out
    assert "only the first 1 of 2 layers" in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 124
    stored, _ = record.read_all(str(tmp_path / "data" / "runs.jsonl"))
    assert all(one.id in out for one in stored)
    assert len(stored) == 2


def test_the_command_in_every_format(command):
    document = json.loads(command(*RUN, *DEVICE, "--format", "json")[1])
    assert (document["schema"], document["schema_version"]) == ("gambrel.run", 1)
    assert document["runs"][1]["fraction"] == document["runs"][1]["bound_s"] / document["runs"][1]["median_s"]
    rows = list(csv.DictReader(io.StringIO(command(*RUN, "--phase", "decode", "--format", "csv")[1])))
    assert [row["phase"] for row in rows] == ["decode", "decode"]
    assert "| --" in command(*RUN, "--phase", "decode", "--format", "markdown")[1]


def test_a_stored_run_against_its_bound(command, monkeypatch):
    command(*RUN, "--phase", "decode", "--layers", "1")
    status, out, _ = command("compare", "config.json", "--run", "last", *DEVICE, "--format", "json")
    document = json.loads(out)
    (found,), _ = record.read_all()
    assert status == 0
    assert document["measured_s"] == found.median_s
    assert document["kv_bytes"] == 1 * 8 * 2 * 2 * 16 * 2 + 2 * 2 * 16 * 2, "one layer, 8 keys read, one written"
    graph = record.Measurement("graph", "graph", (found.median_s / 2,) * 3, (), {**found.metadata, "engine": "graph"})
    record.append(graph)
    parts = json.loads(command("compare", "config.json", "--run", found.id, *DEVICE, "--format", "json")[1])["parts"]
    assert {part["name"]: part["time_s"] for part in parts}["launches"] == pytest.approx(found.median_s / 2)
    slow = {**found.metadata, "read": {"kernel": "sum", "bytes": 1e6, "values_s": [1.0]}}
    record.append(record.Measurement("slow", "slow", (9.0,) * 3, (), slow))
    parts = json.loads(command("compare", "config.json", "--run", "slow", *DEVICE, "--format", "json")[1])["parts"]
    (below,) = [part for part in parts if part["name"] == "bandwidth below datasheet"]
    assert (below["kind"], below["why"]) == ("measured", "by reads in turn with the run")
    assert below["time_s"] == pytest.approx(document["bound_s"] * (460.8e9 / 1e6 - 1), rel=1e-3)


def test_what_is_wrong_is_one_line(command):
    command(*RUN, "--phase", "decode")
    for arguments, told in [
        (["run", "config.json", "--engine", "graph", "--on", "cpu"], "this runs on a CPU"),
        (["run", "config.json", "--layers", "9"], "accepted is 1 to 2"),
        (["run", "config.json", "--phase", "train"], "accepted is prefill, decode"),
        (["run", "config.json", "--dtype", "fp4"], "accepted is fp32"),
        (["run", "config.json", "--on", "cuda:7"], "cuda:7"),
        (["compare", "llama-3-8b", "--run", "last", *DEVICE], "whose config is not that of llama-3-8b"),
        (["compare", "config.json", "--run", "nix", *DEVICE], "no run 'nix'"),
        (["compare", "config.json", "--run", "last", "--measured", "1s", *DEVICE], "leave out --measured"),
    ]:
        status, out, err = command(*arguments)
        assert (status, out) == (2, ""), arguments
        assert told in err
        assert err.count("\n") == 1


def test_without_the_extra_one_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GambrelError, match=r"pip install 'gambrel\[torch\]'"):
        building.libraries()
