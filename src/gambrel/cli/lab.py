"""Commands on what was measured: runs, profiles, endpoints, and how far they are from what is possible."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from gambrel import units
from gambrel.cli.options import (
    FINE,
    NO,
    SHARE,
    WHOLE,
    WHOLES,
    add_ceilings,
    add_device,
    add_model,
    add_output,
    add_precision,
    explained,
    given_device,
    given_model,
    plain_report,
    printed,
    read_context,
    report_options,
    typed,
)
from gambrel.types import GambrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.api import Model
    from gambrel.cost.compare import Conditions
    from gambrel.measure.profile import Profile
    from gambrel.plots import Point
    from gambrel.types import Device, Step


# compare ---------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    return units.parse(text, "s")


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel compare`."""
    add_model(parser)
    add_device(parser)
    group = parser.add_argument_group("workload (a decode step unless --prefill)")
    group.add_argument("--batch", type=WHOLE, metavar="N", help="sequences (1, or as a --file tells)")
    group.add_argument("--context", type=typed(read_context), default=0, metavar="S", help="keys attended (0: no KV)")
    group.add_argument("--prefill", type=WHOLE, metavar="S", help="a fresh prompt of S tokens instead")
    group = parser.add_argument_group("measured")
    group.add_argument("--measured", type=typed(_seconds), metavar="TIME", help="of one step, such as 3.43ms")
    group.add_argument("--run", metavar="ID", help='of gambrel run, with its workload and dtype; "last" is the newest')
    group.add_argument("--file", metavar="FILE", help="a result file of another tool, or the start-up log of an engine")
    group.add_argument("--new-tokens", type=WHOLE, metavar="N", help="of each request in a --file that does not say")
    group.add_argument("--require", type=SHARE, metavar="X", help="exit 1 below this fraction of the possible speed")
    add_ceilings(parser)
    add_output(parser)


def run_compare(args: argparse.Namespace) -> int:
    """Run `gambrel compare`; returns the exit status."""
    from gambrel.cost.compare import Conditions, compare
    from gambrel.cost.documents import compare_dict
    from gambrel.cost.workload import decode_step, prefill_step
    from gambrel.model.arch import check_tp
    from gambrel.show import answers

    if args.file:
        return _compare_file(args)
    args.batch = args.batch or 1
    run = _stored_run(args) if args.run else None
    model, device = run[0] if run else given_model(args), given_device(args)
    check_tp(model.arch, args.tp)
    if explained(args, lambda: plain_report(args, model, args.batch, args.context)):
        return FINE
    if args.measured is None and run is None:
        raise GambrelError("nothing measured: give --measured TIME, --run ID of gambrel run, or --file FILE")
    plain = decode_step(model.arch, args.batch, args.context)
    step = prefill_step(model.arch, args.batch, args.prefill) if args.prefill else plain
    _, step, measured_s, known = run or (model, step, args.measured, Conditions())
    if args.ceilings:
        known = replace(known, mem_bytes_per_s=None, ceilings=given_device(args, args.ceilings))
    result = compare(model, device, step, measured_s, args.tp, known)
    if not printed(args, lambda: compare_dict(result), lambda: answers.compare_tables(result)):
        answers.print_comparison(result)
    return NO if args.require is not None and result.fraction < args.require else FINE


def _compare_file(args: argparse.Namespace) -> int:
    """What another tool measured, or what an engine said of its memory, against the bounds and the capacity."""
    from gambrel.cost.documents import receipt_dict, results_dict
    from gambrel.cost.others import Setup, receipt_lines, run_rows
    from gambrel.cost.report import capacity
    from gambrel.measure.logs import Receipt, read_told
    from gambrel.model.arch import check_tp
    from gambrel.show import others

    taken = [name for name in ("measured", "run", "explain", "ceilings") if getattr(args, name, None)]
    if taken:
        raise GambrelError(f"--file {args.file} has its own measurements; leave out --{', --'.join(taken)}")
    told = read_told(args.file)
    if isinstance(told, Receipt) and told.utilization and args.utilization == 0.9:
        args.utilization = min(told.utilization, 1.0)
    if isinstance(told, Receipt) and told.tp and args.tp == 1:
        args.tp = told.tp
    model, device = given_model(args), given_device(args)
    check_tp(model.arch, args.tp)
    room = capacity(model, device, report_options(argparse.Namespace(**{**vars(args), "batch": None, "prefill": None})))
    setup = Setup(model, device, room, args.tp, args.batch, args.context or None, args.prefill, args.new_tokens)
    if isinstance(told, Receipt):
        lines = receipt_lines(setup, told)
        if not printed(args, lambda: receipt_dict(setup, lines, told), lambda: others.receipt_tables(lines)):
            others.print_receipt(setup, lines, told)
        return FINE
    rows = run_rows(setup, told)
    if not printed(args, lambda: results_dict(setup, rows, told), lambda: others.result_tables(rows, told)):
        others.print_results(setup, rows, told)
    fractions = [row.fraction for row in rows if row.fraction is not None]
    return NO if args.require is not None and any(fraction < args.require for fraction in fractions) else FINE


def _stored_run(args: argparse.Namespace) -> tuple[Model, Step, float, Conditions]:
    """The model and step of a stored run, its median, and what is known beside it: launches, reads in turn with it."""
    from gambrel.cost.compare import Conditions
    from gambrel.measure import build, record, run
    from gambrel.model.sources import find_config

    others = ("measured", "prefill", "like", "weight_dtype", "kv_dtype", "compute_dtype")
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(args, name)]
    if given:
        raise GambrelError(f"--run takes the workload and the dtype from the record; leave out {', '.join(given)}")
    stored, _ = record.read_all()
    found = record.find(args.run)
    known = found.metadata
    if not {"config_hash", "layers", "dtype", "phase", "batch", "new_tokens", "context_tokens"} <= known.keys():
        raise GambrelError(f"{found.id} ({found.name}) is no record of gambrel run")
    model = _model_as_run(find_config(args.model), known["layers"], known["dtype"])
    if build.config_hash(model.config) != known["config_hash"]:
        raise GambrelError(f"{found.id} is a run of {known['model']}, whose config is not that of {args.model}")
    if known["busy"]:
        print("warning: the machine was busy while this was measured", file=sys.stderr)
    step = _step_as_run(model, known["phase"], (known["batch"], known["new_tokens"], known["context_tokens"]))
    return model, step, found.median_s, Conditions(run.launch_s(found, stored), run.read_bytes_per_s(found))


# run -------------------------------------------------------------------------------------------


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def add_run(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel run`."""
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    group = parser.add_argument_group("what runs (random weights, nothing is downloaded)")
    group.add_argument("--phase", type=_names, default=("prefill", "decode"), metavar="P,…", help="(prefill,decode)")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="N", help="sequences (1)")
    group.add_argument("--context", type=WHOLE, default=512, metavar="S", help="keys a decode step attends (512)")
    group.add_argument("--prompt", type=WHOLE, default=512, metavar="S", help="tokens of a prefill (512)")
    group.add_argument("--dtype", metavar="D", help="fp32 bf16 fp16 (what the config says)")
    group.add_argument("--layers", type=WHOLE, metavar="N", help="the first N layers alone, for a small machine")
    group = parser.add_argument_group("how")
    told = "torch, compile, graph (torch and graph; on a processor torch and compile; with --quick there torch)"
    group.add_argument("--engine", type=_names, metavar="E,…", help=told)
    group.add_argument("--on", metavar="WHERE", help="cpu or cuda:0 (the first CUDA device, else cpu)")
    group.add_argument("--threads", type=WHOLE, metavar="N", help="of the processor (as PyTorch has)")
    group.add_argument("--repeats", type=WHOLE, default=15, metavar="N", help="undisturbed repetitions (15)")
    group.add_argument("--quick", action="store_true", help="3 repetitions, to try it out")
    group.add_argument("--counters", action="store_true", help="read the GPU's activity, clocks and power meanwhile")
    group.add_argument("--device", metavar="DEVICE", help="the bound of this device beside it, or of your own .toml")
    group.add_argument("--file", metavar="FILE", help="of records (runs.jsonl in $GAMBREL_DATA or your data folder)")
    add_output(parser, explain=False)


def run_run(args: argparse.Namespace) -> int:
    """Run `gambrel run`; returns the exit status."""
    from gambrel.cost.documents import execution_dict
    from gambrel.measure import clock, record, run
    from gambrel.model.sources import find_config
    from gambrel.show import execution

    hardware = given_device(args, args.device) if args.device else None
    setup, floors = _run_setup(args, find_config(args.model), hardware)
    path, progress = args.file or record.store_path(), clock.Progress()
    try:
        records = run.run(setup, lambda made: record.append(made, path), progress.say)
    finally:
        progress.done()
    ceilings = hardware is not None and hardware.calibrated
    done = run.Execution(records, path, run.notes(records), ceilings)
    document = execution_dict(done, floors, hardware)
    if args.counters:
        for row, made in zip(document["runs"], records, strict=True):
            row["counters"] = run.counted(made, floors[row["phase"]].bound)
    if not printed(args, lambda: document, lambda: execution.execution_tables(document)):
        execution.print_execution(document)
    below = [row["id"] for row in document["runs"] if (row["fraction"] or 0) > 1 and not done.ceilings]
    for each in below:
        print(f"gambrel: {each} is below its bound: an error, not a good result", file=sys.stderr)
    return NO if below else FINE


def _run_setup(args: argparse.Namespace, found: Any, hardware: Device | None) -> tuple[Any, dict[str, Any]]:
    """What to run, and the floor of each of its phases."""
    from gambrel.cost.roofline import demand
    from gambrel.measure import build, clock, run

    where = args.on or run.default_device()
    both = ("torch", "graph") if where.startswith("cuda") else ("torch",) if args.quick else ("torch", "compile")
    repeats = 3 if args.quick else args.repeats
    longest_s = 10.0 if args.quick else 120.0
    setup = run.Setup(
        found.name,
        build.trim(found.config, args.layers),
        build.n_layers(found.config),
        args.dtype or build.config_dtype(found.config),
        where,
        args.threads,
        args.engine or both,
        args.phase,
        args.batch,
        args.prompt,
        args.context,
        clock.Plan(2, repeats, 0.1, longest_s, repeats),
        args.counters,
    )
    model = _model_as_run(found, args.layers, setup.dtype)
    if model.arch.source_tokens is not None:  # a model of audio reads as many frames whatever is asked
        setup = replace(setup, prompt_tokens=model.arch.source_tokens)
    steps = {phase: _step_as_run(model, phase, setup.shape(phase)) for phase in setup.phases}
    _check_attends(model, found, setup)
    _check_room(model, setup, steps)
    bounds = {phase: model.bound(step, hardware) if hardware else None for phase, step in steps.items()}
    moved = {phase: demand(model.ops(step)).bytes() for phase, step in steps.items()}
    return setup, {phase: run.Floor(moved[phase], bounds[phase]) for phase in setup.phases}


def _check_attends(model: Model, found: Any, setup: Any) -> None:
    """Refuse a hybrid cut below its first layer with attention: transformers' cache cannot hold the others alone."""
    from gambrel.measure import build

    if setup.total_layers == build.n_layers(setup.config) or model.kv_bytes_per_token:
        return
    more = range(build.n_layers(setup.config) + 1, setup.total_layers + 1)
    least = next((n for n in more if _model_as_run(found, n, setup.dtype).kv_bytes_per_token), None)
    if least is not None:
        raise GambrelError(
            f"{setup.label}: none of these attends, and transformers cannot cache such layers alone; the first with "
            f"attention is number {least}: --layers {least}"
        )


def _check_room(model: Model, setup: Any, steps: dict[str, Step]) -> None:
    """Refuse what cannot fit, before anything is built: a system whose memory is full ends the process."""
    from gambrel.cost.capacity import least_memory
    from gambrel.measure import machine

    free, size = machine.free_bytes(setup.device), units.si
    for phase, step in steps.items():
        batch, _, tokens = setup.shape(phase)
        least = least_memory(model, step, tokens)
        if free is not None and least.total_bytes > free:
            raise GambrelError(
                f"{setup.label} in {setup.dtype} does not fit on {setup.device}: {phase} of {batch:,} x {tokens:,} "
                f"tokens takes at least {size(least.total_bytes, 'B')} (weights {size(least.weight_bytes, 'B')}, cache "
                f"{size(least.cache_bytes, 'B')}, the largest operator {size(least.largest_op_bytes, 'B')}), and "
                f"{size(free, 'B')} are free; try --layers, --batch, --context, --prompt or --dtype"
            )


def _model_as_run(found: Any, layers: int | None, dtype: str) -> Model:
    """A model with its first layers alone, everything of it in one dtype, as `run` builds it."""
    from gambrel.api import Model
    from gambrel.measure.build import trim
    from gambrel.model.precision import Overrides
    from gambrel.model.reader import read_config

    config = trim(found.config, layers)
    return Model(found.name, found.source, config, read_config(config, Overrides(dtype, dtype, dtype)))


def _step_as_run(model: Model, phase: str, shape: tuple[int, int, int]) -> Step:
    """The step of a run: batch, new tokens, context."""
    from gambrel.cost.workload import decode_step, prefill_step

    batch, new_tokens, context_tokens = shape
    if phase == "prefill":
        return prefill_step(model.arch, batch, new_tokens)
    return decode_step(model.arch, batch, context_tokens)


# calibrate, runs -------------------------------------------------------------------------------


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel calibrate`."""
    parser.add_argument("--device", metavar="DEVICE", help="cpu or cuda:0 (the first CUDA device, else cpu)")
    parser.add_argument("--threads", type=WHOLE, metavar="N", help="all threads of the processor (as PyTorch has)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions, to try it out")
    parser.add_argument("--datasheet", metavar="DEVICE", help="show what share of this one's figures is reached")
    group = parser.add_argument_group("device file")
    group.add_argument("-o", "--output", metavar="FILE", default="./this-machine.toml", help="(./this-machine.toml)")
    group.add_argument("--force", action="store_true", help="replace it where it exists")
    add_output(parser, explain=False)


def run_calibrate(args: argparse.Namespace) -> int:
    """Run `gambrel calibrate`; returns the exit status."""
    from datetime import UTC, datetime

    from gambrel.cost.documents import calibrate_dict
    from gambrel.measure import calibrate as measure
    from gambrel.measure.backends import backend
    from gambrel.show import measured

    measure.check_free(args.output, args.force)
    datasheet = given_device(args, args.datasheet) if args.datasheet else None
    chosen = backend(args.device, args.threads)
    found = measure.calibrate(chosen, measure.effort(chosen.device, args.quick))
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    measure.save(found, args.output, date, datasheet.id if datasheet else None, args.force)
    print(f"wrote {args.output}", file=sys.stderr)
    document = calibrate_dict(found, args.output, datasheet)
    if not printed(args, lambda: document, lambda: measured.calibrate_tables(document)):
        measured.print_calibration(found, measure.sentence(found), document)
    return FINE


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel runs`."""
    parser.add_argument("ids", nargs="*", metavar="ID", help='one: show it; two: compare them; "last" is the newest')
    parser.add_argument("--file", metavar="FILE", help="of records (runs.jsonl in $GAMBREL_DATA or your data folder)")
    parser.add_argument("--force", action="store_true", help="compare what is not comparable")
    add_output(parser, explain=False)


def run_runs(args: argparse.Namespace) -> int:
    """Run `gambrel runs`; returns the exit status."""
    from gambrel.cost import documents
    from gambrel.measure import record
    from gambrel.show import measured

    path = args.file or record.store_path()
    if len(args.ids) > 2:
        raise GambrelError("gambrel runs takes no id, one to show, or two to compare")
    runs, unreadable = record.read_all(path)
    for told in unreadable:
        print(f"warning: {told}", file=sys.stderr)
    if len(args.ids) == 2:
        return _runs_compared(args, path)
    if args.ids:
        run = record.find(args.ids[0], path)
        row = documents.run_dict(run)
        shown = printed(args, lambda: documents.runs_dict(path, [row], unreadable), lambda: measured.run_tables(row))
        if not shown:
            measured.print_run(run, row)
        return FINE
    rows = [documents.run_row(run) for run in runs]
    if not printed(args, lambda: documents.runs_dict(path, rows, unreadable), lambda: measured.runs_tables(rows)):
        measured.print_runs(rows)
    return FINE


def _runs_compared(args: argparse.Namespace, path: str) -> int:
    from gambrel.cost import documents
    from gambrel.measure import against, record
    from gambrel.show import measured

    one, other = (record.find(name, path) for name in args.ids)
    difference = against.against(one, other, args.force)
    rows = documents.difference_rows(difference)
    if not printed(args, lambda: documents.difference_dict(path, difference), lambda: measured.difference_tables(rows)):
        measured.print_difference(difference, rows)
    return FINE


# profile ---------------------------------------------------------------------------------------


#: Options of a live profile and what they are where not given; a trace has its own.
LIVE: dict[str, Any] = {
    "phase": ("prefill", "decode"),
    "batch": 1,
    "context": 512,
    "prompt": 512,
    "dtype": None,
    "layers": None,
    "steps": 3,
    "on": None,
    "threads": None,
    "keep": None,
}


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel profile`."""
    told = "run it here; with --trace, draw what it should reach behind what was measured"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=told)
    parser.set_defaults(weight_dtype=None, kv_dtype=None, compute_dtype=None)
    group = parser.add_argument_group("a live profile (random weights, eager; needs gambrel[torch])")
    group.add_argument("--phase", type=_names, metavar="P,…", help="(prefill,decode)")
    group.add_argument("--batch", type=WHOLE, metavar="N", help="sequences (1)")
    group.add_argument("--context", type=WHOLE, metavar="S", help="keys a decode step attends (512)")
    group.add_argument("--prompt", type=WHOLE, metavar="S", help="tokens of a prefill (512)")
    group.add_argument("--dtype", metavar="D", help="fp32 bf16 fp16 (what the config says)")
    group.add_argument("--layers", type=WHOLE, metavar="N", help="the first N layers alone, for a small machine")
    group.add_argument("--steps", type=WHOLE, metavar="N", help="decode steps in the trace (3)")
    group.add_argument("--on", metavar="WHERE", help="cpu or cuda:0 (the first CUDA device, else cpu)")
    group.add_argument("--threads", type=WHOLE, metavar="N", help="of the processor (as PyTorch has)")
    group.add_argument("--keep", metavar="FILE", help="where the trace stays, .json or .json.gz (nowhere)")
    group = parser.add_argument_group("a trace")
    group.add_argument("--trace", metavar="FILE", help="Kineto or Chrome JSON, plain or gzip")
    group.add_argument("--eager", metavar="FILE", help="the same run without graphs, to tell layers of graph replays")
    group.add_argument("--like", default="", metavar="TYPE", help="read MODEL's config as this known model type")
    add_device(parser, required=False)
    told = "the chart, .svg .png .html .json (needs --device)"
    parser.add_argument("-o", "--output", "--chart", metavar="FILE", help=told)
    add_output(parser, explain=False)


def run_profile(args: argparse.Namespace) -> int:
    """Run `gambrel profile`; returns the exit status."""
    from gambrel.measure.profile import profile_dict
    from gambrel.show import profile as shown

    if not args.trace and not args.model:
        raise GambrelError("nothing to profile: give MODEL, to run it here, or --trace FILE, of a run made elsewhere")
    if args.output and not args.device:
        raise GambrelError("the chart (-o) needs --device, whose roof it is drawn under")
    found, predicted = _read_profile(args) if args.trace else _live_profile(args)
    if args.output:
        _profile_chart(args, found, predicted)
    if not printed(args, lambda: profile_dict(found), lambda: shown.tables(found)):
        shown.print_profile(found)
    return FINE


def _read_profile(args: argparse.Namespace) -> tuple[Profile, tuple[Point, ...]]:
    """A trace's profile, and what MODEL should reach at its shapes."""
    from gambrel.cost.predicted import predicted_points
    from gambrel.measure.profile import profile

    given = [f"--{name}" for name in LIVE if getattr(args, name) is not None]
    if given:
        raise GambrelError(f"--trace is of a run that was made; leave out {', '.join(given)}, or --trace to run MODEL")
    if args.model and not (args.output and args.device):
        raise GambrelError(
            "MODEL and --trace: with a trace MODEL is not run, but drawn behind it in the chart, which needs -o FILE "
            "and --device; leave out --trace to run it here"
        )
    device = given_device(args) if args.device else None
    found = profile(args.trace, device, args.eager or "")
    if not args.model or device is None:
        return found, ()
    return found, predicted_points(given_model(args), device, found.queries, args.tp)


def _live_profile(args: argparse.Namespace) -> tuple[Profile, tuple[Point, ...]]:
    """A profile made here, and what MODEL should reach at the same shapes."""
    from gambrel.cost.predicted import predicted_points
    from gambrel.measure import clock, live
    from gambrel.model.sources import find_config

    taken = [f"--{name}" for name in ("eager", "like") if getattr(args, name)]
    if taken or args.tp != 1:
        told = f"{', '.join(taken)}: only with --trace" if taken else f"--tp {args.tp}: MODEL runs on one device"
        raise GambrelError(f"{told}; leave it out to run MODEL here")
    chosen = {name: default for name, default in LIVE.items() if getattr(args, name) is None}
    rest = {"engine": ("torch",), "quick": True, "repeats": 1, "counters": False}
    args = argparse.Namespace(**{**vars(args), **chosen, **rest})
    device = given_device(args) if args.device else None
    live.hush()
    source = find_config(args.model)
    setup, _ = _run_setup(args, source, None)
    predicted: tuple[Point, ...] = ()
    if args.output and device is not None:
        shapes = {phase: setup.shape(phase) for phase in setup.phases}
        predicted = predicted_points(_model_as_run(source, args.layers, setup.dtype), device, shapes)
    progress = clock.Progress()
    try:
        found = live.profile_live(setup, device, args.keep or "", args.steps, progress.say)
    finally:
        progress.done()
    if args.keep:
        print(f"wrote {args.keep}", file=sys.stderr)
    return found, predicted


def _profile_chart(args: argparse.Namespace, found: Profile, predicted: tuple[Point, ...]) -> None:
    from gambrel.measure.profile import profile_plot
    from gambrel.show.chart import roofline_chart

    roofline_chart(profile_plot(found, predicted)).save(args.output)
    print(f"wrote {args.output}", file=sys.stderr)


# probe -----------------------------------------------------------------------------------------


def add_probe(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel probe`."""
    parser.add_argument("url", metavar="URL", help="base of an OpenAI-compatible API, such as http://localhost:8000/v1")
    group = parser.add_argument_group("workload")
    group.add_argument("--concurrency", type=WHOLES, default=(1,), metavar="N,…", help="clients, level by level (1)")
    group.add_argument("--input", type=WHOLE, default=1024, metavar="S", help="prompt tokens (1024)")
    group.add_argument("--output", type=WHOLE, default=128, metavar="N", help="tokens to generate (128)")
    group.add_argument("--requests", type=WHOLE, metavar="R", help="of each level (twice the clients, at least 8)")
    group.add_argument("--shared-prefix", action="store_true", help="prompts differ in their last words alone")
    group.add_argument("--seed", type=typed(read_context), metavar="K", help="of the prompts (a new one, told)")
    group = parser.add_argument_group("server (a key is taken from OPENAI_API_KEY)")
    group.add_argument("--endpoint", choices=("auto", "completions", "chat"), default="auto", help="(auto)")
    group.add_argument("--served-model", default="", metavar="NAME", help="the server's name for it (the first listed)")
    group.add_argument("--max-time", type=typed(_seconds), default=300.0, metavar="TIME", help="of everything (300s)")
    group.add_argument("--read-timeout", type=typed(_seconds), default=60.0, metavar="TIME", help="no byte (60s)")
    group.add_argument("--file", metavar="FILE", help="of records (runs.jsonl in $GAMBREL_DATA or your data folder)")
    group.add_argument("--no-record", action="store_true", help="leave the file of records as it is")
    group = parser.add_argument_group("compare with the bound of")
    group.add_argument("--model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    add_precision(parser)
    add_device(parser, required=False)
    add_output(parser, explain=False)


def run_probe(args: argparse.Namespace) -> int:
    """Run `gambrel probe`; returns the exit status."""
    from gambrel.cost.compare import BelowBound
    from gambrel.cost.documents import probe_dict
    from gambrel.cost.served import Served, served_bounds
    from gambrel.measure import endpoint, probe, record
    from gambrel.show import probe as shown

    if bool(args.model) != bool(args.device):
        raise GambrelError("a bound needs both --model and --device")
    known = (given_model(args), given_device(args)) if args.model else None
    plan = probe.Plan(
        args.url,
        args.concurrency,
        args.input,
        args.output,
        args.requests,
        args.max_time,
        args.endpoint,
        args.served_model,
        args.shared_prefix,
        args.seed,
        endpoint.Limits(read_s=args.read_timeout),
    )
    if known:  # what cannot be compared is told before anything is measured
        served_bounds(*known, args.tp, Served(1, args.input, 0, args.output, None, None))
    result = probe.probe(plan, lambda line: print(line, file=sys.stderr))
    bounds = [_probe_bounds(level, plan, *known, args.tp) if known else None for level in result.levels]
    if not args.no_record:
        about = {"model": known[0].name if known else result.model, "device": known[1].id if known else None}
        for one in probe.measurements(result, {**about, "tp": args.tp, "dtype": args.weight_dtype}):
            print(f"recorded {one.id}, {one.name}, in {record.append(one, args.file)}", file=sys.stderr)
    document = probe_dict(probe.to_dict(result), known, bounds)
    if not printed(args, lambda: document, lambda: shown.probe_tables(document)):
        shown.print_probe(document)
    below = [error for bound in bounds if bound for error in bound.errors]
    if below:
        sys.stdout.flush()
        raise BelowBound(below[0])
    return FINE


def _probe_bounds(level: Any, plan: Any, model: Model, device: Device, tp: int) -> Any:
    """The bounds of a level; prompts that the server need not compute whole have none to be held against."""
    from gambrel.cost.served import Served, served_bounds
    from gambrel.measure.latency import CACHED_SHARE

    figures = level.figures
    if not figures.ok:
        return None
    cached = plan.shared_prefix or figures.cached_share > CACHED_SHARE
    seen = Served(
        level.concurrency,
        round(figures.prompt_tokens),
        -(-figures.cached_tokens // figures.ok),
        round(figures.output_tokens),
        figures.tpot_p50_s,
        None if cached else figures.ttft_p50_s,
    )
    return served_bounds(model, device, tp, seen)
