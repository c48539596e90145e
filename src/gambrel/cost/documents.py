"""The JSON documents: SI units, unrounded, versioned; docs/json.md says what each key means."""

from __future__ import annotations

from gambrel.cost.capacity import fit_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gambrel.cost.capacity import Capacity, Fit
    from gambrel.cost.compare import Comparison
    from gambrel.cost.crossover import Crossover
    from gambrel.cost.explain import Explanation
    from gambrel.cost.others import Line, Row, Setup
    from gambrel.cost.report import Report
    from gambrel.cost.request import Request, Rig, Serving
    from gambrel.cost.served import ServedBounds
    from gambrel.cost.training import Fleet, Rate, TrainingRun, Utilisation, Work
    from gambrel.cost.trainplan import Answer
    from gambrel.cost.verify import Verification
    from gambrel.measure.against import Difference
    from gambrel.measure.calibrate import Ceilings, Result
    from gambrel.measure.logs import Receipt
    from gambrel.measure.record import Measurement
    from gambrel.measure.results import ServingResult
    from gambrel.measure.run import Execution, Floor
    from gambrel.model.agreement import Agreement
    from gambrel.model.checkpoint import Checkpoint
    from gambrel.model.model import Model
    from gambrel.plots import Point, RooflinePlot
    from gambrel.types import Device, Step

#: Raised when a key changes its meaning or goes.
SCHEMA_VERSION = 1


def _document(schema: str, **content: Any) -> dict[str, Any]:
    return {"schema": f"gambrel.{schema}", "schema_version": SCHEMA_VERSION, **content}


def report_dict(report: Report) -> dict[str, Any]:
    """The report as one JSON document."""
    options = report.options
    return _document(
        "report",
        model=model_dict(report.model),
        device=device_dict(report.device, report.crossover.dtype),
        options=dict(vars(options)),
        decode=[dict(vars(row)) for row in report.decode],
        prefill=[dict(vars(row)) for row in report.prefill],
        capacity={
            **capacity_dict(report.capacity),
            "contexts": fit_rows(report.capacity, options.batches, options.contexts),
        },
        crossover=_crossing(report.crossover),
        fits_with_tp=report.fits_with_tp,
        ceilings=report.ceilings.id if report.ceilings else None,
    )


def _crossing(crossing: Crossover) -> dict[str, Any]:
    """The crossover in numbers; a limit that does not exist is null."""
    finite = {key: None if value == float("inf") else value for key, value in vars(crossing).items()}
    return {**finite, "exists": crossing.exists}


def model_dict(model: Model) -> dict[str, Any]:
    """What a model is, in numbers."""
    numerics = model.numerics
    return {
        "name": model.name,
        "source": model.source,
        "family": model.reading.model_type,
        "params_total": model.params_total,
        "params_gemm": model.params_gemm,
        "params_active": model.params_active,
        "params_embedding": model.params_embedding,
        "weight_bytes_resident": model.weight_bytes(),
        "weight_bytes_streamed": model.weight_bytes(streamed_only=True),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_bytes_per_token_reserved": model.kv_bytes_per_token_reserved,
        "fixed_state_bytes": model.fixed_state_bytes,
        "max_context_tokens": model.arch.max_context,
        "n_layers": model.arch.n_layers,
        "dtypes": {
            "weights": model.reading.precision.weights_name,
            "kv": numerics.kv.name,
            "activations": numerics.base.name,
        },
        "notes": list(model.reading.notes),
        "unread_keys": list(model.reading.unread),
    }


def device_dict(device: Device, dtype: str | None = None) -> dict[str, Any]:
    """What a device is, in numbers; the ridge in `dtype`, or in bf16 where the device has it."""
    ridges = {name: device.ridge(name) for name in device.peak_flops_per_s}
    chosen = dtype or ("bf16" if "bf16" in ridges else next(iter(ridges)))
    return {
        "id": device.id,
        "name": device.name,
        "peak_flops_per_s": dict(device.peak_flops_per_s),
        "mem_bytes": device.mem_bytes,
        "usable_bytes": device.usable_bytes,
        "mem_bytes_per_s": device.mem_bytes_per_s,
        "ridge_dtype": chosen,
        "ridge_flop_per_byte": ridges[chosen],
        "ridges_flop_per_byte": ridges,
        "link_bytes_per_s": device.link.bytes_per_s if device.link else None,
        "power_w": device.power_w,
        "changed": list(device.changed),
    }


def capacity_dict(room: Capacity) -> dict[str, Any]:
    """What fits, with every term."""
    return {
        "usable_bytes": room.usable_bytes,
        "utilization": room.utilization,
        "weight_bytes": room.weights_bytes,
        "reserve_bytes": room.reserve_bytes,
        "budget_bytes": room.budget_bytes,
        "tp": room.tp,
        "max_tokens_reserved": room.max_tokens(),
    }


def params_dict(model: Model, context_tokens: int) -> dict[str, Any]:
    """The document of `gambrel params`."""
    return _document(
        "params",
        **model_dict(model),
        breakdown=dict(model.params_by_group),
        context_tokens=context_tokens,
        state_bytes=model.state_bytes(context_tokens),
        state_bytes_reserved=model.state_bytes(context_tokens, reserved=True),
        tensors=_tensor_rows(model),
    )


def checkpoint_dict(model: Model, checkpoint: Checkpoint, agreement: Agreement) -> dict[str, Any]:
    """The document of `gambrel params --checkpoint`."""
    return _document(
        "checkpoint",
        model=model.name,
        model_source=model.source,
        checkpoint=agreement.source,
        kind=agreement.kind,
        agrees=agreement.agrees,
        parts=[row.to_dict() for row in agreement.rows],
        total=agreement.total.to_dict(),
        formats=list(agreement.formats),
        beside=list(agreement.beside),
        tensors=list(agreement.tensors),
        unknown=list(agreement.unknown),
        notes=[*model.reading.notes, *agreement.notes],
        metadata=dict(checkpoint.metadata),
    )


def _tensor_rows(model: Model) -> list[dict[str, Any]]:
    """Weight tensors merged by name and size."""
    rows: dict[tuple[str, str, int, int], dict[str, Any]] = {}
    for t in model.tensors:
        key = (t.name, t.group, t.params, t.stored_bytes)
        row = rows.setdefault(
            key, {"name": t.name, "group": t.group, "params": t.params, "stored_bytes": t.stored_bytes, "copies": 0}
        )
        row["copies"] += t.copies
    return list(rows.values())


def ops_dict(name: str, device: Device | None, step: Step, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of `gambrel ops`."""
    keys = ("batch", "new_tokens", "context_tokens", "causal", "logits", "source_tokens", "media_tokens")
    shape = {key: getattr(step, key) for key in keys}
    return _document("ops", model=name, device=device.id if device else None, step=shape, ops=list(rows))


def explain_dict(explanation: Explanation) -> dict[str, Any]:
    """The document of `--explain`."""
    return _document("explain", **vars(explanation))


def verify_dict(result: Verification) -> dict[str, Any]:
    """The document of `gambrel verify`."""
    return _document(
        "verify",
        model=result.model_name,
        equal=result.equal,
        params_analytic=result.params_analytic,
        params_traced=result.params_traced,
        rows=[dict(row) for row in result.rows],
    )


def plot_dict(plot: RooflinePlot) -> dict[str, Any]:
    """The document of `gambrel roofline`."""
    roofs = [{**vars(roof), "ridge_flop_per_byte": roof.ridge_flop_per_byte} for roof in plot.roofs]
    points = [_point(point) for point in plot.points]
    return _document("roofline", title=plot.title, subtitle=plot.subtitle, roofs=roofs, points=points)


def _point(point: Point) -> dict[str, Any]:
    return {key: value for key, value in vars(point).items() if key not in ("path", "hollow")}


def crossover_dict(reports: Sequence[Report]) -> dict[str, Any]:
    """The document of `gambrel crossover`."""
    first = reports[0]
    rows = [_crossing(report.crossover) for report in reports]
    return _document("crossover", model=first.model.name, device=first.device.id, crossover=rows)


def fit_dict(fit: Fit) -> dict[str, Any]:
    """The document of `gambrel fit`."""
    return _document(
        "fit",
        model=fit.model_name,
        device=fit.device_id,
        max_context_tokens=fit.max_context,
        kv_bytes_per_token=fit.kv_bytes_per_token,
        **capacity_dict(fit.room),
        contexts=fit.rows,
        batches=fit.longest,
    )


def request_dict(rig: Rig, one: Request, gains: Serving, room: Capacity) -> dict[str, Any]:
    """The document of `gambrel request`."""
    longest = rig.model.arch.max_context
    return _document(
        "request",
        model=rig.model.name,
        device=rig.device.id,
        weights=rig.weights,
        tp=rig.tp,
        request={
            **vars(one),
            "total_s": one.total_s,
            "decode_share": one.decode_share,
            "context_tokens": one.context_tokens,
            "missing_bytes": max(room.missing_bytes(one.batch, one.context_tokens), 0),
            "fits": room.fits(one.batch, one.context_tokens),
            "beyond_max_context": longest is not None and one.context_tokens > longest,
        },
        serving=dict(vars(gains)),
    )


def compare_dict(result: Comparison) -> dict[str, Any]:
    """The document of `gambrel compare`."""
    return _document(
        "compare",
        model=result.model_name,
        device=result.device_id,
        batch=result.step.batch,
        new_tokens=result.step.new_tokens,
        context_tokens=result.step.context_tokens,
        tp=result.tp,
        measured_s=result.measured_s,
        bound_s=result.bound_s,
        fraction=result.fraction,
        ceilings=result.ceilings,
        measured_ceiling_s=result.measured_ceiling_s,
        binding=result.binding,
        weight_bytes=result.weight_bytes,
        kv_bytes=result.kv_bytes,
        fault=result.fault,
        parts=[dict(vars(part)) for part in result.parts],
        suggestions=[dict(vars(suggestion)) for suggestion in result.suggestions],
    )


def results_dict(setup: Setup, rows: Sequence[Row], results: Sequence[ServingResult]) -> dict[str, Any]:
    """The document of `gambrel compare --file` for a result file of a benchmark tool."""
    runs = [{"run": index, **result.to_dict()} for index, result in enumerate(results, 1)]
    for run in runs:
        run.pop("not_comparable")  # said in the rows
    return _document(
        "compare_results",
        model=setup.model.name,
        device=setup.device.id,
        tp=setup.tp,
        rows=[{**vars(row), "fraction": row.fraction} for row in rows],
        runs=runs,
    )


def receipt_dict(setup: Setup, lines: Sequence[Line], receipt: Receipt) -> dict[str, Any]:
    """The document of `gambrel compare --file` for an engine's log."""
    told = {**vars(receipt), "notes": list(receipt.notes)}
    told["lines"] = [{"line": number, "text": text} for number, text in receipt.lines]
    return _document(
        "compare_receipt",
        model=setup.model.name,
        device=setup.device.id,
        tp=receipt.tp or setup.tp,
        utilization=setup.room.utilization,
        rows=[dict(vars(line)) for line in lines],
        receipt=told,
    )


def calibrate_dict(ceilings: Ceilings, path: str, datasheet: Device | None) -> dict[str, Any]:
    """The document of `gambrel calibrate`."""
    return _document(
        "calibrate",
        file=path,
        device=ceilings.device,
        datasheet=datasheet.id if datasheet else None,
        busy=ceilings.busy,
        notes=list(ceilings.notes),
        left_out=list(ceilings.left_out),
        ceilings=[_ceiling(name, result, datasheet) for name, result in ceilings.chosen.items()],
        results=[
            {**result.to_dict(), "values_s": list(result.timing.values_s), "warmups_s": list(result.timing.warmups_s)}
            for result in ceilings.results
        ],
        metadata=dict(ceilings.metadata),
    )


def _ceiling(name: str, result: Result, datasheet: Device | None) -> dict[str, Any]:
    """One ceiling beside the datasheet's figure, null where it has none."""
    figure = None
    if datasheet and result.kind == "product":
        figure = datasheet.peak_flops_per_s.get(name)
    elif datasheet and result.kind in ("read", "copy"):
        figure = datasheet.mem_bytes_per_s
    keys = ("kind", "kernel", "dtype", "shape", "threads", "rate", "median_s", "spread", "busy")
    shown = {key: value for key, value in result.to_dict().items() if key in keys}
    return {"name": name, **shown, "datasheet": figure, "of_datasheet": result.rate / figure if figure else None}


def run_row(run: Measurement) -> dict[str, Any]:
    """What a list of runs says of one; null where a record without values has no median."""
    some = bool(run.values_s)
    known = run.metadata
    return {
        "id": run.id,
        "name": run.name,
        "median_s": run.median_s if some else None,
        "spread": run.spread if some else None,
        "repeats": len(run.values_s),
        "device": known.get("device"),
        "machine": known.get("machine"),
        "busy": known.get("busy"),
        "started_at": known.get("started_at"),
    }


def run_dict(run: Measurement) -> dict[str, Any]:
    """One run with everything known of it."""
    return {**run_row(run), **run.to_dict()}


def runs_dict(path: str, rows: Sequence[dict[str, Any]], unreadable: Sequence[str]) -> dict[str, Any]:
    """The document of `gambrel runs`."""
    return _document("runs", file=path, runs=list(rows), unreadable=list(unreadable))


def difference_rows(difference: Difference) -> list[dict[str, Any]]:
    """The two runs with their quartiles."""
    return [
        {**run_row(run), "quartile_1_s": run.quartiles_s[0], "quartile_3_s": run.quartiles_s[1]}
        for run in (difference.one, difference.other)
    ]


def difference_dict(path: str, difference: Difference) -> dict[str, Any]:
    """The document of `gambrel runs ID ID`."""
    keys = ("ratio", "low", "high", "significant", "verdict", "busy")
    found = {key: getattr(difference, key) for key in keys}
    return _document(
        "runs",
        file=path,
        runs=difference_rows(difference),
        difference={**found, "differing": list(difference.differing)},
    )


def execution_dict(done: Execution, floors: Mapping[str, Floor], hardware: Device | None) -> dict[str, Any]:
    """The document of `gambrel run`: what was timed beside its floors, by phase, and what limits it."""
    known = done.records[0].metadata
    keys = ("layers", "layers_total", "params_total", "dtype", "threads", "machine", "device")
    return _document(
        "run",
        model=known["model"],
        **{key: known[key] for key in keys},
        hardware=hardware.id if hardware else None,
        ceilings=done.ceilings,
        file=done.file,
        busy=any(record.metadata["busy"] for record in done.records),
        notes=list(done.notes),
        runs=[dict(vars(row)) for row in done.rows(floors)],
        verdicts=[
            {
                "phase": each.phase,
                "limit": each.verdict.limit,
                "verdict": each.verdict.word,
                "other": each.other or None,
                "gain": each.gain,
                "evidence": each.verdict.evidence,
            }
            for each in done.judged(floors)
        ],
    )


def probe_dict(
    measured: Mapping[str, Any], known: tuple[Model, Device] | None, bounds: Sequence[ServedBounds | None]
) -> dict[str, Any]:
    """The document of `gambrel probe`: what was measured, each level beside its bounds."""
    levels = [
        {**level, "bound": None if bound is None else {**vars(bound), "errors": list(bound.errors)}}
        for level, bound in zip(measured["levels"], bounds, strict=True)
    ]
    model, device = (known[0].name, known[1].id) if known else (None, None)
    return _document("probe", model=model, device=device, **{**measured, "levels": levels})


def models_dict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of `gambrel models`."""
    return _document("models", models=list(rows))


def devices_dict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of `gambrel devices`."""
    return _document("devices", devices=list(rows))


def work_dict(work: Work) -> dict[str, Any]:
    """What is trained on: keys that every training document has."""
    keys = ("seq_tokens", "doc_tokens", "mtp", "attention")
    return {key: getattr(work, key) for key in keys}


def mfu_dict(work: Work, rate: Rate, found: Sequence[Utilisation]) -> dict[str, Any]:
    """The document of `gambrel mfu`."""
    return _document(
        "mfu",
        model=work.model.name,
        device=rate.device_id,
        dtype=rate.dtype,
        peak_flops_per_s=rate.peak_flops_per_s,
        tokens_per_s_per_device=rate.tokens_per_s,
        params_active=work.model.params_active,
        **work_dict(work),
        utilisation=[dict(vars(row)) for row in found],
    )


def train_dict(work: Work, fleet: Fleet, runs: Sequence[TrainingRun], about: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `gambrel train`; `about` holds device, dtype, recomputation and the optimum as information."""
    return _document(
        "train",
        model=work.model.name,
        params_active=work.model.params_active,
        **about,
        **vars(fleet),
        **work_dict(work),
        runs=[dict(vars(run)) for run in runs],
    )


def memory_dict(answer: Answer) -> dict[str, Any]:
    """The document of `gambrel memory`."""
    plan, found, step = answer.plan, answer.footprint, answer.step
    layout = {**vars(plan.layout), "devices": plan.layout.devices}
    return _document(
        "memory",
        model=plan.model.name,
        device=answer.device.id,
        dtype=answer.dtype,
        seq_tokens=plan.seq_tokens,
        micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches,
        layout=layout,
        zero=plan.zero,
        recompute=plan.recompute.name,
        optimizer={"name": plan.optimizer.name, "source": plan.optimizer.source},
        attention=plan.attention,
        kernels=plan.kernels,
        lora_rank=plan.adapter.rank if plan.adapter else None,
        qlora=bool(plan.adapter and plan.adapter.quantised),
        chunked_loss=plan.chunked_loss,
        memory={**vars(found), "total_bytes": found.total_bytes},
        usable_bytes=answer.device.usable_bytes,
        utilization=answer.utilization,
        fits=answer.fits,
        largest_micro_batch=answer.largest,
        changes=[dict(vars(change)) for change in answer.changes],
        layers=[dict(row) for row in answer.layers],
        estimated_parts=list(answer.estimated),
        traffic=[dict(row) for row in answer.traffic],
        step={**vars(step), "limits_s": dict(step.limits_s), "binding": step.binding},
    )
