"""Commands that list what is known: models and devices."""

from __future__ import annotations

from gambrel.cli.options import (
    FINE,
    add_output,
    given_device,
    printed,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


# models, devices -------------------------------------------------------------------------------


def add_models(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel models`."""
    parser.add_argument("--types", action="store_true", help="the model types that can be read from a config.json")
    add_output(parser, explain=False)


def run_models(args: argparse.Namespace) -> int:
    """Run `gambrel models`; returns the exit status."""
    from gambrel.api import bundled_models
    from gambrel.cost.documents import models_dict
    from gambrel.show import listings

    if args.types:
        from gambrel.model.families import known

        rows, table = [{"model_type": name} for name in known()], listings.types_table
    else:
        rows, table = bundled_models(), listings.models_table
    if not printed(args, lambda: models_dict(rows), lambda: [table(rows)]):
        listings.print_table(table(rows))
    return FINE


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Options of `gambrel devices`."""
    parser.add_argument("name", nargs="?", metavar="DEVICE", help="one device, every number with its source")
    add_output(parser, explain=False)


def run_devices(args: argparse.Namespace) -> int:
    """Run `gambrel devices`; returns the exit status."""
    from gambrel.cost.documents import devices_dict
    from gambrel.hardware.catalogue import device_ids
    from gambrel.show import listings

    if args.name:
        device = given_device(args, args.name)
        rows = listings.figure_rows(device)
        if not printed(args, lambda: devices_dict(rows), lambda: [listings.figures_table(device, rows)]):
            listings.print_device(device)
        return FINE
    rows = listings.device_rows([given_device(args, name) for name in device_ids()])
    if not printed(args, lambda: devices_dict(rows), lambda: [listings.devices_table(rows)]):
        listings.print_table(listings.devices_table(rows))
    return FINE
