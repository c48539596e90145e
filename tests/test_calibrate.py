"""Timing, the machine's ceilings and the device file, mostly with fakes; one real calibration where PyTorch is."""

from __future__ import annotations

import io
import json
import os
import tomllib
from itertools import pairwise

import pytest

import gambrel
from gambrel.cli import main
from gambrel.measure import calibrate as measure
from gambrel.measure import machine
from gambrel.measure.calibrate import Case, Effort, Unsupported, calibrate, device_toml, save
from gambrel.measure.clock import EventTimer, Plan, Progress, Usage, WallTimer, nothing, time_it

DATE = "2026-11-30"


class Machine:
    """A clock that moves only when work is done, and the counters beside it."""

    def __init__(self, cores=2.0, share=1.0, others=0.0, only_laps=None):
        self.now = self.process = self.machine = 0.0
        self.cores, self.share, self.others = cores, share, others
        self.disturbed = only_laps
        self.lap = -1

    def work(self, cpu_s):
        """Work of cpu_s on one core; a disturbed lap gets a share of it and shares the machine with others."""
        disturbed = self.disturbed is None or self.lap in self.disturbed
        share, others = (self.share, self.others) if disturbed else (1.0, 0.0)
        wall = cpu_s / share
        self.now += wall
        self.process += cpu_s
        self.machine += cpu_s + others * wall

    def read(self):
        return Usage(self.now, self.process, self.machine)

    def timer(self):
        machine = self

        class Timer(WallTimer):
            def lap(self, call, calls):
                machine.lap += call is not nothing
                return super().lap(call, calls)

        return Timer(clock=lambda: self.now)


def timed(fake, cpu_s=0.01, plan=None):
    return time_it(lambda: fake.work(cpu_s), plan=plan or Plan(), timer=fake.timer(), meter=fake)


# The clock --------------------------------------------------------------------------------------


def test_warmups_stay_apart_and_repetitions_are_long_enough():
    fake = Machine()
    first = iter([1.0])
    plan = Plan(warmups=2, repeats=7, min_time_s=0.1)
    timing = time_it(lambda: fake.work(next(first, 0.01)), plan=plan, timer=fake.timer(), meter=fake)
    assert timing.warmups_s[0] == pytest.approx(1.0)
    assert timing.values_s == pytest.approx([0.01] * 7)
    assert timing.calls * 0.01 >= plan.min_time_s
    assert len(timing.warmups_s) >= plan.warmups
    assert (timing.busy, timing.rejected) == (False, 0)
    assert timing.cpu_share == pytest.approx(1.0)
    assert timing.median_s == pytest.approx(0.01)
    assert timing.spread == pytest.approx(0.0)


def test_something_else_is_timed_in_turn():
    fake, order = Machine(), []

    def work(name, cpu_s):
        order.append(name)
        fake.work(cpu_s)

    plan = Plan(warmups=1, repeats=3, min_time_s=0.01)
    call, beside = (lambda: work("call", 0.02)), (lambda: work("beside", 0.005))
    timing = time_it(call, plan=plan, timer=fake.timer(), meter=fake, beside=beside)
    assert order == ["call", *["call", "beside"] * 3]
    assert timing.values_s == pytest.approx([0.02] * 3)
    assert timing.beside_s == pytest.approx([0.005] * 3)
    assert timed(Machine()).beside_s == ()


def test_disturbed_repetitions_are_rejected_and_repeated():
    """Half the processor time in two of the laps (two warm-ups and one that finds the calls come first)."""
    fake = Machine(share=0.5, others=1.0, only_laps={4, 6})
    timing = timed(fake, plan=Plan(warmups=1, repeats=5))
    assert timing.rejected == 2
    assert timing.values_s == pytest.approx([0.01] * 5)
    assert not timing.busy


@pytest.mark.parametrize(("share", "others"), [(0.5, 0.0), (1.0, 1.0), (0.6, 2.0)])
def test_a_busy_machine_is_said(share, others):
    """Too little processor time for this process, or too much of it for others, or both."""
    fake = Machine(share=share, others=others)
    timing = timed(fake, plan=Plan(repeats=5, retries=3))
    assert timing.busy
    assert timing.rejected == 4
    assert timing.values_s == pytest.approx([0.01 / share] * 4)
    assert timing.other_cores == pytest.approx(others)


def test_a_few_ticks_of_others_are_no_disturbance():
    assert not timed(Machine(others=0.1)).busy


def test_nobody_else_can_be_seen_without_the_kernels_counters():
    class Blind(Machine):
        def read(self):
            return Usage(self.now, self.process)

    timing = timed(Blind(others=5.0))
    assert timing.other_cores is None
    assert not timing.busy
    assert timed(Blind(share=0.5)).busy


def test_time_runs_out():
    timing = timed(Machine(), cpu_s=10.0, plan=Plan(warmups=1, repeats=100, max_time_s=25.0))
    assert len(timing.values_s) == 3


def test_threads_share_the_processor_time():
    fake = Machine()

    def call():
        fake.work(0.1)
        fake.process += 0.1
        fake.machine += 0.1

    timing = time_it(call, plan=Plan(repeats=3, threads=2), timer=fake.timer(), meter=fake)
    assert timing.cpu_share == pytest.approx(1.0)


def test_the_garbage_collector_rests_and_comes_back():
    import gc

    seen = []
    fake = Machine()
    time_it(lambda: (seen.append(gc.isenabled()), fake.work(0.1)), timer=fake.timer(), meter=fake)
    assert not any(seen)
    assert gc.isenabled()


def test_events_of_the_device_time_it():
    """A fake of torch.cuda: the queue moves the clock only when it is synchronised."""

    class Cuda:
        def __init__(self):
            self.queue, self.now = [], 0.0

        def Event(self, enable_timing):
            assert enable_timing
            return Stamp(self)

        def synchronize(self):
            for entry in self.queue:
                if isinstance(entry, Stamp):
                    entry.at = self.now
                else:
                    self.now += entry
            self.queue = []

    class Stamp:
        def __init__(self, cuda):
            self.cuda, self.at = cuda, None

        def record(self):
            self.cuda.queue.append(self)

        def elapsed_time(self, end):
            return (end.at - self.at) * 1e3

    cuda, host = Cuda(), Machine()
    timer = EventTimer(cuda)
    assert timer.lap(lambda: cuda.queue.append(0.002), 3) == pytest.approx(0.006)

    def call():
        cuda.queue.append(0.05)
        host.work(0.001)

    timing = time_it(call, plan=Plan(repeats=4), timer=timer, meter=host)
    assert timing.values_s == pytest.approx([0.05] * 4)
    assert not timing.busy  # the host may idle while the device works


def test_progress_is_for_terminals():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for out, shown in ((io.StringIO(), False), (Terminal(), True)):
        progress = Progress(out)
        progress.say("calibrating")
        progress.done()
        assert ("calibrating" in out.getvalue()) is shown


def test_the_real_counters_move():
    timing = time_it(lambda: sum(range(1000)), plan=Plan(1, 3, 0.01, 1.0, 1))
    assert all(value > 0 for value in timing.values_s)
    assert 0 < timing.overhead_s < timing.median_s


# The machine ------------------------------------------------------------------------------------


def test_metadata_names_nobody(monkeypatch):
    told = json.dumps(machine.describe("cpu", 2))
    names = {os.uname().nodename, os.path.expanduser("~"), os.environ.get("USER") or os.path.expanduser("~")}
    assert not any(name in told for name in names if len(name) > 3)
    assert os.getcwd() not in told
    assert machine.describe()["machine"] == json.loads(told)["machine"]
    assert json.loads(told)["cores"] >= 1


def test_the_id_is_that_of_stable_facts():
    facts = {"cpu": "x", "memory_bytes": 16 * 2**30, "cores": 8}
    assert machine.machine_id(facts) == machine.machine_id({**facts, "memory_bytes": 16 * 2**30 - 10**6})
    assert machine.machine_id(facts) != machine.machine_id({**facts, "cores": 4})


def test_the_revision_is_read_from_the_repository(tmp_path):
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert machine.git_revision(str(inner)) is None
    (git / "packed-refs").write_text("# pack-refs\n" + "a" * 40 + " refs/heads/main\n")
    assert machine.git_revision(str(inner)) == "a" * 40
    (git / "refs" / "heads" / "main").write_text("b" * 40 + "\n")
    assert machine.git_revision(str(inner)) == "b" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert machine.git_revision(str(inner)) == "c" * 40


def test_the_last_cache_counts_every_instance(tmp_path):
    for core in range(4):
        for index, (level, size, shared) in enumerate([(1, "32K", core), (3, "16384K", core // 2)]):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    assert machine.last_cache_bytes(str(tmp_path)) == 2 * 16 * 2**20
    assert machine.last_cache_bytes(str(tmp_path / "nothing")) is None


def fake_torch(capability=(9, 0)):
    """What of PyTorch a CUDA backend asks before it runs anything."""
    from types import SimpleNamespace

    card = SimpleNamespace(
        name="A Card", total_memory=80 * 10**9, L2_cache_size=5 * 10**7, multi_processor_count=132, uuid="12-34"
    )
    card.major, card.minor = capability
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: card,
        set_device=lambda device: None,
        synchronize=lambda: None,
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8", hip=None))


def test_a_gpu_is_described(monkeypatch):
    import subprocess
    import sys

    from gambrel.measure.backends import CudaBackend, backend

    asked = []

    def smi(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "570.1.2, 1980, 1980, 2619, 700.00, 31, 3\n", "")

    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    monkeypatch.setattr(subprocess, "run", smi)
    chosen = backend()
    assert isinstance(chosen, CudaBackend)
    assert (chosen.device, chosen.memory_bytes, chosen.last_cache_bytes) == ("cuda:0", 80 * 10**9, 5 * 10**7)
    assert "fp8" in chosen.dtypes
    assert isinstance(chosen.timer("read"), EventTimer)
    assert isinstance(chosen.timer("launch"), WallTimer)
    told = chosen.describe(1)
    assert asked[0][:3] == ["nvidia-smi", "-i", "GPU-12-34"]
    assert told["gpu_state"]["sm_mhz"] == 1980.0
    assert told["gpu_state"]["utilization_percent"] == 3.0
    assert told["device"] == "A Card"
    assert "12-34" not in json.dumps(told)
    with pytest.raises(gambrel.GambrelError, match="sees cuda:0"):
        backend("cuda:7")
    monkeypatch.setitem(sys.modules, "torch", fake_torch((8, 0)))
    assert "fp8" not in backend("cuda").dtypes
    assert "bf16" in backend("cuda").dtypes


# Ceilings ---------------------------------------------------------------------------------------

RATES = {"fp32": 1e12, "bf16": 4e12}


class Backend:
    """A machine whose every rate is known; bf16 needs large shapes, fp16 is not there."""

    device, dtypes, thread_counts = "cpu", ("fp32", "bf16", "fp16"), (1, 4)
    last_cache_bytes, memory_bytes = 10**7, 10**11

    def __init__(self, **how):
        self.machine, self.threads = Machine(**how), 1

    def set_threads(self, threads):
        self.threads = threads

    def describe(self, threads):
        return {"device": 'A "fake"\ncpu', "threads": threads, "versions": {"gambrel": "0"}, "gpu": None}

    def timer(self, kind):
        return self.machine.timer()

    def _case(self, kind, kernel, amount, rate, dtype="", shape=""):
        return Case(kind, kernel, amount, lambda: self.machine.work(amount / rate), dtype, shape)

    def product(self, dtype, shape):
        if dtype not in RATES:
            raise Unsupported("no such kernel")
        m, n, k = shape
        rate = RATES[dtype] * self.threads * min(m / 1024, 1)
        return self._case("product", "matmul", 2 * m * n * k, rate, dtype, f"m {m}")

    def reads(self, n_bytes):
        yield self._case("read", "sum", n_bytes, 1e10 * self.threads)
        yield self._case("read", "max", n_bytes, 2e10 * self.threads)

    def copies(self, n_bytes):
        yield self._case("copy", "copy", n_bytes, 3e10)

    def tiny(self):
        return self._case("launch", "add", 1, 1e6)


HOW = Effort(((512, 512, 512), (1024, 1024, 1024), (65536, 65536, 65536)), plan=Plan(1, 3))


def ceilings(**how):
    backend = Backend(**how)
    return calibrate(backend, HOW, Progress(io.StringIO()), backend.machine)


def test_the_best_counts_and_all_are_kept():
    found = ceilings()
    assert {dtype: best.rate for dtype, best in found.products.items()} == pytest.approx({"fp32": 4e12, "bf16": 16e12})
    assert found.products["bf16"].shape == "m 1024"
    assert found.products["bf16"].threads == 4
    assert found.memory.rate == pytest.approx(8e10)
    assert found.memory.kernel == "max"
    assert found.best(("read",), threads=1).rate == pytest.approx(2e10)
    assert found.launch.timing.median_s == pytest.approx(1e-6)
    assert len(found.results) == 2 * (2 * 2 + 2 * 3 + 1)
    assert not found.busy
    assert "fp16: no such kernel" in found.left_out
    assert any("65536" in told for told in found.left_out)


def test_the_fastest_read_is_found():
    """By its rate, also where it moves more than the others."""
    fake = Backend()
    assert measure.fastest_read(fake, HOW).kernel == "max"
    uneven = Backend()
    uneven.reads = lambda n: iter([uneven._case("read", "little", n / 9, 1e10), uneven._case("read", "all", n, 2e10)])
    assert measure.fastest_read(uneven, HOW).kernel == "all"


def test_a_busy_machine_is_in_the_file(tmp_path):
    found = ceilings(share=0.5)
    assert found.busy
    text = device_toml(found, "mine", DATE)
    assert tomllib.loads(text)["calibration"]["busy"] is True
    assert "BUSY" in tomllib.loads(text)["note"]


def test_a_busy_gpu_is_said():
    class Shared(Backend):
        def describe(self, threads):
            return {**super().describe(threads), "gpu_state": {"utilization_percent": 80.0}}

    backend = Shared()
    found = calibrate(backend, HOW, Progress(io.StringIO()), backend.machine)
    assert found.busy
    assert "80 % busy" in found.notes[0]


def test_the_device_file_is_a_device(tmp_path):
    path = str(tmp_path / "mine.toml")
    save(ceilings(), path, DATE, "h100-sxm")
    device = gambrel.load_device(path)
    assert device.peak_flops_per_s == pytest.approx({"fp32": 4e12, "bf16": 16e12})
    assert (device.mem_bytes_per_s, device.mem_bytes) == (pytest.approx(8e10), 10**11)
    assert device.name == 'A "fake"\ncpu, measured'
    assert {figure.source for figure in device.figures.values()} == {"calibration"}
    origin = device.sources["calibration"]
    assert (origin["date"], origin["checked"]) == (DATE, True)
    table = tomllib.loads((tmp_path / "mine.toml").read_text())["calibration"]
    assert table["datasheet"] == "h100-sxm"
    assert (table["busy"], table["threads"], table["versions"]) == (False, 4, {"gambrel": "0"})
    assert len(table["results"]) == 22
    assert table["spread"].keys() == {"fp32", "bf16", "read", "copy", "launch"}
    assert "medians" in table["method"]


def test_the_file_is_not_replaced_unless_forced(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    with pytest.raises(gambrel.GambrelError, match="--force"):
        save(ceilings(), str(path), DATE)
    assert path.read_text() == "mine"
    save(ceilings(), str(path), DATE, force=True)
    assert gambrel.load_device(str(path)).id == "mine"


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text("mine")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(measure.os, "fsync", fail)
    with pytest.raises(gambrel.GambrelError, match="no space left"):
        save(ceilings(), str(path), DATE, force=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_wrong_options_are_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.toml").write_text("")
    for options, told in (
        (["-o", "x.json"], "ends in .toml"),
        (["-o", "there.toml"], "--force"),
        (["-o", "nowhere/x.toml"], "no such folder"),
        (["--datasheet", "h1000"], "did you mean"),
    ):
        assert main(["calibrate", *options]) == 2
        assert told in capsys.readouterr().err


def test_without_pytorch_one_line_says_what_to_install(capsys, tmp_path, monkeypatch):
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calibrate"]) == 2
    assert capsys.readouterr().err == "gambrel: this needs PyTorch: pip install 'gambrel[torch]'\n"


# Against measured ceilings ----------------------------------------------------------------------


@pytest.fixture
def slower(tmp_path):
    """A machine at half of the H100's figures."""
    path = tmp_path / "mine.toml"
    path.write_text(
        '[peak_flops_per_s]\nbf16 = "494.5TFLOP/s"\n'
        '[memory]\nadvertised_bytes = "80GB"\nbandwidth_bytes_per_s = "1.675TB/s"\n'
    )
    return str(path)


def test_reports_show_both_bounds(capsys, slower):
    line = ["report", "llama-3-8b", "--device", "h100-sxm", "--ceilings", slower]
    assert main([*line, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ceilings"] == "mine"
    for row in (*document["decode"], *document["prefill"]):
        assert row["measured_ceiling_s"] == pytest.approx(2 * row["bound_s"])
    main(line)
    out = capsys.readouterr().out
    assert "as measured" in out
    assert "1.68 TB/s (50%)" in out
    main(line[:-2])
    assert "as measured" not in capsys.readouterr().out


@pytest.mark.parametrize("workload", [["--context", "8192"], ["--prefill", "8192"]])
def test_comparisons_show_both_bounds(capsys, slower, workload):
    line = ["compare", "llama-3-8b", "--device", "h100-sxm", "--ceilings", slower, "--measured", "1s", *workload]
    assert main([*line, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured_ceiling_s"] == pytest.approx(2 * document["bound_s"])
    below = [part for part in document["parts"] if part["name"].endswith("below datasheet")]
    assert [part["time_s"] for part in below] == pytest.approx([document["bound_s"]])
    assert sum(part["time_s"] for part in document["parts"]) == pytest.approx(1.0)
    main(line)
    assert "at measured ceilings" in capsys.readouterr().out


# For real ---------------------------------------------------------------------------------------


def test_this_machine(capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch (pip install gambrel[torch])")
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "--device", "cpu", "--quick", "--datasheet", "cpu-epyc-9654", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == "wrote ./this-machine.toml\n"
    document = json.loads(out)
    for row in document["results"]:
        assert row["rate"] > 0
        assert row["median_s"] > 0
        assert len(row["values_s"]) == row["repeats"] >= 3
        assert all(a <= b for a, b in pairwise((row["quartile_1_s"], row["median_s"], row["quartile_3_s"])))
    device = gambrel.load_device("./this-machine.toml")
    assert 1e8 < device.mem_bytes_per_s < 1e13
    assert all(1e7 < peak < 1e16 for peak in device.peak_flops_per_s.values())
    assert main(["report", "gpt2", "--device", "./this-machine.toml", "--compute-dtype", "fp32"]) == 0
    assert "measured" in capsys.readouterr().out
