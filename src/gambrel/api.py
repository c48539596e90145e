"""The public objects: a model with everything that can be asked of it."""

from __future__ import annotations

from gambrel.cost.crossover import crossover
from gambrel.cost.report import Options, build_report, capacity, step_ops
from gambrel.cost.report import Report as ReportData
from gambrel.cost.roofline import demand, step_bound
from gambrel.model.arch import check_tp
from gambrel.model.model import Model as ReadModel
from gambrel.units import parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.cost.capacity import Capacity
    from gambrel.cost.crossover import Crossover
    from gambrel.cost.request import Request, Serving
    from gambrel.show.chart import Chart
    from gambrel.types import Bound, Device, Op, Step


class Report(ReportData):
    """A report that prints itself and shows in a notebook."""

    def __str__(self) -> str:
        from gambrel.show.report import report_text

        return report_text(self)

    def _repr_markdown_(self) -> str:
        from gambrel.show.report import report_tables
        from gambrel.show.tables import to_markdown

        return to_markdown(report_tables(self))

    def to_dict(self) -> dict[str, Any]:
        """The document of docs/json.md: SI units, unrounded."""
        from gambrel.cost.documents import report_dict

        return report_dict(self)


class Model(ReadModel):
    """A language model, read from its config, that reports on devices.

    Devices are given as a Device or by name. `options` are the fields of gambrel.cost.report.Options.
    """

    def __repr__(self) -> str:
        dtypes = f"weights {self.reading.precision.weights_name}, KV {self.numerics.kv.name}"
        return f"<Model {self.name}: {self.reading.model_type}, {parameters(self.params_total)} parameters, {dtypes}>"

    def _repr_markdown_(self) -> str:
        from gambrel.show.inventory import params_tables
        from gambrel.show.tables import to_markdown

        return to_markdown(params_tables(self))

    def to_dict(self, context_tokens: int = 8192) -> dict[str, Any]:
        """The document of `gambrel params`; see docs/json.md."""
        from gambrel.cost.documents import params_dict

        return params_dict(self, context_tokens)

    def report(self, device: Device | str, **options: Any) -> Report:
        """Decode and prefill bounds, what fits, and the crossover batch."""
        return Report(**vars(build_report(self, _device(device), Options(**options))))

    def bound(self, step: Step, device: Device | str, tp: int = 1, expected: bool = False) -> Bound:
        """The step bound of one forward pass; `step` may hold grids."""
        device = _device(device)
        return step_bound(demand(self.operators(step, device, tp)), device, expected)

    def operators(self, step: Step, device: Device | str, tp: int = 1) -> list[Op]:
        """The operators of one forward pass on one of `tp` devices."""
        check_tp(self.arch, tp)
        return step_ops(self, _device(device), step, tp)

    def capacity(self, device: Device | str, **options: Any) -> Capacity:
        """The memory of the device, term by term."""
        return capacity(self, _device(device), Options(**options))

    def crossover(self, device: Device | str, context_tokens: int = 8192, **options: Any) -> Crossover:
        """At what batch decode is compute-bound, whether it fits, whether it exists."""
        return crossover(self, _device(device), context_tokens, self.capacity(device, **options))

    def request(self, device: Device | str, prompt_tokens: int, new_tokens: int, batch: int = 1, **rig: Any) -> Request:
        """Latency of whole requests; `rig` may hold tp, weights, efficiency."""
        from gambrel.cost.request import Rig, request

        return request(Rig(self, _device(device), **rig), prompt_tokens, new_tokens, batch)

    def serving(self, device: Device | str, prompt_tokens: int, batch: int, chunk_tokens: int, **rig: Any) -> Serving:
        """What continuous batching, chunked prefill and disaggregation gain."""
        from gambrel.cost.request import Rig, serving

        return serving(Rig(self, _device(device), **rig), prompt_tokens, batch, chunk_tokens)

    def roofline(self, device: Device | str, **options: Any) -> Chart:
        """The roofline chart; `options` are those of gambrel.cost.points.Marks."""
        from gambrel.cost.points import Marks, roofline_plot
        from gambrel.show.chart import roofline_chart

        return roofline_chart(roofline_plot(self, _device(device), Marks(**options)))


def _device(device: Device | str) -> Device:
    if not isinstance(device, str):
        return device
    from gambrel.hardware.catalogue import load_device

    return load_device(device)


def load_model(
    name: str,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    like: str = "",
) -> Model:
    """A model by file, folder, bundled name, Hugging Face cache or hub id, in that order; see Model.load."""
    return Model.load(name, weight_dtype, kv_dtype, compute_dtype, like)


def bundled_models() -> list[dict[str, Any]]:
    """The bundled models in numbers, with the source and date of each config."""
    from gambrel.model.sources import bundled, bundled_names

    return [_summary(bundled(name), load_model(name)) for name in bundled_names()]


def _summary(entry: dict[str, Any], model: Model) -> dict[str, Any]:
    return {
        "name": entry["name"],
        "hub_id": entry["hub_id"],
        "aliases": entry["aliases"],
        "family": model.reading.model_type,
        "params_total": model.params_total,
        "params_active": model.params_active,
        "weights": model.reading.precision.weights_name,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "max_context_tokens": model.arch.max_context,
        "source": entry["source"],
    }
