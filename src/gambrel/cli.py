"""The command line: arguments in, a report out.

argparse, because it is in the standard library and starts three times faster than the alternatives; a report has a
start-up budget.
"""

from __future__ import annotations

import argparse
import os
import sys

from gambrel import units
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from gambrel.api import Model
    from gambrel.cost.report import Options, Report
    from gambrel.measure.profile import Profile
    from gambrel.plots import Point
    from gambrel.show.tables import Table
    from gambrel.types import Device, Op, Step

FINE, NO, WRONG = 0, 1, 2
FORMATS = ("text", "json", "csv", "markdown")


@frozen
class Command:
    """A subcommand: one line of help, an example, what adds its options, what runs it (returns the exit status)."""

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 fine, 1 the answer is no (--strict), 2 wrong input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        args = _command_parser(name).parse_args(rest)
        return _guarded(COMMANDS[name].run, args)
    parser = _top_parser()
    parser.parse_args(arguments)
    parser.print_help()
    return FINE


def _guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    try:
        status = run(args)
        sys.stdout.flush()
        return status
    except GambrelError as error:
        print(f"gambrel: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt:
        return 130


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wide option columns, text kept as written; the width is found without importing shutil."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 100
        super().__init__(prog, max_help_position=32, width=min(columns, 110) - 2)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the options are a --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message}; {self.prog} --help shows what is accepted\n")


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<11}{command.help}" for name, command in COMMANDS.items())
    parser = _Parser(
        "gambrel",
        usage="gambrel COMMAND …",
        formatter_class=_Help,
        description="How fast can this language model possibly run on this device, what limits it, and does it fit?",
        epilog=f"commands:\n{commands}\n\nexample:\n  {COMMANDS['report'].example}\n\n"
        "gambrel COMMAND --help shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), metavar="COMMAND", help="one of those below")
    return parser


def _version() -> str:
    from gambrel import __version__

    return f"gambrel {__version__}"


def _command_parser(name: str) -> argparse.ArgumentParser:
    command = COMMANDS[name]
    parser = _Parser(
        f"gambrel {name}",
        formatter_class=_Help,
        description=command.help,
        epilog=f"example:\n  {command.example}",
    )
    command.add(parser)
    return parser


# Argument types -------------------------------------------------------------------------------


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except units.UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _whole(text: str) -> int:
    value = units.parse(text, "token")
    if value < 1 or value != int(value) or value > 10**12:
        raise units.UnitError(f"{text!r} is not a whole number from 1; write for example 8, 8192 or 8K")
    return int(value)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(",") if part.strip()) or (_whole(text),)


def _context(text: str) -> int:
    return 0 if text.strip() == "0" else _whole(text)


def _contexts(text: str) -> tuple[int, ...]:
    return tuple(_context(part) for part in text.split(","))


def _share(text: str) -> float:
    return units.parse(text, "1")


def _bytes(text: str) -> float:
    return units.parse(text, "byte")


WHOLE, WHOLES, CONTEXTS, SHARE, BYTES = map(_typed, (_whole, _wholes, _contexts, _share, _bytes))


# Shared options -------------------------------------------------------------------------------


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    _add_precision(parser)


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    group = parser.add_argument_group("precision (by default what the config says)")
    group.add_argument("--weight-dtype", metavar="D", help="fp32 bf16 fp16 fp8 int8 int4 mxfp4 nvfp4 nf4")
    group.add_argument("--kv-dtype", metavar="D", help="fp32 bf16 fp16 fp8 int8 int4")
    group.add_argument("--compute-dtype", metavar="D", help="what the matrix units multiply; picks the peak")


def _add_device(parser: argparse.ArgumentParser, required: bool = True) -> None:
    group = parser.add_argument_group("device")
    group.add_argument("--device", required=required, metavar="DEVICE", help="see gambrel devices, or your own .toml")
    group.add_argument("--memory", metavar="SIZE", help="instead of the device's, such as 80GB or 64GiB")
    group.add_argument("--bandwidth", metavar="RATE", help="instead of the device's, such as 3.0TB/s")
    group.add_argument("--peak", action="append", default=[], metavar="D=RATE", help="such as bf16=800TFLOP/s")
    group.add_argument("--tp", type=WHOLE, default=1, metavar="N", help="tensor parallel over N devices")
    group.add_argument("--utilization", type=SHARE, default=0.9, metavar="X", help="share of memory used (0.9)")
    group.add_argument("--reserve", type=BYTES, metavar="SIZE", help="kept for activations (1.24GB)")


def _add_ceilings(parser: argparse.ArgumentParser) -> None:
    told = "a file of gambrel calibrate: the bound at measured ceilings beside the datasheet's"
    parser.add_argument("--ceilings", metavar="FILE", help=told)


def _add_beside(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("beside the text")
    group.add_argument("--source", type=WHOLE, metavar="S", help="tokens of an encoder's input (as the context)")
    group.add_argument("--media", type=WHOLE, metavar="P", help="patches or frames of each prompt through the tower")


def _add_output(parser: argparse.ArgumentParser, explain: bool = True) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=FORMATS, default="text", help="text (default), json, csv, markdown")
    if explain:
        group.add_argument("--explain", metavar="KEY", help="the formula of one number with the numbers put in")


def _add_workload(parser: argparse.ArgumentParser, batches: str, contexts: str = "8192") -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--batch", type=WHOLES, default=_wholes(batches), metavar="N,…", help=f"sequences ({batches})")
    group.add_argument(
        "--context", type=CONTEXTS, default=_contexts(contexts), metavar="S,…", help=f"keys attended ({contexts})"
    )


# Loading and printing -------------------------------------------------------------------------


def _load_model(args: argparse.Namespace) -> Model:
    from gambrel.api import load_model

    model = load_model(args.model, args.weight_dtype, args.kv_dtype, args.compute_dtype, args.like)
    unread = model.reading.unread
    if unread:
        print(
            f"warning: config keys that gambrel does not know, which may matter: {', '.join(unread)}", file=sys.stderr
        )
    return model


def _load_device(args: argparse.Namespace, name: str | None = None) -> Device:
    from gambrel.hardware.catalogue import DeviceOverrides, load_device

    if name is not None:
        return load_device(name)
    return load_device(args.device, DeviceOverrides(args.memory, args.bandwidth, tuple(args.peak)))


def _options(args: argparse.Namespace) -> Options:
    from gambrel.cost.report import Options

    given = {
        "batches": getattr(args, "batch", None),
        "contexts": getattr(args, "context", None),
        "prefills": getattr(args, "prefill", None),
        "weights": getattr(args, "weights", None),
        "logits": getattr(args, "logits", None),
        "efficiency": getattr(args, "efficiency", None),
        "source": getattr(args, "source", None),
        "media": getattr(args, "media", None),
        "reserve_bytes": args.reserve,
        "tp": args.tp,
        "utilization": args.utilization,
    }
    return Options(**{key: value for key, value in given.items() if value is not None})


def _print_json(document: Any) -> None:
    import json

    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _print_tables(args: argparse.Namespace, tables: Sequence[Table]) -> None:
    from gambrel.show import tables as plain

    print((plain.to_csv if args.format == "csv" else plain.to_markdown)(tables))


def _show(args: argparse.Namespace, document: Callable[[], Any], tables: Callable[[], Sequence[Table]]) -> bool:
    """Print what --format asks for; False where it asks for text, which each command prints itself."""
    if args.format == "json":
        _print_json(document())
    elif args.format in ("csv", "markdown"):
        _print_tables(args, tables())
    else:
        return False
    return True


def _explained(args: argparse.Namespace, report: Callable[[], Report]) -> bool:
    """Print the explanation that --explain asks for."""
    if not args.explain:
        return False
    from gambrel.cost.explain import explain

    explanation = explain(args.explain, report())
    if args.format == "json":
        from gambrel.cost.documents import explain_dict

        _print_json(explain_dict(explanation))
    else:
        print(explanation)
    return True


def _plain_report(args: argparse.Namespace, model: Model, batch: int, context: int) -> Report:
    """The report behind an explanation, where the command itself makes none."""
    from gambrel.cost.report import build_report

    if not args.device:
        raise GambrelError("--explain needs --device")
    options = _options(argparse.Namespace(**{**vars(args), "batch": (batch,), "context": (context,), "prefill": None}))
    return build_report(model, _load_device(args), options)


# report ---------------------------------------------------------------------------------------


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    _add_workload(parser, "1,8,64,256")
    group = parser.add_argument_group("counting")
    group.add_argument("--prefill", type=WHOLES, metavar="S,…", help="prompt lengths (8192)")
    group.add_argument("--weights", choices=("streamed", "resident"), help="what a step reads (streamed)")
    group.add_argument("--logits", choices=("last", "all"), help="prefill rows through the output head (last)")
    group.add_argument("--efficiency", type=SHARE, metavar="X", help="share of peak for estimates (0.6)")
    group.add_argument("--strict", action="store_true", help="exit 1 where a row does not fit or is beyond the context")
    _add_ceilings(parser)
    _add_beside(parser)
    _add_output(parser)


def _report(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import report_dict
    from gambrel.cost.report import build_report

    report = build_report(_load_model(args), _load_device(args), _options(args))
    if args.ceilings:
        from gambrel.cost.report import beside_ceilings

        report = beside_ceilings(report, _load_device(args, args.ceilings))
    possible = all(row.possible for row in report.decode) and all(row.possible for row in report.prefill)
    status = NO if args.strict and not possible else FINE
    if _explained(args, lambda: report):
        return status

    def tables() -> Sequence[Table]:
        from gambrel.show.report import report_tables

        return report_tables(report)

    if not _show(args, lambda: report_dict(report), tables):
        from gambrel.show.report import print_report

        print_report(report)
    return status


# params, ops ----------------------------------------------------------------------------------


def _add_params(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--context", type=WHOLE, default=8192, metavar="S", help="for the cache of one sequence (8192)")
    group = parser.add_argument_group("checkpoint")
    told = "compare with a folder, .safetensors or .gguf file; alone: with MODEL's own; hub: with the hub's headers"
    group.add_argument("--checkpoint", nargs="?", const="", metavar="PATH", help=told)
    group.add_argument("--strict", action="store_true", help="exit 1 where the checkpoint disagrees")
    _add_output(parser)


def _params(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import params_dict
    from gambrel.show import inventory

    model = _load_model(args)
    if args.checkpoint is not None:
        return _checkpoint(args, model)
    if args.strict:
        raise GambrelError("--strict of params needs --checkpoint")

    def report() -> Report:
        from gambrel.cost.report import Options, build_report

        # Explanations of a model alone need no device; this one has a peak for every dtype.
        device = _load_device(args, "b200")
        return build_report(model, device, Options(contexts=(args.context,)))

    if _explained(args, report):
        return FINE
    if not _show(args, lambda: params_dict(model, args.context), lambda: inventory.params_tables(model)):
        inventory.print_params(model, args.context)
    return FINE


def _checkpoint(args: argparse.Namespace, model: Model) -> int:
    from gambrel.cost.documents import checkpoint_dict
    from gambrel.model.agreement import compare_checkpoint
    from gambrel.model.checkpoint import checkpoint_of
    from gambrel.show import checkpoint as shown

    if args.explain:
        raise GambrelError("--explain and --checkpoint do not go together")
    found = checkpoint_of(args.model, args.checkpoint, model.config)
    agreement = compare_checkpoint(model, found)
    if not _show(args, lambda: checkpoint_dict(model, found, agreement), lambda: shown.agreement_tables(agreement)):
        shown.print_agreement(model, agreement, found)
    return NO if args.strict and not agreement.agrees else FINE


def _add_ops(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser, required=False)
    group = parser.add_argument_group("workload (a decode step unless --prefill or --chunk)")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="N", help="sequences (1)")
    group.add_argument("--context", type=_typed(_context), default=8192, metavar="S", help="keys attended (8192)")
    group.add_argument("--prefill", type=WHOLE, metavar="S", help="a fresh prompt of S tokens instead")
    group.add_argument("--chunk", type=WHOLE, metavar="Q", help="the last Q tokens of a prompt of --context tokens")
    group.add_argument("--every-key", action="store_true", help="count masked scores too")
    group.add_argument("--logits", choices=("last", "all"), default="last", help="rows through the head (last)")
    group.add_argument("--trace", action="store_true", help="trace the module instead of reading a table")
    _add_beside(parser)
    _add_output(parser)


def _ops(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import ops_dict
    from gambrel.cost.operators import op_rows
    from gambrel.show import inventory

    device = _load_device(args) if args.device else None
    if args.trace:
        name, step, ops = _traced_ops(args)
    else:
        model = _load_model(args)
        if _explained(args, lambda: _plain_report(args, model, args.batch, args.context)):
            return FINE
        name, step, ops = model.name, *_table_ops(args, model, device)
    rows = op_rows(ops, device)
    table = inventory.ops_table(rows, device)
    if not _show(args, lambda: ops_dict(name, device, step, rows), lambda: [table]):
        from gambrel.show.text import Page

        Page().tables([table])
    return FINE


def _table_ops(args: argparse.Namespace, model: Model, device: Device | None) -> tuple[Step, list[Op]]:
    """The step and its operators as the tables have them."""
    from gambrel.cost.parallel import shard
    from gambrel.cost.report import step_ops
    from gambrel.model.arch import check_tp

    check_tp(model.arch, args.tp)
    step = _step(args, model)
    ops = step_ops(model, device, step, args.tp) if device else shard(model.ops(step), args.tp)
    return step, ops


def _traced_ops(args: argparse.Namespace) -> tuple[str, Step, list[Op]]:
    """The step and its operators as the module runs them: a prefill, or a decode step after one."""
    from gambrel.model.sources import find_config
    from gambrel.model.trace import trace
    from gambrel.types import Step

    if args.chunk or args.tp > 1 or args.media or args.source:
        raise GambrelError(
            "--trace runs a prefill or a decode step on one device; leave out --chunk, --tp and the rest"
        )
    found = find_config(args.model)
    prompt = args.prefill or max(args.context - 1, 1)
    prefill, decode = trace(found.config, args.batch, prompt)
    traced = prefill if args.prefill else decode
    step = Step(args.batch, traced.new_tokens, traced.context_tokens, causal=False, logits="all")
    return found.name, step, list(traced.ops)


def _step(args: argparse.Namespace, model: Model) -> Step:
    """The forward pass that the options of `ops` describe."""
    from gambrel.cost.workload import Beside, check_beside, decode_step, prefill_step
    from gambrel.types import Step

    beside = Beside(args.source, args.media or 0)
    check_beside(model, beside)
    if args.prefill:
        return prefill_step(model.arch, args.batch, args.prefill, not args.every_key, args.logits, beside)
    if args.chunk:
        return Step(args.batch, args.chunk, args.context, not args.every_key, args.logits)
    return decode_step(model.arch, args.batch, args.context, beside)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="N", help="sequences (1)")
    group.add_argument("--prefill", type=WHOLE, default=512, metavar="S", help="prompt, then one decode step (512)")
    _add_output(parser, explain=False)


def _verify(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import verify_dict
    from gambrel.cost.verify import verify
    from gambrel.show import inventory

    result = verify(_load_model(args), args.batch, args.prefill)
    if not _show(args, lambda: verify_dict(result), lambda: [inventory.verify_table(result)]):
        inventory.print_verification(result)
    return FINE if result.equal else NO


# roofline -------------------------------------------------------------------------------------


def _add_roofline(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    _add_workload(parser, "1,8,64")
    parser.add_argument("--prefill", type=WHOLE, default=8192, metavar="S", help="prompt length (8192)")
    parser.add_argument("--versus", action="append", default=[], metavar="DEVICE", help="another roof, in grey")
    parser.add_argument("-o", "--output", metavar="FILE", default="roofline.svg", help=".svg .png .html .json")
    _add_output(parser)


def _roofline(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import plot_dict
    from gambrel.cost.points import Marks, roofline_plot
    from gambrel.show import inventory

    versus = tuple(_load_device(args, name) for name in args.versus)
    marks = Marks(args.batch, args.context[0], args.prefill, versus, args.tp)
    model = _load_model(args)
    if _explained(args, lambda: _plain_report(args, model, args.batch[0], args.context[0])):
        return FINE
    plot = roofline_plot(model, _load_device(args), marks)
    from gambrel.show.chart import roofline_chart

    roofline_chart(plot).save(args.output)
    print(f"wrote {args.output}", file=sys.stderr)
    if not _show(args, lambda: plot_dict(plot), lambda: [inventory.plot_table(plot)]):
        from gambrel.show.text import Page

        Page().tables([inventory.plot_table(plot)])
    return FINE


# crossover, fit, request ----------------------------------------------------------------------


def _add_crossover(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    parser.add_argument("--context", type=WHOLES, default=(8192,), metavar="S,…", help="keys attended (8192)")
    _add_output(parser)


def _crossover(args: argparse.Namespace) -> int:
    from gambrel.cost.crossover import context_limit
    from gambrel.cost.documents import crossover_dict
    from gambrel.cost.report import build_report
    from gambrel.show import answers

    model, device = _load_model(args), _load_device(args)
    options = [_options(argparse.Namespace(**{**vars(args), "context": (s,), "batch": (1,)})) for s in args.context]
    reports = [build_report(model, device, each) for each in options]
    if _explained(args, lambda: reports[0]):
        return FINE
    if not _show(args, lambda: crossover_dict(reports), lambda: [answers.crossover_table(reports)]):
        answers.print_crossover(reports, context_limit(model, device, args.tp))
    return FINE


def _add_fit(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    _add_workload(parser, "1,8,64", "1024,8192,32768,131072")
    parser.add_argument("--kv-budget", type=BYTES, metavar="SIZE", help="KV memory instead of what the device leaves")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every batch fits at every context")
    _add_output(parser)


def _fit(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from gambrel.cost.capacity import Fit
    from gambrel.cost.documents import fit_dict
    from gambrel.cost.report import build_report, capacity
    from gambrel.model.arch import check_tp, kv_bytes_per_token
    from gambrel.show import answers

    model, device, options = _load_model(args), _load_device(args), _options(args)
    check_tp(model.arch, args.tp)
    room = capacity(model, device, options)
    if args.kv_budget is not None:
        room = replace(room, stated_budget_bytes=args.kv_budget)
    if _explained(args, lambda: replace(build_report(model, device, options), capacity=room)):
        return FINE
    fit = Fit(
        model.name,
        device.id,
        device.name,
        room,
        args.batch,
        args.context,
        model.arch.max_context,
        kv_bytes_per_token(model.caches, args.tp),
        model.reading.notes,
    )
    if not _show(args, lambda: fit_dict(fit), lambda: answers.fit_tables(fit)):
        answers.print_fit(fit)
    return NO if args.strict and not fit.all_fit else FINE


def _add_request(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--prompt", type=WHOLE, default=8192, metavar="S", help="prompt tokens (8192)")
    group.add_argument("--new-tokens", type=WHOLE, default=512, metavar="N", help="tokens to generate (512)")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="B", help="requests served together (1)")
    group.add_argument("--serve-batch", type=WHOLE, default=64, metavar="B", help="decode batch of a server (64)")
    group.add_argument("--chunk", type=WHOLE, default=1024, metavar="Q", help="tokens of a prefill chunk (1024)")
    group.add_argument("--weights", choices=("streamed", "resident"), default="streamed", help="(streamed)")
    group.add_argument("--efficiency", type=SHARE, default=0.6, metavar="X", help="share of peak in prefill (0.6)")
    _add_output(parser)


def _request(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import request_dict
    from gambrel.cost.report import capacity
    from gambrel.cost.request import Rig, request, serving
    from gambrel.model.arch import check_tp
    from gambrel.show import answers

    model = _load_model(args)
    check_tp(model.arch, args.tp)
    if _explained(args, lambda: _plain_report(args, model, args.batch, args.prompt)):
        return FINE
    rig = Rig(model, _load_device(args), args.tp, args.weights, args.efficiency)
    room = capacity(model, rig.device, _options(argparse.Namespace(**{**vars(args), "batch": None})))
    one = request(rig, args.prompt, args.new_tokens, args.batch)
    gains = serving(rig, args.prompt, args.serve_batch, min(args.chunk, args.prompt))
    if not _show(args, lambda: request_dict(rig, one, gains, room), lambda: answers.request_tables(one, gains)):
        answers.print_request(rig, one, gains, room)
    return FINE


# compare --------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    return units.parse(text, "s")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_device(parser)
    group = parser.add_argument_group("workload (a decode step unless --prefill)")
    group.add_argument("--batch", type=WHOLE, metavar="N", help="sequences (1, or as a --file tells)")
    group.add_argument("--context", type=_typed(_context), default=0, metavar="S", help="keys attended (0: no KV)")
    group.add_argument("--prefill", type=WHOLE, metavar="S", help="a fresh prompt of S tokens instead")
    group = parser.add_argument_group("measured")
    group.add_argument("--measured", type=_typed(_seconds), metavar="TIME", help="of one step, such as 3.43ms")
    group.add_argument("--run", metavar="ID", help='of gambrel run, with its workload and dtype; "last" is the newest')
    group.add_argument("--file", metavar="FILE", help="a result file of another tool, or the start-up log of an engine")
    group.add_argument("--new-tokens", type=WHOLE, metavar="N", help="of each request in a --file that does not say")
    group.add_argument("--require", type=SHARE, metavar="X", help="exit 1 below this fraction of the possible speed")
    _add_ceilings(parser)
    _add_output(parser)


def _compare(args: argparse.Namespace) -> int:
    from gambrel.cost.compare import Conditions, compare
    from gambrel.cost.documents import compare_dict
    from gambrel.cost.workload import decode_step, prefill_step
    from gambrel.model.arch import check_tp
    from gambrel.show import answers

    if args.file:
        return _compare_file(args)
    args.batch = args.batch or 1
    run = _stored_run(args) if args.run else None
    model, device = run[0] if run else _load_model(args), _load_device(args)
    check_tp(model.arch, args.tp)
    if _explained(args, lambda: _plain_report(args, model, args.batch, args.context)):
        return FINE
    if args.measured is None and run is None:
        raise GambrelError("nothing measured: give --measured TIME, --run ID of gambrel run, or --file FILE")
    plain = decode_step(model.arch, args.batch, args.context)
    step = prefill_step(model.arch, args.batch, args.prefill) if args.prefill else plain
    _, step, measured_s, launch_s = run or (model, step, args.measured, None)
    known = Conditions(launch_s, ceilings=_load_device(args, args.ceilings) if args.ceilings else None)
    result = compare(model, device, step, measured_s, args.tp, known)
    if not _show(args, lambda: compare_dict(result), lambda: answers.compare_tables(result)):
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
    model, device = _load_model(args), _load_device(args)
    check_tp(model.arch, args.tp)
    room = capacity(model, device, _options(argparse.Namespace(**{**vars(args), "batch": None, "prefill": None})))
    setup = Setup(model, device, room, args.tp, args.batch, args.context or None, args.prefill, args.new_tokens)
    if isinstance(told, Receipt):
        lines = receipt_lines(setup, told)
        if not _show(args, lambda: receipt_dict(setup, lines, told), lambda: others.receipt_tables(lines)):
            others.print_receipt(setup, lines, told)
        return FINE
    rows = run_rows(setup, told)
    if not _show(args, lambda: results_dict(setup, rows, told), lambda: others.result_tables(rows, told)):
        others.print_results(setup, rows, told)
    fractions = [row.fraction for row in rows if row.fraction is not None]
    return NO if args.require is not None and any(fraction < args.require for fraction in fractions) else FINE


def _stored_run(args: argparse.Namespace) -> tuple[Model, Step, float, float | None]:
    """The model and step of a stored run, its median, and what its launches cost where a graph of it is stored."""
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
    return model, step, found.median_s, run.launch_s(found, stored)


# run ------------------------------------------------------------------------------------------


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _add_run(parser: argparse.ArgumentParser) -> None:
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
    _add_output(parser, explain=False)


def _run(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import execution_dict
    from gambrel.measure import clock, record, run
    from gambrel.model.sources import find_config
    from gambrel.show import execution

    hardware = _load_device(args, args.device) if args.device else None
    setup, bounds = _run_setup(args, find_config(args.model), hardware)
    path, progress = args.file or record.store_path(), clock.Progress()
    try:
        records = run.run(setup, lambda made: record.append(made, path), progress.say)
    finally:
        progress.done()
    ceilings = hardware is not None and "calibration" in hardware.sources
    done = run.Execution(records, path, run.notes(records), ceilings)
    document = execution_dict(done, bounds, hardware)
    if args.counters:
        for row, made in zip(document["runs"], records, strict=True):
            row["counters"] = run.counted(made, bounds.get(row["phase"]))
    if not _show(args, lambda: document, lambda: execution.execution_tables(document)):
        execution.print_execution(document)
    below = [row["id"] for row in document["runs"] if (row["fraction"] or 0) > 1 and not done.ceilings]
    for each in below:
        print(f"gambrel: {each} is below its bound: an error, not a good result", file=sys.stderr)
    return NO if below else FINE


def _run_setup(args: argparse.Namespace, found: Any, hardware: Device | None) -> tuple[Any, dict[str, Any]]:
    """What to run, and the bound on each of its phases where there is a device."""
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
    if hardware is None:
        return setup, {}
    model = _model_as_run(found, args.layers, setup.dtype)
    steps = {phase: _step_as_run(model, phase, setup.shape(phase)) for phase in setup.phases}
    return setup, {phase: model.bound(step, hardware) for phase, step in steps.items()}


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


# calibrate, runs ------------------------------------------------------------------------------


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="DEVICE", help="cpu or cuda:0 (the first CUDA device, else cpu)")
    parser.add_argument("--threads", type=WHOLE, metavar="N", help="all threads of the processor (as PyTorch has)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions, to try it out")
    parser.add_argument("--datasheet", metavar="DEVICE", help="show what share of this one's figures is reached")
    group = parser.add_argument_group("device file")
    group.add_argument("-o", "--output", metavar="FILE", default="./this-machine.toml", help="(./this-machine.toml)")
    group.add_argument("--force", action="store_true", help="replace it where it exists")
    _add_output(parser, explain=False)


def _calibrate(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from gambrel.cost.documents import calibrate_dict
    from gambrel.measure import calibrate as measure
    from gambrel.measure.backends import backend
    from gambrel.show import measured

    measure.check_free(args.output, args.force)
    datasheet = _load_device(args, args.datasheet) if args.datasheet else None
    chosen = backend(args.device, args.threads)
    found = measure.calibrate(chosen, measure.effort(chosen.device, args.quick))
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    measure.save(found, args.output, date, datasheet.id if datasheet else None, args.force)
    print(f"wrote {args.output}", file=sys.stderr)
    document = calibrate_dict(found, args.output, datasheet)
    if not _show(args, lambda: document, lambda: measured.calibrate_tables(document)):
        measured.print_calibration(found, measure.sentence(found), document)
    return FINE


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help='one: show it; two: compare them; "last" is the newest')
    parser.add_argument("--file", metavar="FILE", help="of records (runs.jsonl in $GAMBREL_DATA or your data folder)")
    parser.add_argument("--force", action="store_true", help="compare what is not comparable")
    _add_output(parser, explain=False)


def _runs(args: argparse.Namespace) -> int:
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
        shown = _show(args, lambda: documents.runs_dict(path, [row], unreadable), lambda: measured.run_tables(row))
        if not shown:
            measured.print_run(run, row)
        return FINE
    rows = [documents.run_row(run) for run in runs]
    if not _show(args, lambda: documents.runs_dict(path, rows, unreadable), lambda: measured.runs_tables(rows)):
        measured.print_runs(rows)
    return FINE


def _runs_compared(args: argparse.Namespace, path: str) -> int:
    from gambrel.cost import documents
    from gambrel.measure import against, record
    from gambrel.show import measured

    one, other = (record.find(name, path) for name in args.ids)
    difference = against.against(one, other, args.force)
    rows = documents.difference_rows(difference)
    if not _show(args, lambda: documents.difference_dict(path, difference), lambda: measured.difference_tables(rows)):
        measured.print_difference(difference, rows)
    return FINE


# profile --------------------------------------------------------------------------------------


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="draw what it should reach behind what was measured")
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    parser.set_defaults(weight_dtype=None, kv_dtype=None, compute_dtype=None)
    group = parser.add_argument_group("trace")
    group.add_argument("--trace", metavar="FILE", help="Kineto or Chrome JSON, plain or gzip")
    group.add_argument("--eager", metavar="FILE", help="the same run without graphs, to tell layers of graph replays")
    _add_device(parser, required=False)
    parser.add_argument("-o", "--output", metavar="FILE", help="the chart, .svg .png .html .json (needs --device)")
    _add_output(parser, explain=False)


def _profile(args: argparse.Namespace) -> int:
    from gambrel.measure.profile import profile, profile_dict
    from gambrel.show import profile as shown

    if not args.trace:
        raise GambrelError("nothing to profile: give --trace FILE (profiling a live model is not there yet)")
    if (args.output or args.model) and not args.device:
        raise GambrelError(
            f"{'the chart (-o)' if args.output else 'MODEL'} needs --device, whose roof it is drawn under"
        )
    if args.model and not args.output:
        raise GambrelError("MODEL is drawn in the chart, behind what was measured: give -o FILE too")
    found = profile(args.trace, _load_device(args) if args.device else None, args.eager or "")
    if args.output:
        _profile_chart(args, found)
    if not _show(args, lambda: profile_dict(found), lambda: shown.tables(found)):
        shown.print_profile(found)
    return FINE


def _profile_chart(args: argparse.Namespace, found: Profile) -> None:
    from gambrel.cost.predicted import predicted_points
    from gambrel.measure.profile import profile_plot
    from gambrel.show.chart import roofline_chart

    predicted: tuple[Point, ...] = ()
    if args.model:
        predicted = predicted_points(_load_model(args), _load_device(args), found.queries, args.tp)
    roofline_chart(profile_plot(found, predicted)).save(args.output)
    print(f"wrote {args.output}", file=sys.stderr)


# probe ----------------------------------------------------------------------------------------


def _add_probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="base of an OpenAI-compatible API, such as http://localhost:8000/v1")
    group = parser.add_argument_group("workload")
    group.add_argument("--concurrency", type=WHOLES, default=(1,), metavar="N,…", help="clients, level by level (1)")
    group.add_argument("--input", type=WHOLE, default=1024, metavar="S", help="prompt tokens (1024)")
    group.add_argument("--output", type=WHOLE, default=128, metavar="N", help="tokens to generate (128)")
    group.add_argument("--requests", type=WHOLE, metavar="R", help="of each level (twice the clients, at least 8)")
    group.add_argument("--shared-prefix", action="store_true", help="prompts differ in their last words alone")
    group.add_argument("--seed", type=_typed(_context), metavar="K", help="of the prompts (a new one, which is told)")
    group = parser.add_argument_group("server (a key is taken from OPENAI_API_KEY)")
    group.add_argument("--endpoint", choices=("auto", "completions", "chat"), default="auto", help="(auto)")
    group.add_argument("--served-model", default="", metavar="NAME", help="the server's name for it (the first listed)")
    group.add_argument("--max-time", type=_typed(_seconds), default=300.0, metavar="TIME", help="of everything (300s)")
    group.add_argument("--read-timeout", type=_typed(_seconds), default=60.0, metavar="TIME", help="no byte (60s)")
    group.add_argument("--file", metavar="FILE", help="of records (runs.jsonl in $GAMBREL_DATA or your data folder)")
    group.add_argument("--no-record", action="store_true", help="leave the file of records as it is")
    group = parser.add_argument_group("compare with the bound of")
    group.add_argument("--model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    _add_precision(parser)
    _add_device(parser, required=False)
    _add_output(parser, explain=False)


def _probe(args: argparse.Namespace) -> int:
    from gambrel.cost.compare import BelowBound
    from gambrel.cost.documents import probe_dict
    from gambrel.cost.served import Served, served_bounds
    from gambrel.measure import endpoint, probe, record
    from gambrel.show import probe as shown

    if bool(args.model) != bool(args.device):
        raise GambrelError("a bound needs both --model and --device")
    known = (_load_model(args), _load_device(args)) if args.model else None
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
    if not _show(args, lambda: document, lambda: shown.probe_tables(document)):
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


# mfu, train -----------------------------------------------------------------------------------


def _rate(text: str) -> float:
    value = units.parse(text, "byte/s")
    if not value > 0:
        raise units.UnitError(f"{text!r} is not a rate above 0; write for example 50GB/s")
    return value


def _count(text: str) -> float:
    value = units.parse(text, "count")
    if not value > 0:
        raise units.UnitError(f"{text!r} is not above 0; write for example 15T, 300B or 15e12")
    return value


COUNT, RATE = _typed(_count), _typed(_rate)


def _add_trained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    group = parser.add_argument_group("what is trained")
    group.add_argument("--seq", type=WHOLE, default=8192, metavar="T", help="tokens of a sequence (8192)")
    group.add_argument("--doc", type=WHOLE, metavar="T", help="attention stays within packed documents of T tokens")
    group.add_argument("--mtp", type=_typed(_context), default=0, metavar="N", help="multi-token prediction layers (0)")
    group.add_argument("--attention", choices=("flash", "materialised"), default="flash", help="(flash)")
    group.add_argument("--recompute", default="none", metavar="R", help="none, selective, full or every:N (none)")


def _add_counted(parser: argparse.ArgumentParser, default: str) -> None:
    group = parser.add_argument_group("counting")
    told = f"exact 6n 6n-no-embedding palm megatron megatron-bridge torchtitan llm-foundry or all ({default})"
    group.add_argument("--convention", default=default, metavar="C", help=told)
    group.add_argument("--dtype", default="bf16", metavar="D", help="what the matrix units multiply (bf16)")
    group.add_argument("--peak", action="append", default=[], metavar="D=RATE", help="such as bf16=800TFLOP/s")


def _work(args: argparse.Namespace) -> Any:
    from gambrel.api import load_model
    from gambrel.cost.training import Work

    model = load_model(args.model, like=args.like)
    return Work(model, args.seq, 1, args.doc, args.mtp, args.attention)


def _conventions(name: str) -> list[Any]:
    from gambrel.cost.training import CONVENTIONS, convention

    return list(CONVENTIONS.values()) if name == "all" else [convention(name)]


def _peaked_device(name: str, peaks: Sequence[str]) -> Device:
    from gambrel.hardware.catalogue import DeviceOverrides, load_device

    return load_device(name, DeviceOverrides(None, None, tuple(peaks)))


def _add_mfu(parser: argparse.ArgumentParser) -> None:
    _add_trained(parser)
    group = parser.add_argument_group("measured")
    group.add_argument("--device", required=True, metavar="DEVICE", help="see gambrel devices, or your own .toml")
    told = "tokens that one device trains in a second, such as 8200"
    group.add_argument("--tokens-per-s-per-device", type=COUNT, required=True, metavar="N", help=told)
    _add_counted(parser, "all")
    _add_output(parser, explain=False)


def _mfu(args: argparse.Namespace) -> int:
    from gambrel.cost import training
    from gambrel.cost.documents import mfu_dict
    from gambrel.show import training as shown

    work, device, again = _work(args), _peaked_device(args.device, args.peak), training.recompute(args.recompute)
    rate = training.Rate(device.id, device.peak(args.dtype), args.dtype, args.tokens_per_s_per_device)
    found = [training.utilisation(work, rate, rule, again) for rule in _conventions(args.convention)]
    training.check_possible(found[0], rate, dict(device.peak_flops_per_s))
    document = mfu_dict(work, rate, found)
    if not _show(args, lambda: document, lambda: shown.mfu_tables(document)):
        shown.print_mfu(document)
    return FINE


def _fleet_of(text: str) -> tuple[int, str]:
    number, cross, name = text.partition("x")
    if not cross or not number.isdecimal() or not name or not 0 < int(number) <= 10**9:
        raise units.UnitError(f"cannot read {text!r} as devices; write for example 1024xh100-sxm")
    return int(number), name


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_trained(parser)
    group = parser.add_argument_group("the run (--tokens or --days, --mfu or --hfu)")
    group.add_argument("--devices", type=_typed(_fleet_of), required=True, metavar="NxDEVICE", help="1024xh100-sxm")
    group.add_argument("--tokens", type=COUNT, metavar="D", help="to train on, such as 15T; or:")
    group.add_argument("--days", type=COUNT, metavar="N", help="how many tokens these devices train in N days")
    group.add_argument("--mfu", type=SHARE, metavar="X", help="share of peak, by the model's FLOPs (0.4)")
    group.add_argument("--hfu", type=SHARE, metavar="X", help="share of peak, recomputed FLOPs counted as work")
    group.add_argument("--price", type=COUNT, metavar="USD", help="of one device for one hour; no default")
    _add_counted(parser, "exact")
    _add_output(parser, explain=False)


def _train(args: argparse.Namespace) -> int:
    from gambrel.cost import training
    from gambrel.cost.documents import train_dict
    from gambrel.show import training as shown

    if (args.tokens is None) == (args.days is None):
        raise GambrelError("give either --tokens D or --days N")
    if args.mfu is not None and args.hfu is not None:
        raise GambrelError("give --mfu or --hfu, not both")
    n_devices, name = args.devices
    work, device, again = _work(args), _peaked_device(name, args.peak), training.recompute(args.recompute)
    share = args.hfu if args.hfu is not None else 0.4 if args.mfu is None else args.mfu
    peak = device.peak(args.dtype)
    fleet = training.Fleet(n_devices, peak, share, args.hfu is not None, device.power_w, args.price)
    runs = []
    for rule in _conventions(args.convention):
        tokens = args.tokens or training.tokens_in(work, fleet, rule, again, args.days * training.DAY_S)
        runs.append(training.training_run(work, fleet, rule, again, tokens))
    optimum = training.chinchilla_tokens(work.model)
    about = {"device": device.id, "dtype": args.dtype, "recompute": again.name, "chinchilla_tokens": optimum}
    document = train_dict(work, fleet, runs, about)
    if not _show(args, lambda: document, lambda: shown.train_tables(document)):
        shown.print_train(document)
    return FINE


# memory ---------------------------------------------------------------------------------------


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    group = parser.add_argument_group("what one device takes")
    group.add_argument("--seq", type=WHOLE, default=8192, metavar="T", help="tokens of a sequence (8192)")
    group.add_argument("--micro-batch", type=WHOLE, default=1, metavar="B", help="sequences at once (1)")
    group.add_argument("--micro-batches", type=WHOLE, default=1, metavar="M", help="of them in one step (1)")
    group.add_argument("--attention", choices=("flash", "materialised"), default="flash", help="(flash)")
    group.add_argument("--kernels", choices=("fused", "eager"), default="fused", help="as PyTorch runs them (fused)")
    group.add_argument("--loss", choices=("full", "chunked"), default="full", help="logits as a whole or not (full)")
    group.add_argument("--recompute", default="none", metavar="R", help="none, selective, full or every:N (none)")
    told = "adamw adamw-fp32 adamw-bf16 adamw-8bit muon sgd sgd-momentum (adamw)"
    group.add_argument("--optimizer", default="adamw", metavar="O", help=told)
    group.add_argument("--lora", type=WHOLE, metavar="R", help="train adapters of this rank alone")
    group.add_argument("--qlora", action="store_true", help="over a base in NF4 (rank 16 without --lora)")
    group = parser.add_argument_group("how devices share")
    group.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="3 is FSDP (0)")
    for name, told in (("dp", "copies, other data"), ("tp", "tensor"), ("pp", "pipeline stages"), ("cp", "context")):
        group.add_argument(f"--{name}", type=WHOLE, default=1, metavar="N", help=f"{told} (1)")
    group.add_argument("--ep", type=WHOLE, default=1, metavar="N", help="experts, among dp x cp devices (1)")
    group.add_argument("--virtual", type=WHOLE, default=1, metavar="V", help="interleaved: chunks on a stage (1: 1F1B)")
    group.add_argument("--no-sequence-parallel", action="store_true", help="norms and residuals whole on each device")
    group = parser.add_argument_group("device and links")
    group.add_argument("--device", required=True, metavar="DEVICE", help="see gambrel devices, or your own .toml")
    group.add_argument("--utilization", type=SHARE, default=0.9, metavar="X", help="share of memory used (0.9)")
    group.add_argument("--node", type=WHOLE, default=8, metavar="N", help="devices on one scale-up link (8)")
    group.add_argument("--network", type=RATE, metavar="RATE", help="between nodes, of one device, such as 50GB/s")
    group.add_argument("--dtype", default="bf16", metavar="D", help="what the matrix units multiply (bf16)")
    group.add_argument("--peak", action="append", default=[], metavar="D=RATE", help="such as bf16=800TFLOP/s")
    parser.add_argument("--strict", action="store_true", help="exit 1 where it does not fit")
    parser.add_argument("-o", "--output", metavar="FILE", help="the chart over choices: .svg .png .html .json")
    _add_output(parser, explain=False)


def _training_plan(args: argparse.Namespace) -> Any:
    from gambrel.api import load_model
    from gambrel.cost import footprint
    from gambrel.cost.parallel import Layout
    from gambrel.cost.training import recompute

    split = (args.dp, args.tp, args.pp, args.cp, args.ep)
    adapter = footprint.Adapter(args.lora or 16, args.qlora) if args.lora or args.qlora else None
    return footprint.Plan(
        load_model(args.model, like=args.like),
        args.seq,
        args.micro_batch,
        args.micro_batches,
        Layout(*split, not args.no_sequence_parallel, args.virtual),
        args.zero,
        recompute(args.recompute),
        footprint.optimizer(args.optimizer),
        args.attention,
        args.kernels,
        adapter,
        args.loss == "chunked",
    )


def _memory(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import memory_dict
    from gambrel.cost.parallel import network_of
    from gambrel.cost.trainplan import answer
    from gambrel.show import training as shown

    device = _peaked_device(args.device, args.peak)
    network = network_of(device, args.node, args.network)
    found = answer(_training_plan(args), device, args.dtype, network, args.utilization)
    document = memory_dict(found)
    if args.output:
        from gambrel.cost.trainplan import memory_plot
        from gambrel.show.memory_chart import memory_chart

        memory_chart(memory_plot(found.plan, device, args.utilization)).save(args.output)
        print(f"wrote {args.output}", file=sys.stderr)
    if not _show(args, lambda: document, lambda: shown.memory_tables(document)):
        shown.print_memory(document)
    return NO if args.strict and not found.fits else FINE


# models, devices ------------------------------------------------------------------------------


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types", action="store_true", help="the model types that can be read from a config.json")
    _add_output(parser, explain=False)


def _models(args: argparse.Namespace) -> int:
    from gambrel.api import bundled_models
    from gambrel.cost.documents import models_dict
    from gambrel.show import listings

    if args.types:
        from gambrel.model.families import known

        rows, table = [{"model_type": name} for name in known()], listings.types_table
    else:
        rows, table = bundled_models(), listings.models_table
    if not _show(args, lambda: models_dict(rows), lambda: [table(rows)]):
        listings.print_table(table(rows))
    return FINE


def _add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="DEVICE", help="one device, every number with its source")
    _add_output(parser, explain=False)


def _devices(args: argparse.Namespace) -> int:
    from gambrel.cost.documents import devices_dict
    from gambrel.hardware.catalogue import device_ids
    from gambrel.show import listings

    if args.name:
        device = _load_device(args, args.name)
        rows = listings.figure_rows(device)
        if not _show(args, lambda: devices_dict(rows), lambda: [listings.figures_table(device, rows)]):
            listings.print_device(device)
        return FINE
    rows = listings.device_rows([_load_device(args, name) for name in device_ids()])
    if not _show(args, lambda: devices_dict(rows), lambda: [listings.devices_table(rows)]):
        listings.print_table(listings.devices_table(rows))
    return FINE


COMMANDS = {
    "report": Command(
        "the main report: decode, prefill, what limits them, what fits",
        "gambrel report llama-3-8b --device h100-sxm --batch 1,8,64 --context 8192",
        _add_report,
        _report,
    ),
    "params": Command(
        "parameters by part, weight bytes, KV cache per token",
        "gambrel params ./config.json --weight-dtype int4",
        _add_params,
        _params,
    ),
    "ops": Command(
        "every operator of one step: shape, FLOPs, bytes, intensity, time, limit",
        "gambrel ops deepseek-v3 --device h200 --batch 64 --context 4096",
        _add_ops,
        _ops,
    ),
    "verify": Command(
        "the table's operators against those of the model's own PyTorch code (needs gambrel[torch])",
        "gambrel verify llama-3-8b",
        _add_verify,
        _verify,
    ),
    "roofline": Command(
        "the roofline chart as SVG, PNG, HTML or Vega-Lite JSON",
        "gambrel roofline llama-3-8b --device h100-sxm --versus a100-80gb -o roofline.svg",
        _add_roofline,
        _roofline,
    ),
    "crossover": Command(
        "at what batch decode is compute-bound, whether it fits, whether it exists",
        "gambrel crossover llama-3-8b --device h100-sxm --context 512,8192",
        _add_crossover,
        _crossover,
    ),
    "fit": Command(
        "what fits: batches, contexts, tokens of KV, every term of the memory",
        "gambrel fit gpt-oss-120b --device h100-sxm --utilization 0.95",
        _add_fit,
        _fit,
    ),
    "request": Command(
        "latency of whole requests, and what serving designs gain",
        "gambrel request llama-3-8b --device h100-sxm --prompt 8192 --new-tokens 512",
        _add_request,
        _request,
    ),
    "compare": Command(
        "a measured time against its bound: the gap in named parts, and what to try",
        "gambrel compare llama-3.2-1b --device rtx-6000-ada --batch 1 --context 0 --measured 3.43ms",
        _add_compare,
        _compare,
    ),
    "mfu": Command(
        "a measured training speed as MFU and HFU, under every convention that people report",
        "gambrel mfu llama-3-8b --device h100-sxm --tokens-per-s-per-device 8200 --seq 8192 --recompute full",
        _add_mfu,
        _mfu,
    ),
    "train": Command(
        "a whole training run: FLOPs, device hours, days, energy, cost; or the tokens that some days buy",
        "gambrel train llama-3-8b --tokens 15T --devices 1024xh100-sxm --mfu 0.4 --price 2.5",
        _add_train,
        _train,
    ),
    "memory": Command(
        "training memory of a device by kind, the largest micro-batch, traffic, and the bound on a step",
        "gambrel memory llama-3-8b --device h100-sxm --dp 8 --zero 3 --recompute full",
        _add_memory,
        _memory,
    ),
    "calibrate": Command(
        "measure this machine's own ceilings, written as a device file (needs gambrel[torch])",
        "gambrel calibrate --device cpu -o ./this-machine.toml",
        _add_calibrate,
        _calibrate,
    ),
    "runs": Command(
        "recorded runs: list, show one, compare two",
        "gambrel runs last",
        _add_runs,
        _runs,
    ),
    "run": Command(
        "run a model with random weights here: prefill and decode timed, beside their bounds, and what limits them",
        "gambrel run llama-3.2-1b --dtype bf16 --context 2048 --prompt 2048 --device h200",
        _add_run,
        _run,
    ),
    "profile": Command(
        "a profiler's trace: kernels by role, layer and phase, busy share, launch gaps, fraction of the roof",
        "gambrel profile --trace trace.json.gz --device h100-sxm -o profile.svg",
        _add_profile,
        _profile,
    ),
    "probe": Command(
        "a served endpoint measured: TTFT, TPOT, ITL, tokens/s, errors, beside its bound (needs gambrel[probe])",
        "gambrel probe http://localhost:8000/v1 --concurrency 1,8 --model llama-3-8b --device h100-sxm",
        _add_probe,
        _probe,
    ),
    "models": Command("the bundled models", "gambrel models", _add_models, _models),
    "devices": Command("the device catalogue with its sources", "gambrel devices h100-sxm", _add_devices, _devices),
}
