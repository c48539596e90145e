"""Arguments that several commands share: their types, and what they load and print."""

from __future__ import annotations

import argparse
import sys

from gambrel import units
from gambrel.types import GambrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gambrel.api import Model
    from gambrel.cost.report import Options, Report
    from gambrel.show.tables import Table
    from gambrel.types import Device

FINE, NO, WRONG = 0, 1, 2
FORMATS = ("text", "json", "csv", "markdown")


# Argument types --------------------------------------------------------------------------------


def typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type that tells what is wrong with a unit."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except units.UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def read_whole(text: str) -> int:
    """A whole number from 1, such as 8, 8192 or 8K."""
    value = units.parse(text, "token")
    if value < 1 or value != int(value) or value > 10**12:
        raise units.UnitError(f"{text!r} is not a whole number from 1; write for example 8, 8192 or 8K")
    return int(value)


def read_wholes(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    return tuple(read_whole(part) for part in text.split(",") if part.strip()) or (read_whole(text),)


def read_context(text: str) -> int:
    """A context in tokens; 0 leaves the cache out."""
    return 0 if text.strip() == "0" else read_whole(text)


def read_contexts(text: str) -> tuple[int, ...]:
    """Contexts with commas between."""
    return tuple(read_context(part) for part in text.split(","))


def read_share(text: str) -> float:
    """A share, such as 0.4 or 40%."""
    return units.parse(text, "1")


def read_bytes(text: str) -> float:
    """A size in bytes, such as 80GB or 64GiB."""
    return units.parse(text, "byte")


WHOLE, WHOLES, CONTEXTS, SHARE, BYTES = map(typed, (read_whole, read_wholes, read_contexts, read_share, read_bytes))


# Shared options --------------------------------------------------------------------------------


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model and its precision."""
    parser.add_argument("model", metavar="MODEL", help="config.json or its folder, a bundled name, or a hub id")
    add_precision(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Dtypes of weights, cache and products, instead of what the config says."""
    parser.add_argument("--like", default="", metavar="TYPE", help="read the config as this known model type")
    group = parser.add_argument_group("precision (by default what the config says)")
    group.add_argument("--weight-dtype", metavar="D", help="fp32 bf16 fp16 fp8 int8 int4 mxfp4 nvfp4 nf4")
    group.add_argument("--kv-dtype", metavar="D", help="fp32 bf16 fp16 fp8 int8 int4")
    group.add_argument("--compute-dtype", metavar="D", help="what the matrix units multiply; picks the peak")


def add_device(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The device, what overrides its numbers, and how its memory is shared out."""
    group = parser.add_argument_group("device")
    group.add_argument("--device", required=required, metavar="DEVICE", help="see gambrel devices, or your own .toml")
    group.add_argument("--memory", metavar="SIZE", help="instead of the device's, such as 80GB or 64GiB")
    group.add_argument("--bandwidth", metavar="RATE", help="instead of the device's, such as 3.0TB/s")
    group.add_argument("--peak", action="append", default=[], metavar="D=RATE", help="such as bf16=800TFLOP/s")
    group.add_argument("--tp", type=WHOLE, default=1, metavar="N", help="tensor parallel over N devices")
    group.add_argument("--utilization", type=SHARE, default=0.9, metavar="X", help="share of memory used (0.9)")
    group.add_argument("--reserve", type=BYTES, metavar="SIZE", help="kept for activations (1.24GB)")


def add_ceilings(parser: argparse.ArgumentParser) -> None:
    """The machine's measured ceilings."""
    told = "a file of gambrel calibrate: the bound at measured ceilings beside the datasheet's"
    parser.add_argument("--ceilings", metavar="FILE", help=told)


def add_beside(parser: argparse.ArgumentParser) -> None:
    """Tokens that come from an encoder or a tower."""
    group = parser.add_argument_group("beside the text")
    group.add_argument("--source", type=WHOLE, metavar="S", help="tokens of an encoder's input (as the context)")
    group.add_argument("--media", type=WHOLE, metavar="P", help="patches or frames of each prompt through the tower")


def add_output(parser: argparse.ArgumentParser, explain: bool = True) -> None:
    """How the answer is printed."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=FORMATS, default="text", help="text (default), json, csv, markdown")
    if explain:
        group.add_argument("--explain", metavar="KEY", help="the formula of one number with the numbers put in")


def add_workload(parser: argparse.ArgumentParser, batches: str, contexts: str = "8192") -> None:
    """Batches and contexts; the defaults are written as a user would."""
    group = parser.add_argument_group("workload")
    told = f"sequences ({batches})"
    group.add_argument("--batch", type=WHOLES, default=read_wholes(batches), metavar="N,…", help=told)
    group.add_argument(
        "--context", type=CONTEXTS, default=read_contexts(contexts), metavar="S,…", help=f"keys attended ({contexts})"
    )


# Loading and printing --------------------------------------------------------------------------


def given_model(args: argparse.Namespace) -> Model:
    """The model of the arguments; config keys that nobody knows are told on stderr."""
    from gambrel.api import load_model

    model = load_model(args.model, args.weight_dtype, args.kv_dtype, args.compute_dtype, args.like)
    unread = model.reading.unread
    if unread:
        print(
            f"warning: config keys that gambrel does not know, which may matter: {', '.join(unread)}", file=sys.stderr
        )
    return model


def given_device(args: argparse.Namespace, name: str | None = None) -> Device:
    """The device of the arguments with its overrides, or the one of that name."""
    from gambrel.hardware.catalogue import DeviceOverrides, load_device

    if name is not None:
        return load_device(name)
    return load_device(args.device, DeviceOverrides(args.memory, args.bandwidth, tuple(args.peak)))


def report_options(args: argparse.Namespace) -> Options:
    """The options of a report that the arguments name."""
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


def print_json(document: Any) -> None:
    """One document on stdout."""
    import json

    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_tables(args: argparse.Namespace, tables: Sequence[Table]) -> None:
    """Tables on stdout as CSV or Markdown."""
    from gambrel.show import tables as plain

    print((plain.to_csv if args.format == "csv" else plain.to_markdown)(tables))


def printed(args: argparse.Namespace, document: Callable[[], Any], tables: Callable[[], Sequence[Table]]) -> bool:
    """Print what --format asks for; False where it asks for text, which each command prints itself."""
    if args.format == "json":
        print_json(document())
    elif args.format in ("csv", "markdown"):
        print_tables(args, tables())
    else:
        return False
    return True


def explained(args: argparse.Namespace, report: Callable[[], Report]) -> bool:
    """Print the explanation that --explain asks for."""
    if not args.explain:
        return False
    from gambrel.cost.explain import explain

    explanation = explain(args.explain, report())
    if args.format == "json":
        from gambrel.cost.documents import explain_dict

        print_json(explain_dict(explanation))
    else:
        print(explanation)
    return True


def plain_report(args: argparse.Namespace, model: Model, batch: int, context: int) -> Report:
    """The report behind an explanation, where the command itself makes none."""
    from gambrel.cost.report import build_report

    if not args.device:
        raise GambrelError("--explain needs --device")
    workload = {"batch": (batch,), "context": (context,), "prefill": None}
    options = report_options(argparse.Namespace(**{**vars(args), **workload}))
    return build_report(model, given_device(args), options)
