"""Commands on what is possible: the report, its parts, its chart, and the questions that it answers."""

from __future__ import annotations

import argparse
import sys

from gambrel.cli.options import (
    BYTES,
    FINE,
    NO,
    SHARE,
    WHOLE,
    WHOLES,
    add_beside,
    add_ceilings,
    add_device,
    add_model,
    add_output,
    add_workload,
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
    from collections.abc import Sequence

    from gambrel.api import Model
    from gambrel.cost.report import Report
    from gambrel.show.tables import Table
    from gambrel.types import Device, Op, Step


# report ----------------------------------------------------------------------------------------


def add_report(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel report`."""
    add_model(parser)
    add_device(parser)
    add_workload(parser, "1,8,64,256")
    group = parser.add_argument_group("counting")
    group.add_argument("--prefill", type=WHOLES, metavar="S,…", help="prompt lengths (8192)")
    group.add_argument("--weights", choices=("streamed", "resident"), help="what a step reads (streamed)")
    group.add_argument("--logits", choices=("last", "all"), help="prefill rows through the output head (last)")
    group.add_argument("--efficiency", type=SHARE, metavar="X", help="share of peak for estimates (0.6)")
    group.add_argument("--strict", action="store_true", help="exit 1 where a row does not fit or is beyond the context")
    add_ceilings(parser)
    add_beside(parser)
    add_output(parser)


def run_report(args: argparse.Namespace) -> int:
    """Run `gambrel report`; returns the exit status."""
    from gambrel.cost.documents import report_dict
    from gambrel.cost.report import build_report

    report = build_report(given_model(args), given_device(args), report_options(args))
    if args.ceilings:
        from gambrel.cost.report import beside_ceilings

        report = beside_ceilings(report, given_device(args, args.ceilings))
    possible = all(row.possible for row in report.decode) and all(row.possible for row in report.prefill)
    status = NO if args.strict and not possible else FINE
    if explained(args, lambda: report):
        return status

    def tables() -> Sequence[Table]:
        from gambrel.show.report import report_tables

        return report_tables(report)

    if not printed(args, lambda: report_dict(report), tables):
        from gambrel.show.report import print_report

        print_report(report)
    return status


# params, ops -----------------------------------------------------------------------------------


def add_params(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel params`."""
    add_model(parser)
    parser.add_argument("--context", type=WHOLE, default=8192, metavar="S", help="for the cache of one sequence (8192)")
    group = parser.add_argument_group("checkpoint")
    told = "compare with a folder, .safetensors or .gguf file; alone: with MODEL's own; hub: with the hub's headers"
    group.add_argument("--checkpoint", nargs="?", const="", metavar="PATH", help=told)
    group.add_argument("--strict", action="store_true", help="exit 1 where the checkpoint disagrees")
    add_output(parser)


def run_params(args: argparse.Namespace) -> int:
    """Run `gambrel params`; returns the exit status."""
    from gambrel.cost.documents import params_dict
    from gambrel.show import inventory

    model = given_model(args)
    if args.checkpoint is not None:
        return _checkpoint(args, model)
    if args.strict:
        raise GambrelError("--strict of params needs --checkpoint")

    def report() -> Report:
        from gambrel.cost.report import Options, build_report

        # Explanations of a model alone need no device; this one has a peak for every dtype.
        device = given_device(args, "b200")
        return build_report(model, device, Options(contexts=(args.context,)))

    if explained(args, report):
        return FINE
    if not printed(args, lambda: params_dict(model, args.context), lambda: inventory.params_tables(model)):
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
    if not printed(args, lambda: checkpoint_dict(model, found, agreement), lambda: shown.agreement_tables(agreement)):
        shown.print_agreement(model, agreement, found)
    return NO if args.strict and not agreement.agrees else FINE


def add_ops(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel ops`."""
    add_model(parser)
    add_device(parser, required=False)
    group = parser.add_argument_group("workload (a decode step unless --prefill or --chunk)")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="N", help="sequences (1)")
    group.add_argument("--context", type=typed(read_context), default=8192, metavar="S", help="keys attended (8192)")
    group.add_argument("--prefill", type=WHOLE, metavar="S", help="a fresh prompt of S tokens instead")
    group.add_argument("--chunk", type=WHOLE, metavar="Q", help="the last Q tokens of a prompt of --context tokens")
    group.add_argument("--every-key", action="store_true", help="count masked scores too")
    group.add_argument("--logits", choices=("last", "all"), default="last", help="rows through the head (last)")
    group.add_argument("--trace", action="store_true", help="trace the module instead of reading a table")
    add_beside(parser)
    add_output(parser)


def run_ops(args: argparse.Namespace) -> int:
    """Run `gambrel ops`; returns the exit status."""
    from gambrel.cost.documents import ops_dict
    from gambrel.cost.operators import op_rows
    from gambrel.show import inventory

    device = given_device(args) if args.device else None
    if args.trace:
        name, step, ops = _traced_ops(args)
    else:
        model = given_model(args)
        if explained(args, lambda: plain_report(args, model, args.batch, args.context)):
            return FINE
        name, step, ops = model.name, *_table_ops(args, model, device)
    rows = op_rows(ops, device)
    table = inventory.ops_table(rows, device)
    if not printed(args, lambda: ops_dict(name, device, step, rows), lambda: [table]):
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


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel verify`."""
    add_model(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="N", help="sequences (1)")
    group.add_argument("--prefill", type=WHOLE, default=512, metavar="S", help="prompt, then one decode step (512)")
    add_output(parser, explain=False)


def run_verify(args: argparse.Namespace) -> int:
    """Run `gambrel verify`; returns the exit status."""
    from gambrel.cost.documents import verify_dict
    from gambrel.cost.verify import verify
    from gambrel.show import inventory

    result = verify(given_model(args), args.batch, args.prefill)
    if not printed(args, lambda: verify_dict(result), lambda: [inventory.verify_table(result)]):
        inventory.print_verification(result)
    return FINE if result.equal else NO


# roofline --------------------------------------------------------------------------------------


def add_roofline(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel roofline`."""
    add_model(parser)
    add_device(parser)
    add_workload(parser, "1,8,64")
    parser.add_argument("--prefill", type=WHOLE, default=8192, metavar="S", help="prompt length (8192)")
    parser.add_argument("--versus", action="append", default=[], metavar="DEVICE", help="another roof, in grey")
    parser.add_argument("-o", "--output", metavar="FILE", default="roofline.svg", help=".svg .png .html .json")
    add_output(parser)


def run_roofline(args: argparse.Namespace) -> int:
    """Run `gambrel roofline`; returns the exit status."""
    from gambrel.cost.documents import plot_dict
    from gambrel.cost.points import Marks, roofline_plot
    from gambrel.show import inventory

    versus = tuple(given_device(args, name) for name in args.versus)
    marks = Marks(args.batch, args.context[0], args.prefill, versus, args.tp)
    model = given_model(args)
    if explained(args, lambda: plain_report(args, model, args.batch[0], args.context[0])):
        return FINE
    plot = roofline_plot(model, given_device(args), marks)
    from gambrel.show.chart import roofline_chart

    roofline_chart(plot).save(args.output)
    print(f"wrote {args.output}", file=sys.stderr)
    if not printed(args, lambda: plot_dict(plot), lambda: [inventory.plot_table(plot)]):
        from gambrel.show.text import Page

        Page().tables([inventory.plot_table(plot)])
    return FINE


# crossover, fit, request -----------------------------------------------------------------------


def add_crossover(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel crossover`."""
    add_model(parser)
    add_device(parser)
    parser.add_argument("--context", type=WHOLES, default=(8192,), metavar="S,…", help="keys attended (8192)")
    add_output(parser)


def run_crossover(args: argparse.Namespace) -> int:
    """Run `gambrel crossover`; returns the exit status."""
    from gambrel.cost.crossover import context_limit
    from gambrel.cost.documents import crossover_dict
    from gambrel.cost.report import build_report
    from gambrel.show import answers

    model, device = given_model(args), given_device(args)
    given = [argparse.Namespace(**{**vars(args), "context": (s,), "batch": (1,)}) for s in args.context]
    options = [report_options(each) for each in given]
    reports = [build_report(model, device, each) for each in options]
    if explained(args, lambda: reports[0]):
        return FINE
    if not printed(args, lambda: crossover_dict(reports), lambda: [answers.crossover_table(reports)]):
        answers.print_crossover(reports, context_limit(model, device, args.tp))
    return FINE


def add_fit(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel fit`."""
    add_model(parser)
    add_device(parser)
    add_workload(parser, "1,8,64", "1024,8192,32768,131072")
    parser.add_argument("--kv-budget", type=BYTES, metavar="SIZE", help="KV memory instead of what the device leaves")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every batch fits at every context")
    add_output(parser)


def run_fit(args: argparse.Namespace) -> int:
    """Run `gambrel fit`; returns the exit status."""
    from dataclasses import replace

    from gambrel.cost.capacity import Fit
    from gambrel.cost.documents import fit_dict
    from gambrel.cost.report import build_report, capacity
    from gambrel.model.arch import check_tp, kv_bytes_per_token
    from gambrel.show import answers

    model, device, options = given_model(args), given_device(args), report_options(args)
    check_tp(model.arch, args.tp)
    room = capacity(model, device, options)
    if args.kv_budget is not None:
        room = replace(room, stated_budget_bytes=args.kv_budget)
    if explained(args, lambda: replace(build_report(model, device, options), capacity=room)):
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
    if not printed(args, lambda: fit_dict(fit), lambda: answers.fit_tables(fit)):
        answers.print_fit(fit)
    return NO if args.strict and not fit.all_fit else FINE


def add_request(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel request`."""
    add_model(parser)
    add_device(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--prompt", type=WHOLE, default=8192, metavar="S", help="prompt tokens (8192)")
    group.add_argument("--new-tokens", type=WHOLE, default=512, metavar="N", help="tokens to generate (512)")
    group.add_argument("--batch", type=WHOLE, default=1, metavar="B", help="requests served together (1)")
    group.add_argument("--serve-batch", type=WHOLE, default=64, metavar="B", help="decode batch of a server (64)")
    group.add_argument("--chunk", type=WHOLE, default=1024, metavar="Q", help="tokens of a prefill chunk (1024)")
    group.add_argument("--weights", choices=("streamed", "resident"), default="streamed", help="(streamed)")
    group.add_argument("--efficiency", type=SHARE, default=0.6, metavar="X", help="share of peak in prefill (0.6)")
    add_output(parser)


def run_request(args: argparse.Namespace) -> int:
    """Run `gambrel request`; returns the exit status."""
    from gambrel.cost.documents import request_dict
    from gambrel.cost.report import capacity
    from gambrel.cost.request import Rig, request, serving
    from gambrel.model.arch import check_tp
    from gambrel.show import answers

    model = given_model(args)
    check_tp(model.arch, args.tp)
    if explained(args, lambda: plain_report(args, model, args.batch, args.prompt)):
        return FINE
    rig = Rig(model, given_device(args), args.tp, args.weights, args.efficiency)
    room = capacity(model, rig.device, report_options(argparse.Namespace(**{**vars(args), "batch": None})))
    one = request(rig, args.prompt, args.new_tokens, args.batch)
    gains = serving(rig, args.prompt, args.serve_batch, min(args.chunk, args.prompt))
    if not printed(args, lambda: request_dict(rig, one, gains, room), lambda: answers.request_tables(one, gains)):
        answers.print_request(rig, one, gains, room)
    return FINE
