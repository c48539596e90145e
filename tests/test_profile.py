"""Traces made elsewhere: what is read, what each kernel is tied to, what is counted, and that no trace can do harm."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gambrel.cli import main
from gambrel.hardware.catalogue import load_device
from gambrel.measure import kineto
from gambrel.measure.attribute import attribute, nest, phase_of
from gambrel.measure.kernels import OPERATORS, ROLES, kernel_role, operator_role, own_name
from gambrel.measure.kineto import Limits, TraceError, read_trace
from gambrel.measure.profile import profile, profile_dict, profile_plot, profile_trace
from gambrel.measure.shapes import work_of
from gambrel.types import GambrelError

BF16 = "c10::BFloat16"


# Hand-made traces -------------------------------------------------------------------------------


class Maker:
    """A trace by hand, in microseconds: events on thread 7 of process 1, kernels on stream 0 of device 0."""

    def __init__(self, thread=(1, 7)):
        self.events, self.thread, self.number = [], thread, 100

    def add(self, category, name, start, duration, args=None, **more):
        pid, tid = self.thread
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration}
        self.events.append({**event, "args": args or {}, **more})
        return self

    def op(self, name, start, duration, dims=(), types=None, **more):
        dims = [list(each) for each in dims]
        args = {"Input Dims": dims, "Input type": types or [BF16] * len(dims)}
        if "concrete" in more:
            args["Concrete Inputs"] = more.pop("concrete")
        return self.add("cpu_op", name, start, duration, {**args, **more})

    def module(self, name, start, duration):
        return self.add("python_function", f"nn.Module: {name}", start, duration)

    def launch(self, start, call="cudaLaunchKernel", category="cuda_runtime", duration=1.0):
        self.number += 1
        return self.add(category, call, start, duration, {"correlation": self.number})

    def kernel(self, name, start, duration, correlation=None, category="kernel", **args):
        number = self.number if correlation is None else correlation
        args = {"device": 0, "stream": 0, "correlation": number, **args}
        return self.add(category, name, start, duration, args, pid=0, tid=0)

    def run(self, name, start, duration, **more):
        """A launch and its kernel, which starts 5 us later."""
        return self.launch(start, **more).kernel(name, start + 5, duration)

    def write(self, path, **top):
        path.write_text(
            json.dumps({"schemaVersion": 1, "deviceProperties": [{"name": "GPU"}], "traceEvents": self.events, **top})
        )
        return str(path)


def two_layers(maker=None, launch="cudaLaunchKernel", gemm="ampere_gemm", at=0.0, q=8):
    """Two layers with a projection, attention, and an addition each; 3 kernels and a fill a layer."""
    maker = maker or Maker()
    maker.module("Model_0", at, 1000)
    for layer in range(2):
        t = at + 100 + 400 * layer
        maker.module(f"ModelDecoderLayer_{layer}", t, 300).module(f"ModelAttention_{layer}", t + 1, 150)
        maker.module(f"Linear_{layer}", t + 2, 48)
        maker.op("aten::linear", t + 3, 46, [(q, 64), (128, 64)]).op("aten::mm", t + 4, 44, [(q, 64), (64, 128)])
        maker.launch(t + 5, "hipMemsetAsync" if launch.startswith("hip") else "cudaMemsetAsync").kernel(
            "Memset (Device)", t + 6, 1, category="gpu_memset", bytes=4
        )
        maker.run(gemm, t + 10, 20, call=launch)
        dims = [(1, 2, q, 32), (1, 2, max(q, 8), 32), (1, 2, max(q, 8), 32), (), (), ()]
        maker.op(
            "aten::scaled_dot_product_attention",
            t + 60,
            50,
            dims,
            [BF16] * 3 + [""] * 3,
            concrete=["", "", "", "", "0.", "True"],
        )
        maker.run("flash_fwd_kernel", t + 70, 10, call=launch)
        maker.op("aten::add", t + 200, 20, [(q, 64), (q, 64)]).run("add_kernel", t + 205, 5, call=launch)
    return maker


@pytest.fixture
def layered(tmp_path):
    return two_layers().write(tmp_path / "t.json")


def test_kernels_find_launch_operator_module_and_layer(layered):
    found = [each for each in attribute(read_trace(layered)) if each.role == "gemm"]
    assert [(each.op, each.layer_name, each.phase) for each in found] == [
        ("aten::mm", "ModelDecoderLayer_0", "prefill"),
        ("aten::mm", "ModelDecoderLayer_1", "prefill"),
    ]
    assert found[0].module == ("Model", "ModelDecoderLayer", "ModelAttention", "Linear")
    assert found[0].launched
    assert found[0].work.flops == 2 * 8 * 64 * 128


def test_a_layer_in_numbers(layered):
    (row,) = profile(layered).layers
    assert (row["layer"], row["phase"], row["layers"], row["calls"]) == ("ModelDecoderLayer", "prefill", 2, 2)
    assert (row["activities_per_layer"], row["kernels_per_layer"]) == (4, 3)
    assert row["time_per_layer_s"] == pytest.approx(36e-6)
    # 2·8·64·128 of the projection, 4·heads·pairs·d of attention with 8·9/2 pairs; of two layers.
    assert row["flops"] == 2 * (2 * 8 * 64 * 128 + 4 * 2 * 36 * 32)


def test_groups_share_the_time_of_their_phase(layered):
    rows = {row["role"]: row for row in profile(layered).groups}
    assert {role: round(row["share"], 4) for role, row in rows.items()} == {
        "gemm": round(20 / 36, 4),
        "attention": round(10 / 36, 4),
        "elementwise": round(5 / 36, 4),
        "movement": round(1 / 36, 4),
    }
    gemm = rows["gemm"]
    moved = 2 * (8 * 64 + 64 * 128 + 8 * 128)
    assert gemm["intensity_flop_per_byte"] == pytest.approx(2 * 8 * 64 * 128 / moved)
    assert gemm["flops_per_s"] == pytest.approx(2 * 8 * 64 * 128 / 20e-6)
    assert gemm["bytes_per_s"] == pytest.approx(moved / 20e-6)
    assert gemm["roof_fraction"] is None
    assert rows["movement"]["moved_bytes"] == 8


def test_fraction_of_the_roof(layered):
    device = load_device("h100-sxm")
    (row,) = [row for row in profile(layered, device).groups if row["role"] == "gemm"]
    bound = max(2 * 8 * 64 * 128 / device.peak("bf16"), row["moved_bytes"] / 2 / device.mem_bytes_per_s)
    assert row["roof_fraction"] == pytest.approx(bound / 20e-6)


def test_busy_gaps_and_waiting_for_launches(tmp_path):
    maker = Maker().launch(0).kernel("a", 0, 10).launch(1).kernel("b", 5, 10).launch(20, duration=5).kernel("c", 30, 10)
    maker.launch(21).kernel("Memcpy HtoD", 45, 5, category="gpu_memcpy", bytes=100)
    (row,) = [span.to_dict() for span in profile(maker.write(tmp_path / "t.json")).spans]
    # Kernels cover 0–15 and 30–40 of 0–50; with the copy 30 us; gaps are 15–30 (launch back at 25) and 40–45.
    assert row["span_s"] == pytest.approx(50e-6)
    assert row["busy_share"] == pytest.approx(0.5)
    assert row["active_share"] == pytest.approx(0.6)
    assert (row["gaps"], row["gap_s"], row["gap_longest_s"]) == (2, pytest.approx(20e-6), pytest.approx(15e-6))
    assert row["launch_gap_s"] == pytest.approx(10e-6)


def test_kernels_without_a_launch_are_counted(tmp_path):
    maker = two_layers().kernel("ampere_gemm", 2000, 30, correlation=7)
    found = profile(maker.write(tmp_path / "t.json"))
    assert (found.counts["unlaunched_kernels"], found.counts["kernels"]) == (1, 7)
    assert {row["phase"] for row in found.groups} == {"prefill", "unknown"}
    assert "1 of 7 kernels have no launch in the window" in found.notes[0]


def test_launches_without_a_kernel_are_counted(tmp_path):
    assert profile(two_layers().launch(3000).write(tmp_path / "t.json")).counts["launches_without_kernel"] == 1


def test_a_single_query_is_decode(tmp_path):
    found = profile(two_layers(q=1).write(tmp_path / "t.json"))
    assert {row["phase"] for row in found.groups} == {"decode"}
    assert found.queries == {"decode": (1, 1, 8)}


def test_prefill_and_decode_in_one_trace(tmp_path):
    found = profile(two_layers(two_layers(q=8), q=1, at=5000.0).write(tmp_path / "t.json"))
    assert [(row["phase"], row["calls"], row["layers"]) for row in found.layers] == [
        ("prefill", 2, 2),
        ("decode", 2, 2),
    ]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_16(16)", "decode"),
        ("execute_context_2(9)_generation_16(16)", "mixed"),
        ("prefill", "prefill"),
        ("decode step 3", "decode"),
        ("Decoder", None),
        ("ProfilerStep#6", None),
    ],
)
def test_ranges_that_name_a_phase(name, phase):
    assert phase_of(name) == phase


def test_a_range_beats_the_shapes(tmp_path):
    maker = two_layers()
    maker.add("user_annotation", "decode", -1, 2000)
    assert {row["phase"] for row in profile(maker.write(tmp_path / "t.json")).groups} == {"decode"}


def test_modules_whose_thread_is_lost(tmp_path):
    """Some writers put Python frames on process 0."""
    maker = two_layers()
    for event in maker.events:
        if event["cat"] == "python_function":
            event.update(pid=0, tid=0)
    assert profile(maker.write(tmp_path / "t.json")).layers[0]["activities_per_layer"] == 4


def test_experts_are_not_layers(tmp_path):
    """Sibling modules within a layer may outnumber the layers."""
    maker = two_layers()
    for layer in range(2):
        for expert in range(5):
            maker.module(f"Expert_{layer * 5 + expert}", 330 + 400 * layer + 10 * expert, 8)
            maker.module(f"Linear_{10 + layer * 5 + expert}", 331 + 400 * layer + 10 * expert, 5)
    assert [row["layer"] for row in profile(maker.write(tmp_path / "t.json")).layers] == ["ModelDecoderLayer"]


def test_numbered_ranges_stand_in_for_modules(tmp_path):
    maker = Maker()
    for layer in range(3):
        maker.add("user_annotation", f"layers.{layer}", 100 * layer, 90)
        maker.run("gemm", 100 * layer + 1, 10).run("add_kernel", 100 * layer + 20, 10)
    (row,) = profile(maker.write(tmp_path / "t.json")).layers
    assert (row["layer"], row["layers"], row["kernels_per_layer"]) == ("layers", 3, 2)


def test_attention_written_out_is_attention(tmp_path):
    maker = Maker().module("Model_0", 0, 900).module("SelfAttention_0", 1, 400).module("Linear_0", 300, 50)
    maker.op("aten::bmm", 10, 20, [(2, 4, 8), (2, 8, 4)]).run("ampere_gemm", 11, 3)
    maker.op("aten::_softmax", 40, 20, [(2, 4, 4)]).run("softmax_warp_forward", 41, 3)
    maker.op("aten::addmm", 310, 20, [(4,), (3, 8), (8, 4)]).run("ampere_gemm", 311, 3)
    assert [each.role for each in attribute(read_trace(maker.write(tmp_path / "t.json")))] == [
        "attention",
        "attention",
        "gemm",
    ]


def test_one_operator_of_several_kernels_works_once(tmp_path):
    maker = Maker().op("aten::mm", 0, 50, [(8, 64), (64, 128)])
    maker.run("splitKreduce_kernel", 1, 4).run("ampere_gemm", 10, 20)
    (row,) = profile(maker.write(tmp_path / "t.json")).groups
    assert (row["count"], row["flops"]) == (2, 2 * 8 * 64 * 128)
    assert row["flops_per_s"] == pytest.approx(2 * 8 * 64 * 128 / 24e-6)


def test_external_ids_stand_in_for_launches(tmp_path):
    maker = Maker().op("aten::mm", 0, 50, [(8, 64), (64, 128)], **{"External id": 5}).launch(1)
    maker.kernel("vendor_thing", 60, 10, correlation=999999, **{"External id": 5})
    (found,) = attribute(read_trace(maker.write(tmp_path / "t.json")))
    assert (found.role, found.op, found.launched) == ("gemm", "aten::mm", False)


def test_the_profilers_own_flops_are_not_used(tmp_path):
    maker = (
        Maker().op("aten::mm", 0, 50, [(8, 64), (64, 128)], flops=10**15, **{"Flops": 10**15}).run("ampere_gemm", 1, 9)
    )
    assert profile(maker.write(tmp_path / "t.json")).groups[0]["flops"] == 2 * 8 * 64 * 128


# AMD, graphs, ranges, CPUs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "launch", ["hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipLaunchKernelExC"]
)
def test_amd_launches(tmp_path, launch):
    found = profile(two_layers(launch=launch, gemm="Cijk_Alik_Bljk_BBS_BH_MT128x128x32").write(tmp_path / "t.json"))
    assert found.layers[0]["kernels_per_layer"] == 3
    assert found.counts["unlaunched_kernels"] == 0
    assert found.counts["launches"] == 8


ROLE_OF = {
    "gemm": """
        Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT256x256x64_MI16x16x1 nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT
        ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_cublas
        ck::kernel_gemm_xdl_cshuffle_v3<x> ck_tile::kentry<ck_tile::GemmKernel<x>> bf16gemm_fp32bf16_tn_96x64_splitk
        triton_tem_fused_mm_3 _gemm_a8_w8_kernel _ZN5aiter41fused_moe_ck fused_moe_kernel gemv2T_kernel_val<int>
        cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>""",
    "attention": """
        fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv attn_fwd.kd ck_tile::kentry<256,ck_tile::FmhaFwdKernel<x>>
        _ZN5aiter24fmha_fwd_hd128_bf16_causalE cutlass::device_kernel<flash::FlashAttnFwdSm90<x>>
        pytorch_flash::flash_fwd_kernel<x> kernel_unified_attention_2d vllm::paged_attention_v2_kernel<x>
        flashinfer::BatchPrefillWithPagedKVCacheKernel<x>""",
    "elementwise": """
        at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>> triton_poi_fused_silu_mul_2
        vllm::act_and_mul_kernel<x> vllm::rotary_embedding_kernel<c10::BFloat16,true>
        vllm::scaled_fp8_quant_kernel<x>""",
    "reduction": """
        at::native::reduce_kernel<512,1,at::native::ReduceOp<float,at::native::MeanOps<x>>> triton_red_fused_mean_1
        triton_per_fused_native_layer_norm_0 vllm::rms_norm_kernel<x> softmax_warp_forward<x> aiter::rmsnorm2d_fwd
        cublasLt::splitKreduce_kernel<32> flashinfer::norm::RMSNormKernel<x>""",
    "movement": """
        __amd_rocclr_copyBuffer __amd_rocclr_fillBufferAligned vllm::reshape_and_cache_flash_kernel<x>
        at::native::elementwise_kernel<128,4,at::native::direct_copy_kernel_cuda> CatArrayBatchedCopy<x>
        at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<float>>""",
    "communication": """
        ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>) ncclDevKernel_Generic_1 rcclGenericKernel
        multimem_all_reduce_kernel<c10::BFloat16,16> vllm::cross_device_reduce_1stage<x> mscclKernel_Sum_half""",
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ROLE_OF.items() for name in names.split()])
def test_roles_by_kernel_name(role, name):
    assert kernel_role(name) == kernel_role(f"void {name}") == role


def test_names_that_nobody_knows_have_no_role():
    assert kernel_role("vendor_thing") is None
    assert operator_role("mylib::thing") is None


def test_own_names():
    assert (
        own_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::X, 4>(int)") == "CatArrayBatchedCopy"
    )
    assert own_name("Cijk_Alik") == "Cijk_Alik"


def test_every_operator_has_one_role():
    names = [name for names in OPERATORS.values() for name in names.split()]
    assert sorted(names) == sorted(set(names))
    assert set(OPERATORS) == set(ROLES)


def graph(maker, launch, start, kernels):
    """A replay: one launch, these kernels back to back."""
    maker.launch(start, launch)
    for i, name in enumerate(kernels):
        maker.kernel(name, start + 10 + 10 * i, 9, grid=[1, 2, 3])
    return maker


REPLAYED = ("ampere_gemm", "flash_fwd_kernel", "add_kernel") * 2


@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_graph_replays_have_lost_their_layers(tmp_path, launch):
    path = graph(Maker().module("Model_0", 0, 900).module("Runner_0", 1, 800), launch, 10, REPLAYED).write(
        tmp_path / "t.json"
    )
    found = profile(path)
    assert (found.counts["graph_launches"], found.counts["graph_kernels"], found.layers) == (1, 6, [])
    assert "one launch for many kernels" in " ".join(found.notes)
    assert {row["role"]: row["count"] for row in found.groups} == {"gemm": 2, "attention": 2, "elementwise": 2}


def test_a_call_that_many_kernels_share_is_a_replay(tmp_path):
    found = profile(graph(Maker(), "vendorReplay", 10, REPLAYED).write(tmp_path / "t.json"))
    assert found.counts["graph_kernels"] == 6


def test_an_eager_trace_lends_its_layers(tmp_path):
    eager = two_layers()
    for event in eager.events:
        if event["cat"] == "kernel":
            event["args"]["grid"] = [1, 2, 3]
    replay = graph(graph(Maker(), "cudaGraphLaunch", 10, REPLAYED), "cudaGraphLaunch", 500, (*REPLAYED, "other"))
    found = profile(replay.write(tmp_path / "t.json"), None, eager.write(tmp_path / "e.json"))
    (row,) = found.layers
    assert (row["layer"], row["layers"], row["calls"], row["kernels_per_layer"]) == ("ModelDecoderLayer", 2, 4, 3)
    assert row["flops"] == 4 * (2 * 8 * 64 * 128 + 4 * 2 * 36 * 32)
    assert "12 of 13 replayed activities have the place of the same kernels in the eager trace" in " ".join(found.notes)


def test_other_grids_lend_no_work(tmp_path):
    replay = graph(Maker(), "cudaGraphLaunch", 10, REPLAYED)
    found = profile(replay.write(tmp_path / "t.json"), None, two_layers().write(tmp_path / "e.json"))
    assert found.layers[0]["kernels_per_layer"] == 3
    assert found.layers[0]["flops"] is None


def test_the_last_of_several_eager_passes_lends(tmp_path):
    eager = two_layers(two_layers(), at=5000.0)
    replay = graph(Maker(), "cudaGraphLaunch", 10, REPLAYED)
    found = profile(replay.write(tmp_path / "t.json"), None, eager.write(tmp_path / "e.json"))
    assert found.layers[0]["kernels_per_layer"] == 3


def test_ranges_alone(tmp_path):
    maker = Maker().add("user_annotation", "prefill", 0, 100).add("user_annotation", "decode", 100, 50)
    maker.add("gpu_user_annotation", "prefill", 5, 90)
    found = profile(maker.write(tmp_path / "t.json"))
    assert found.kind == "ranges"
    assert [(row["name"], row["count"]) for row in found.ranges] == [("prefill", 1), ("decode", 1)]
    assert found.ranges[0]["device_s"] == pytest.approx(90e-6)
    assert found.busy_share is None
    assert "no kernels" in found.notes[0]
    assert main(["profile", "--trace", maker.write(tmp_path / "t.json")]) == 0


def profiler_ranges(path, launches):
    maker = Maker()
    for i in range(4):
        maker.op("aten::mm", 100 * i, 50, [(8, 64), (64, 128)])
        if i < launches:
            maker.launch(100 * i + 5)
        maker.add("cuda_profiler_range", "ampere_gemm", 100 * i + 10, 30, {"smsp__inst_executed.sum": 5}, pid=0, tid=0)
    return profile(maker.write(path / "t.json"))


def test_profiler_ranges_are_tied_to_launches_by_order(tmp_path):
    found = profiler_ranges(tmp_path, 4)
    assert (found.counts["kernels"], found.counts["unlaunched_kernels"]) == (4, 0)
    assert found.groups[0]["flops"] == 4 * 2 * 8 * 64 * 128
    assert "profiler ranges instead of kernels" in found.notes[0]


def test_profiler_ranges_that_do_not_fit_are_not_tied(tmp_path):
    found = profiler_ranges(tmp_path, 3)
    assert found.counts["unlaunched_kernels"] == 4
    assert found.groups[0]["flops"] is None
    assert "not tied to launches" in found.notes[0]


def test_a_range_on_the_device_gives_the_phase_of_kernels_without_launch(tmp_path):
    maker = Maker().kernel("ampere_gemm", 10, 5, correlation=1)
    maker.add("gpu_user_annotation", "decode_step", 5, 20, pid=0, tid=0)
    assert profile(maker.write(tmp_path / "t.json")).groups[0]["phase"] == "decode"


def test_a_cpu_trace_counts_operators(tmp_path):
    maker = two_layers()
    maker.events = [event for event in maker.events if event["cat"] in ("cpu_op", "python_function")]
    found = profile(maker.write(tmp_path / "t.json"))
    assert found.kind == "cpu"
    # mm, attention and add in each layer; linear calls mm and is not counted.
    assert found.layers[0]["activities_per_layer"] == 3
    assert main(["profile", "--trace", maker.write(tmp_path / "t.json")]) == 0


def test_several_devices(tmp_path):
    maker = Maker().launch(0).kernel("a", 0, 10, device=0).launch(1).kernel("b", 0, 10, device=1).launch(2)
    maker.kernel("c", 30, 10, device=1)
    found = profile(maker.write(tmp_path / "t.json"))
    assert [(span.device, span.kernels) for span in found.spans] == [("0", 1), ("1", 2)]
    assert found.busy_share == pytest.approx(30 / 50)


def test_processes_that_share_correlation_ids(tmp_path):
    maker = Maker().op("aten::mm", 0, 50, [(8, 64), (64, 128)]).run("ampere_gemm", 1, 5)
    maker.thread = (2, 9)
    maker.number -= 1
    maker.op("aten::add", 100, 50, [(8, 64), (8, 64)]).run("add_kernel", 101, 5)
    assert [each.op for each in attribute(read_trace(maker.write(tmp_path / "t.json")))] == ["aten::mm", "aten::add"]


# Shapes -----------------------------------------------------------------------------------------


def work(name, dims, types=None, **args):
    return work_of(name, {"dims": dims, "types": types or [BF16] * len(dims), **args})


def test_products():
    assert work("aten::addmm", [[128], [8, 64], [64, 128]]).moved_bytes == 2 * (128 + 8 * 64 + 64 * 128 + 8 * 128)
    assert work("aten::bmm", [[3, 8, 64], [3, 64, 16]]).flops == 3 * 2 * 8 * 64 * 16
    assert work("aten::linear", [[2, 4, 64], [128, 64], [128]]).flops == 2 * 8 * 64 * 128
    assert work("aten::matmul", [[5, 2, 4, 64], [5, 1, 64, 3]]).flops == 10 * 2 * 4 * 64 * 3
    assert work("aten::baddbmm", [[3, 8, 16], [3, 8, 64], [3, 64, 16]]).flops == 3 * 2 * 8 * 64 * 16
    fp8 = work("aten::_scaled_mm", [[8, 64], [64, 16]], ["c10::Float8_e4m3fn"] * 2)
    assert (fp8.flops, fp8.dtype, fp8.moved_bytes) == (2 * 8 * 64 * 16, "fp8", None)
    told = work("aten::_scaled_mm", [[8, 64], [64, 16]], ["c10::Float8_e4m3fn"] * 2, concrete=[""] * 6 + ["15"])
    assert told.moved_bytes == 8 * 64 + 64 * 16 + 2 * 8 * 16


def test_the_articles_projection():
    """2·2048·2048·3072 / (2·(2048·2048 + 2·2048·3072)) = 768 (the measurement specification, section 3)."""
    found = work("aten::mm", [[2048, 2048], [2048, 3072]])
    assert found.flops / found.moved_bytes == 768


def test_the_articles_decode_attention():
    """Intensity tends to 2·g/bytes = 4 for g = 4 in bf16, whatever the context (section 5)."""
    for keys in (4096, 65536):
        dims = [[1, 32, 1, 64], [1, 8, keys, 64], [1, 8, keys, 64]]
        found = work("aten::_scaled_dot_product_flash_attention", dims)
        assert found.flops / found.moved_bytes == pytest.approx(4, rel=0.01)


def test_causal_attention_counts_the_pairs_it_meets():
    dims = [[2, 4, 5, 8]] * 3
    every = work("aten::scaled_dot_product_attention", dims, concrete=["", "", "", "", "0.0", "False"])
    causal = work("aten::scaled_dot_product_attention", dims, concrete=["", "", "", "", "0.0", "True"])
    assert every.flops == 2 * 2 * 4 * 25 * 16
    assert causal.flops == 2 * 2 * 4 * 15 * 16
    assert causal.query == (2, 5, 5)


def test_elementwise_and_others():
    assert work("aten::mul", [[4, 8], [4, 1]]).moved_bytes == 2 * (32 + 4 + 32)
    assert work("aten::mul", [[4, 8], []], ["float", "double"]).moved_bytes == 4 * 64
    assert work("aten::copy_", [[4, 8], [4, 8], []], ["float", BF16, "Scalar"]).moved_bytes == 32 * 4 + 32 * 2
    assert work("aten::copy_", [[4, 8], [4, 8]], strides=[[8, 1], [0, 1]]).moved_bytes == 2 * 32 + 2 * 8
    assert work("aten::mean", [[4, 8], []], concrete=["", "[-1]"]).moved_bytes == 2 * (32 + 4)
    assert work("aten::eq", [[4, 8], [4, 8]]).moved_bytes == 2 * 64 + 32
    assert work("_C::silu_and_mul", [[4, 8], [4, 16]]).moved_bytes == 2 * 96
    assert work("aten::embedding", [[1000, 8], [3]], [BF16, "long int"]).moved_bytes == 2 * 2 * 24 + 24


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", [[8, 64], [65, 128]]),
        ("aten::mm", [[8, 64]]),
        ("aten::mm", [[8, 64, 1], [64, 128]]),
        ("aten::mm", "many"),
        ("aten::mm", [["8", 64], [64, 128]]),
        ("aten::mm", [[-8, 64], [64, 128]]),
        ("aten::mm", [[True, 64], [64, 128]]),
        ("aten::mm", [[10**40, 64], [64, 128]]),
        ("aten::mul", [[2**40, 2**40], [1]]),
        ("aten::mul", [[3], [4]]),
        ("aten::bmm", [[3, 8, 64], [4, 64, 16]]),
        ("aten::_scaled_dot_product_flash_attention", [[8, 64]] * 3),
        ("flash_attn::_flash_attn_varlen_forward", [[8, 4, 64]] * 3),
        ("aten::mean", [[0], [0]]),
        ("mylib::mystery", [[8, 64]]),
        ("aten::mul", []),
    ],
)
def test_unknown_work_has_no_number(name, dims):
    found = work_of(name, {"dims": dims, "types": [BF16] * 3, "concrete": ["", "[x]"]})
    assert found is None


def test_an_unknown_dtype_leaves_the_flops():
    found = work("aten::mm", [[8, 64], [64, 16]], ["c10::Mystery"] * 2)
    assert (found.flops, found.moved_bytes) == (2 * 8 * 64 * 16, None)


# Reading ----------------------------------------------------------------------------------------


def test_gzip_is_told_by_its_bytes(tmp_path):
    text = two_layers().write(tmp_path / "a.json")
    plain = profile_dict(profile(text))
    packed = tmp_path / "b.json"
    packed.write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    assert {**profile_dict(profile(str(packed))), "source": ""} == {**plain, "source": ""}


def test_gzip_of_several_members(tmp_path):
    data = json.dumps({"traceEvents": two_layers().events}).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]))
    assert len(read_trace(str(path)).events) == len(two_layers().events)


def test_a_bare_list_is_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(two_layers().events))
    assert profile(str(path)).layers


def test_old_and_new_spellings(tmp_path):
    maker = two_layers()
    old = {"kernel": "Kernel", "gpu_memset": "Memset", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    for event in maker.events:
        event["cat"] = old.get(event["cat"], event["cat"])
        if "Input Dims" in event["args"]:
            event["args"]["Input dims"] = event["args"].pop("Input Dims")
    assert profile(maker.write(tmp_path / "t.json")).layers[0]["flops"]


def test_keys_around_the_events_are_passed_over(tmp_path):
    path = tmp_path / "t.json"
    junk = {"stackFrames": {"a": ['x\\"]}{[', {"b": [1, -2.5e3, None, True]}]}, "empty": {}, "text": "]}", "none": None}
    path.write_text(
        json.dumps({**junk, "traceEvents": two_layers().events, **{f"{k}2": v for k, v in junk.items()}, "n": 12})
    )
    assert read_trace(str(path)).warnings == ()


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_pieces_of_any_length(tmp_path, monkeypatch, chunk):
    path = tmp_path / "t.json"
    junk = {"skipped": ['\\"é]', 1.5, {"a": "b\\\\"}], "schemaVersion": 1}
    events = two_layers().events[:6]
    path.write_text(json.dumps({**junk, "traceEvents": events, "last": 123}, ensure_ascii=False), encoding="utf-8")
    monkeypatch.setattr(kineto, "CHUNK", chunk)
    found = read_trace(str(path))
    assert (len(found.events), found.warnings) == (6, ())


def test_truncated_text_gives_what_was_read(tmp_path):
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": two_layers().events})
    path.write_text(text[: int(len(text) * 0.7)])
    found = profile(str(path))
    assert found.counts["kernels"] >= 3
    assert "is not whole: the JSON ends early" in found.notes[0]


def test_truncated_gzip_gives_what_was_read(tmp_path):
    path = tmp_path / "t.json.gz"
    events = [*two_layers().events, *({"ph": "i", "name": f"{i * 7919}"} for i in range(4000))]
    data = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path.write_bytes(data[: int(len(data) * 0.8)])
    assert "is not whole: the gzip stream ends early" in profile(str(path)).notes[0]


def test_a_damaged_gzip_is_named(tmp_path):
    path = tmp_path / "t.json.gz"
    data = bytearray(gzip.compress(json.dumps({"traceEvents": two_layers().events}).encode()))
    data[40:60] = b"\0" * 20
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError, match="cannot be read on"):
        profile(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the JSON ends early"),
        ("hello", "'h' stands where one of { must"),
        ("[]", "has no events with a duration"),
        ("{}", "has no events with a duration"),
        ('{"traceEvents": 5}', "has no events with a duration"),
        ('{"traceEvents": {"a": 1}}', "has no events with a duration"),
        ('{"shared": {}, "profiles": []}', "is a speedscope profile"),
        ('{"nodes": [], "samples": []}', "is a Chrome CPU profile"),
        ('{"data": [1], "other": 2}', "only data, other"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "gpu_zebra", "name": "a", "ts": 1, "dur": 1}]}',
            "unknown schema, with the categories 'gpu_zebra'",
        ),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}', "with the categories none"),
        ('{"traceEvents": [1, 2, 3]}', "none of 3 events has a name"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": "soon", "dur": 1}]}',
            "unknown schema|none of 1",
        ),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "a", "ts": 1, "dur": 1}]}',
            "no kernel, no operator and no range",
        ),
        ("[" * 100000, "nested too deeply"),
        ('{"a":' * 100000, "ends early|nested"),
        ('[{"a": ' + "9" * 5000 + "}]", "too many digits"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, text, message):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        profile(str(path))


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(TraceError, match="no such trace"):
        profile(str(tmp_path / "none.json"))
    with pytest.raises(TraceError, match="is no file"):
        profile(str(tmp_path))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(TraceError):
        profile(str(path))


@pytest.mark.parametrize(
    "broken",
    [
        {"ts": None},
        {"ts": "12"},
        {"ts": True},
        {"ts": math.nan},
        {"ts": math.inf},
        {"ts": 1e300},
        {"ts": 10**400},
        {"dur": -5},
        {"dur": 1e30},
        {"dur": [1]},
        {"name": None},
        {"name": 5},
    ],
)
def test_broken_times_and_names_are_left_out_and_counted(tmp_path, broken):
    maker = two_layers()
    maker.events.append({**maker.events[-1], **broken})
    found = profile(maker.write(tmp_path / "t.json"))
    assert found.counts["malformed"] == 1
    assert found.counts["kernels"] == 6


@pytest.mark.parametrize(
    "odd",
    [
        {"args": None},
        {"args": [1]},
        {"args": {"correlation": "101"}},
        {"args": {"correlation": [1]}},
        {"args": {"correlation": -1, "device": {"a": 1}, "stream": 10**30, "grid": "x", "bytes": 10**30}},
        {"pid": {"a": 1}, "tid": None},
        {"cat": ["kernel"]},
        {"name": "a" * 10**6},
        {"dur": 0},
    ],
)
def test_odd_arguments_do_no_harm(tmp_path, odd):
    maker = two_layers()
    maker.events.append({**maker.events[-1], **odd})
    json.dumps(profile_dict(profile(maker.write(tmp_path / "t.json"))), allow_nan=False)


def test_names_cannot_command_a_terminal(tmp_path, capsys):
    maker = Maker().run("\x1b[31mred\x07\u202e\ud800", 0, 5)
    maker.add("user_annotation", "\x1b]0;title\x07 layer 1", -1, 100, pid="\ud800")
    assert main(["profile", "--trace", maker.write(tmp_path / "t.json")]) == 0
    text = capsys.readouterr().out
    assert "?[31mred" in text
    assert not any(letter in text for letter in "\x1b\x07\u202e\ud800")
    (tmp_path / "u.json").write_text(json.dumps([{"ph": "X", "cat": "\x1b[2J\ud800", "name": "a", "ts": 1, "dur": 1}]))
    assert main(["profile", "--trace", str(tmp_path / "u.json")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_names_made_to_slow_patterns_down(tmp_path):
    maker = Maker()
    for i in range(300):
        maker.add("user_annotation", f"{i}" + "context_1" * 400, i, 0.5).run(f"{i}" + "routing" * 500, i, 0.5)
        maker.module("layer " * 600 + f"_{i}", i, 0.2).add("user_annotation", "layer" + " ." * 1500 + f"{i}", i, 0.1)
    assert profile(maker.write(tmp_path / "t.json")).counts["kernels"] == 300


def test_zero_is_no_correlation_id(tmp_path):
    maker = Maker().op("aten::mm", 0, 50, [(8, 64), (64, 128)])
    for i in range(3):
        maker.add("cuda_runtime", "cudaLaunchKernel", i, 1, {"correlation": 0}).kernel(
            "ampere_gemm", 10 * i, 5, correlation=0
        )
    assert profile(maker.write(tmp_path / "t.json")).counts["unlaunched_kernels"] == 3


def test_limits_are_named(tmp_path):
    path = two_layers().write(tmp_path / "t.json")
    assert "more than 5 events to keep" in read_trace(path, Limits(events=5)).warnings[0]
    packed = tmp_path / "bomb.json.gz"
    packed.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 30_000_000))
    with pytest.raises(TraceError, match="more than 5,000,000 bytes of text"):
        read_trace(str(packed), Limits(text_bytes=5_000_000))


def test_one_endless_event_is_not_kept(tmp_path):
    path = tmp_path / "t.json"
    events = json.dumps(two_layers().events)[:-1]
    path.write_text(events + ', {"name": "' + "a" * 3_000_000)
    found = read_trace(str(path), Limits(value_chars=1_000_000))
    assert "longer than the limit" in found.warnings[0]


def test_a_long_key_is_passed_over_in_pieces(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"junk": "' + "a\\n" * 2_000_000 + '", "traceEvents": ' + json.dumps(two_layers().events) + "}")
    assert read_trace(str(path), Limits(value_chars=1_000_000)).warnings == ()


def test_overlapping_and_deeply_nested_events(tmp_path):
    maker = Maker()
    for i in range(20_000):
        maker.module(f"Layer_{i}", i, 100_000 - 2 * i)
    maker.op("aten::mm", 20_000, 10, [(8, 64), (64, 16)]).run("ampere_gemm", 20_001, 5)
    for i in range(1000):
        maker.op("aten::add", 30_000 + i, 5000 + 3 * i, [(8,), (8,)])
    assert profile(maker.write(tmp_path / "t.json")).counts["kernels"] == 1


def test_a_hundred_thousand_events(tmp_path):
    maker = Maker()
    for i in range(34_000):
        maker.op("aten::mm", 10 * i, 9, [(8, 64), (64, 16)]).run("ampere_gemm", 10 * i + 1, 3)
    found = profile(maker.write(tmp_path / "t.json"))
    assert found.counts["kernels"] == 34_000
    assert found.groups[0]["flops"] == 34_000 * 2 * 8 * 64 * 16


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["X", "kernel", "cpu_op", "aten::mm", "user_annotation", "nn.Module: A_0", "cudaGraphLaunch", BF16]
    ),
    st.lists(st.lists(st.integers(-2, 100), max_size=4), max_size=4),
    st.dictionaries(st.sampled_from(["correlation", "Input Dims", "bytes", "device"]), st.integers(), max_size=3),
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS = (
    "correlation",
    "External id",
    "Input Dims",
    "Input type",
    "Input Strides",
    "Concrete Inputs",
    "bytes",
    "grid",
    "device",
    "stream",
)
MUTATION = st.tuples(st.integers(0, 60), st.sampled_from([*KEYS, *(f"args.{key}" for key in ARGS)]), NASTY)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=st.lists(MUTATION, min_size=1, max_size=12), cut=st.floats(0.3, 1.0))
def test_no_mutation_does_more_than_an_error(tmp_path, mutations, cut):
    events = json.loads(json.dumps(two_layers().events))
    for place, key, value in mutations:
        event = events[place % len(events)]
        if key.startswith("args."):
            if isinstance(event["args"], dict):
                event["args"][key[5:]] = value
        else:
            event[key] = value
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": events})
    path.write_text(text if cut > 0.9 else text[: int(cut * len(text))], encoding="utf-8", errors="replace")
    device = load_device("h100-sxm")
    try:
        found = profile(str(path), device, str(path))
        json.dumps(profile_dict(found), allow_nan=False)
        profile_plot(found)
    except GambrelError:
        pass


# The command ------------------------------------------------------------------------------------


def test_the_command_answers_first(layered, capsys):
    assert main(["profile", "--trace", layered]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Each of 2 layers (ModelDecoderLayer) has 4 device activities (3 kernels) in prefill")


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_the_command_in_other_forms(layered, capsys, form):
    assert main(["profile", "--trace", layered, "--device", "h100-sxm", "--format", form]) == 0
    assert "ModelDecoderLayer" in capsys.readouterr().out


def test_the_chart_with_predictions_behind(layered, tmp_path, capsys):
    target = tmp_path / "chart.json"
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 100, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    line = ["profile", str(tmp_path / "config.json"), "--trace", layered, "--device", "h100-sxm", "-o", str(target)]
    assert main(line) == 0
    spec = target.read_text()
    assert "hollow: predicted" in spec
    assert "ModelAttention 64→128" in spec
    assert "q_proj" in spec


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "give MODEL, to run it here, or --trace FILE"),
        (["--trace", "T", "-o", "x.svg"], "needs --device"),
        (["llama-3-8b", "--trace", "T"], "needs -o FILE and --device"),
        (["llama-3-8b", "--trace", "T", "--device", "h200"], "needs -o FILE and --device"),
        (["--trace", "none.json"], "no such trace"),
        (["--trace", "T", "--eager", "none.json"], "no such trace"),
    ],
)
def test_what_the_command_needs(layered, capsys, line, message):
    assert main(["profile", *(layered if word == "T" else word for word in line)]) == 2
    assert message in capsys.readouterr().err


def test_a_chart_without_marks_says_so(tmp_path):
    path = Maker().run("ampere_gemm", 0, 5).write(tmp_path / "t.json")
    with pytest.raises(TraceError, match="nothing to mark"):
        profile_plot(profile(path, load_device("h100-sxm")))


def test_other_phases_have_marks_of_their_own(tmp_path):
    maker = two_layers()
    maker.add("user_annotation", "execute_context_1(8)_generation_2(2)", -1, 2000)
    assert (
        main(
            [
                "profile",
                "--trace",
                maker.write(tmp_path / "t.json"),
                "--device",
                "h100-sxm",
                "-o",
                str(tmp_path / "c.svg"),
            ]
        )
        == 0
    )


# Real traces ------------------------------------------------------------------------------------


def raw(shared, name):
    """The events as they lie in the file, for counting by hand."""
    with gzip.open(shared / "traces" / f"{name}.json.gz") as file:
        return json.load(file)["traceEvents"]


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
QWEN, B200 = "tracelens_h100_qwen1.5-0.5b", "tracelens_b200_vllm_eager"


def by_hand(events, layer):
    """Device activities of each call of a layer's module: those whose launch, by correlation id, begins inside it."""
    launches = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in CALLS}
    starts = [launches.get(e["args"]["correlation"]) for e in events if e.get("cat") in DEVICE]
    frames = [e for e in events if e["name"].startswith(f"nn.Module: {layer}_")]
    return [sum(s is not None and f["ts"] <= s < f["ts"] + f["dur"] for s in starts) for f in frames]


@pytest.mark.parametrize(
    ("name", "layer", "layers", "activities", "kernels"),
    [(QWEN, "Qwen2DecoderLayer", 24, 49, 42), (B200, "TransformerBlock", 36, 25, 21)],
)
def test_activities_per_layer_of_real_traces(shared, name, layer, layers, activities, kernels):
    """Counted by hand from the raw events: launches within the time of each layer's frame.

    49 is 42 kernels and 7 fills before the products; 25 is 21 kernels and 4 copies around the two all-reduces.
    """
    assert by_hand(raw(shared, name), layer) == [activities] * layers
    (row,) = profile(str(shared / "traces" / f"{name}.json.gz")).layers
    assert (row["layer"], row["layers"], row["calls"], row["phase"]) == (layer, layers, layers, "prefill")
    assert (row["activities_per_layer"], row["activities_least"], row["activities_most"]) == (activities,) * 3
    assert row["kernels_per_layer"] == kernels


def test_kernels_without_launch_of_a_real_trace(shared):
    """By hand: kernels whose correlation id no runtime or driver call has."""
    events = raw(shared, QWEN)
    calls = {e["args"]["correlation"] for e in events if e.get("cat") in CALLS}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert (sum(e["args"]["correlation"] not in calls for e in kernels), len(kernels)) == (436, 1465)
    counts = profile(str(shared / "traces" / f"{QWEN}.json.gz")).counts
    assert (counts["unlaunched_kernels"], counts["kernels"]) == (436, 1465)


def test_busy_share_of_a_real_trace(shared):
    """By hand: kernels painted on a line of hundredths of a microsecond, over first start to last end of all."""
    events = [e for e in raw(shared, B200) if e.get("cat") in DEVICE]
    first, last = min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)
    line = bytearray(int((last - first) * 100) + 2)
    for e in events:
        if e["cat"] == "kernel":
            start, end = round((e["ts"] - first) * 100), round((e["ts"] + e["dur"] - first) * 100)
            line[start:end] = b"\1" * (end - start)
    by_hand_share = sum(line) / 100 / (last - first)
    assert round(by_hand_share, 2) == 0.13
    assert profile(str(shared / "traces" / f"{B200}.json.gz")).busy_share == pytest.approx(by_hand_share, abs=1e-3)


def test_shapes_of_a_real_trace(shared):
    """Qwen1.5-0.5B, 16 sequences of 559: four d·d and three d·f products a layer, m = 8944, and causal attention."""
    (row,) = profile(str(shared / "traces" / f"{QWEN}.json.gz")).layers
    m, d, f = 16 * 559, 1024, 2816
    attention = 4 * 16 * 16 * (559 * 560 // 2) * 64
    assert row["flops"] == 24 * (2 * m * (4 * d * d + 3 * d * f) + attention)


def test_the_range_of_a_real_trace_names_the_phase(shared):
    found = profile(str(shared / "traces" / f"{B200}.json.gz"), load_device("b200"))
    assert {row["phase"] for row in found.groups} == {"prefill"}
    roles = {row["role"]: row["count"] for row in found.groups}
    assert roles["communication"] == 74
    assert roles["attention"] == 36
    assert "other" not in roles


def test_faster_than_the_roof_is_an_error(shared):
    notes = profile(str(shared / "traces" / f"{QWEN}.json.gz"), load_device("l4")).notes
    assert any(note.startswith("error: ") and "faster than the roof of l4" in note for note in notes)


REAL = {"hta_a100_alexnet": "a100-sxm-40gb", "hta_a100_triton": "a100-sxm-40gb", QWEN: "h100-sxm", B200: "b200"}


@pytest.mark.parametrize(("name", "device"), REAL.items())
def test_real_traces_are_read_whole(shared, name, device):
    trace = read_trace(str(shared / "traces" / f"{name}.json.gz"))
    assert trace.warnings == ()
    assert trace.seen == len(raw(shared, name))
    found = profile_trace(trace, load_device(device))
    assert all(row["roof_fraction"] is None or 0 < row["roof_fraction"] < 1 for row in found.groups)
    nodes, around = nest(trace)
    assert nodes
    assert around
