"""gambrel: how fast a language model can possibly run on a device, what limits it, and whether it fits.

>>> import gambrel
>>> print(gambrel.load_model("llama-3-8b").report("h100-sxm").decode[0].binding)
memory
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.api import Model, load_model
    from gambrel.hardware.catalogue import DeviceOverrides, load_device
    from gambrel.types import Bound, Cost, Device, GambrelError, Op, Step

#: Public names and the module that holds each; loaded when first used.
_HOMES = {
    "Model": "gambrel.api",
    "load_model": "gambrel.api",
    "load_device": "gambrel.hardware.catalogue",
    "DeviceOverrides": "gambrel.hardware.catalogue",
    "Bound": "gambrel.types",
    "Cost": "gambrel.types",
    "Device": "gambrel.types",
    "GambrelError": "gambrel.types",
    "Op": "gambrel.types",
    "Step": "gambrel.types",
}

__all__ = [
    "Bound",
    "Cost",
    "Device",
    "DeviceOverrides",
    "GambrelError",
    "Model",
    "Op",
    "Step",
    "__version__",
    "load_device",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gambrel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
