"""The command line: arguments in, a report out.

argparse, because it is in the standard library and starts three times faster than the alternatives; a report has a
start-up budget.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from gambrel.cli.options import FINE, WRONG
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn


@frozen
class Command:
    """A subcommand: one line of help, an example, and the module with its add_NAME and run_NAME."""

    help: str
    example: str
    module: str

    def part(self, name: str) -> Any:
        """A function of the module."""
        return getattr(import_module(f"gambrel.cli.{self.module}"), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 fine, 1 the answer is no (--strict), 2 wrong input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        args = _command_parser(name).parse_args(rest)
        return _guarded(COMMANDS[name].part(f"run_{name}"), args)
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
    command.part(f"add_{name}")(parser)
    return parser


COMMANDS = {
    "report": Command(
        "the main report: decode, prefill, what limits them, what fits",
        "gambrel report llama-3-8b --device h100-sxm --batch 1,8,64 --context 8192",
        "floor",
    ),
    "params": Command(
        "parameters by part, weight bytes, KV cache per token",
        "gambrel params ./config.json --weight-dtype int4",
        "floor",
    ),
    "ops": Command(
        "every operator of one step: shape, FLOPs, bytes, intensity, time, limit",
        "gambrel ops deepseek-v3 --device h200 --batch 64 --context 4096",
        "floor",
    ),
    "verify": Command(
        "the table's operators against those of the model's own PyTorch code (needs gambrel[torch])",
        "gambrel verify llama-3-8b",
        "floor",
    ),
    "roofline": Command(
        "the roofline chart as SVG, PNG, HTML or Vega-Lite JSON",
        "gambrel roofline llama-3-8b --device h100-sxm --versus a100-80gb -o roofline.svg",
        "floor",
    ),
    "crossover": Command(
        "at what batch decode is compute-bound, whether it fits, whether it exists",
        "gambrel crossover llama-3-8b --device h100-sxm --context 512,8192",
        "floor",
    ),
    "fit": Command(
        "what fits: batches, contexts, tokens of KV, every term of the memory",
        "gambrel fit gpt-oss-120b --device h100-sxm --utilization 0.95",
        "floor",
    ),
    "request": Command(
        "latency of whole requests, and what serving designs gain",
        "gambrel request llama-3-8b --device h100-sxm --prompt 8192 --new-tokens 512",
        "floor",
    ),
    "compare": Command(
        "a measured time against its bound: the gap in named parts, and what to try",
        "gambrel compare llama-3.2-1b --device rtx-6000-ada --batch 1 --context 0 --measured 3.43ms",
        "lab",
    ),
    "mfu": Command(
        "a measured training speed as MFU and HFU, under every convention that people report",
        "gambrel mfu llama-3-8b --device h100-sxm --tokens-per-s-per-device 8200 --seq 8192 --recompute full",
        "training",
    ),
    "train": Command(
        "a whole training run: FLOPs, device hours, days, energy, cost; or the tokens that some days buy",
        "gambrel train llama-3-8b --tokens 15T --devices 1024xh100-sxm --mfu 0.4 --price 2.5",
        "training",
    ),
    "memory": Command(
        "training memory of a device by kind, the largest micro-batch, traffic, and the bound on a step",
        "gambrel memory llama-3-8b --device h100-sxm --dp 8 --zero 3 --recompute full",
        "training",
    ),
    "calibrate": Command(
        "measure this machine's own ceilings, written as a device file (needs gambrel[torch])",
        "gambrel calibrate --device cpu -o ./this-machine.toml",
        "lab",
    ),
    "runs": Command(
        "recorded runs: list, show one, compare two",
        "gambrel runs last",
        "lab",
    ),
    "run": Command(
        "run a model with random weights here: prefill and decode timed, beside their bounds, and what limits them",
        "gambrel run llama-3.2-1b --dtype bf16 --context 2048 --prompt 2048 --device h200",
        "lab",
    ),
    "profile": Command(
        "a model run here, or a trace: kernels by role, layer and phase, busy share, launch gaps, fraction of the roof",
        "gambrel profile --trace trace.json.gz --device h100-sxm -o profile.svg",
        "lab",
    ),
    "probe": Command(
        "a served endpoint measured: TTFT, TPOT, ITL, tokens/s, errors, beside its bound (needs gambrel[probe])",
        "gambrel probe http://localhost:8000/v1 --concurrency 1,8 --model llama-3-8b --device h100-sxm",
        "lab",
    ),
    "models": Command("the bundled models", "gambrel models", "catalogue"),
    "devices": Command("the device catalogue with its sources", "gambrel devices h100-sxm", "catalogue"),
}
