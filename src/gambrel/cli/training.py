"""Commands on training: MFU, whole runs, memory."""

from __future__ import annotations

import sys

from gambrel import units
from gambrel.cli.options import (
    FINE,
    NO,
    SHARE,
    WHOLE,
    add_output,
    printed,
    read_context,
    typed,
)
from gambrel.types import GambrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from gambrel.types import Device


# mfu, train ------------------------------------------------------------------------------------


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


COUNT, RATE = typed(_count), typed(_rate)


def _add_trained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    group = parser.add_argument_group("what is trained")
    group.add_argument("--seq", type=WHOLE, default=8192, metavar="T", help="tokens of a sequence (8192)")
    group.add_argument("--doc", type=WHOLE, metavar="T", help="attention stays within packed documents of T tokens")
    group.add_argument("--mtp", type=typed(read_context), default=0, metavar="N", help="layers that predict ahead (0)")
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


def add_mfu(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel mfu`."""
    _add_trained(parser)
    group = parser.add_argument_group("measured")
    group.add_argument("--device", required=True, metavar="DEVICE", help="see gambrel devices, or your own .toml")
    told = "tokens that one device trains in a second, such as 8200"
    group.add_argument("--tokens-per-s-per-device", type=COUNT, required=True, metavar="N", help=told)
    _add_counted(parser, "all")
    add_output(parser, explain=False)


def run_mfu(args: argparse.Namespace) -> int:
    """Run `gambrel mfu`; returns the exit status."""
    from gambrel.cost import training
    from gambrel.cost.documents import mfu_dict
    from gambrel.show import training as shown

    work, device, again = _work(args), _peaked_device(args.device, args.peak), training.recompute(args.recompute)
    rate = training.Rate(device.id, device.peak(args.dtype), args.dtype, args.tokens_per_s_per_device)
    found = [training.utilisation(work, rate, rule, again) for rule in _conventions(args.convention)]
    training.check_possible(found[0], rate, dict(device.peak_flops_per_s))
    document = mfu_dict(work, rate, found)
    if not printed(args, lambda: document, lambda: shown.mfu_tables(document)):
        shown.print_mfu(document)
    return FINE


def _fleet_of(text: str) -> tuple[int, str]:
    number, cross, name = text.partition("x")
    if not cross or not number.isdecimal() or not name or not 0 < int(number) <= 10**9:
        raise units.UnitError(f"cannot read {text!r} as devices; write for example 1024xh100-sxm")
    return int(number), name


def add_train(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel train`."""
    _add_trained(parser)
    group = parser.add_argument_group("the run (--tokens or --days, --mfu or --hfu)")
    group.add_argument("--devices", type=typed(_fleet_of), required=True, metavar="NxDEVICE", help="1024xh100-sxm")
    group.add_argument("--tokens", type=COUNT, metavar="D", help="to train on, such as 15T; or:")
    group.add_argument("--days", type=COUNT, metavar="N", help="how many tokens these devices train in N days")
    group.add_argument("--mfu", type=SHARE, metavar="X", help="share of peak, by the model's FLOPs (0.4)")
    group.add_argument("--hfu", type=SHARE, metavar="X", help="share of peak, recomputed FLOPs counted as work")
    group.add_argument("--price", type=COUNT, metavar="USD", help="of one device for one hour; no default")
    _add_counted(parser, "exact")
    add_output(parser, explain=False)


def run_train(args: argparse.Namespace) -> int:
    """Run `gambrel train`; returns the exit status."""
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
    if not printed(args, lambda: document, lambda: shown.train_tables(document)):
        shown.print_train(document)
    return FINE


# memory ----------------------------------------------------------------------------------------


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel memory`."""
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
    add_output(parser, explain=False)


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


def run_memory(args: argparse.Namespace) -> int:
    """Run `gambrel memory`; returns the exit status."""
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
    if not printed(args, lambda: document, lambda: shown.memory_tables(document)):
        shown.print_memory(document)
    return NO if args.strict and not found.fits else FINE
