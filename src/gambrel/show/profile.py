"""A profiled trace for people: the answer, the time line, layers, groups, operators, ranges."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gambrel.measure.profile import Profile
    from gambrel.show.text import Page

#: Rows of operators and ranges in the text; JSON has all.
SHOWN = 20
WORDS = {
    "gemm": "GEMM",
    "attention": "attention",
    "elementwise": "element-wise",
    "reduction": "reduction",
    "movement": "data movement",
    "communication": "communication",
    "other": "other",
}
COSTS = (
    Column("time_s", "time", "time"),
    Column("share", "share", "share"),
    Column("flops_text", "FLOPs"),
    Column("moved_bytes", "bytes", "size"),
    Column("intensity_flop_per_byte", "FLOP/B", "ratio"),
    Column("flops_per_s", "achieved", "rate"),
    Column("bytes_per_s", "and", "bandwidth"),
)
ROOF = (Column("roof_fraction", "of roof", "share"),)
KNOWN = (Column("known_share", "known", "share"),)


def answer(found: Profile) -> str:
    """The answer first: what a layer has and how busy the device is; what takes the time, and what is missing."""
    if found.kind == "ranges":
        first = found.ranges[0]
        longest = units.duration(max(first["host_s"], first["device_s"]))
        return (
            f"The trace has {len(found.ranges)} kinds of ranges, the longest {first['name']!r} with {longest}. "
            "It has no kernels, so nothing can be attributed to operators or layers."
        )
    return f"{_layer_sentence(found)} {_time_sentence(found)}"


def _layer_sentence(found: Profile) -> str:
    busy = f"{found.busy_share:.1%}" if found.busy_share is not None else "all"
    who = "Operators run" if found.kind == "cpu" else "Kernels run"
    where = f" on {len(found.spans)} devices" if len(found.spans) > 1 else ""
    busy_text = f"{who} {busy} of {units.duration(found.span_s)}{where}"
    if not found.layers:
        return f"{busy_text}; no layers are told."
    row = found.layers[0]
    phase = f" in {row['phase']}" if row["phase"] != "unknown" else ""
    things = "operators" if found.kind == "cpu" else "device activities"
    kernels = (
        f" ({row['kernels_per_layer']} kernels)"
        if found.kind != "cpu" and row["kernels_per_layer"] != row["activities_per_layer"]
        else ""
    )
    many = f"{row['activities_per_layer']} {things}{kernels}"
    return (
        f"Each of {row['layers']} layers ({row['layer']}) has {many}{phase} and takes "
        f"{units.duration(row['time_per_layer_s'])}; {busy_text[0].lower()}{busy_text[1:]}."
    )


def _time_sentence(found: Profile) -> str:
    phase = found.phases[0]
    groups = [row for row in found.groups if row["phase"] == phase["phase"]][:3]
    told = ", ".join(f"{WORDS[row['role']]} {row['share']:.0%}" for row in groups if row["share"] is not None)
    named = "the time" if phase["phase"] == "unknown" else f"{phase['phase']}'s time"
    counts = found.counts
    lost = (
        f"; {units.count(counts['unlaunched_kernels'])} of {units.count(counts['kernels'])} kernels have no launch in "
        "the window"
    )
    return f"Of {named} {told or 'nothing is known'}{lost if counts['unlaunched_kernels'] else ''}."


def facts(found: Profile) -> list[tuple[str, str]]:
    """What was found, as name and value."""
    counts = found.counts
    pairs = [
        ("trace", found.source),
        ("recorded on", ", ".join(dict.fromkeys(found.gpus)) or "not told"),
        (
            "found",
            f"{units.count(counts['kernels'])} kernels, {units.count(counts['copies'])} copies and fills, "
            f"{units.count(counts['launches'])} launches of {units.count(counts['events'])} events",
        ),
    ]
    if found.kind == "cpu":
        pairs[-1] = ("found", f"{units.count(counts['operators'])} operators of {units.count(counts['events'])} events")
    if found.device is not None:
        dtype = (
            found.dtype if found.dtype in found.device.peak_flops_per_s else next(iter(found.device.peak_flops_per_s))
        )
        peak = units.si(found.device.peak(dtype), "FLOP/s")
        pairs.append(("roof", f"{found.device.name}: {peak} {dtype}, {units.si(found.device.mem_bytes_per_s, 'B/s')}"))
    return pairs


def tables(found: Profile) -> list[Table]:
    """The tables of the report: devices, layers, groups within a layer, groups, operators, ranges."""
    roof = ROOF if found.device is not None else ()
    result = []
    if found.spans:
        result.append(_devices_table(found))
    if found.layers:
        result.append(_layers_table(found, roof))
        result.append(_layer_groups_table(found, roof))
    if found.groups:
        result.append(_groups_table(found, roof))
        result.append(_operators_table(found, roof))
    if found.ranges:
        result.append(_ranges_table(found))
    return result


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """With FLOPs in words: those of products, or in brackets those of vectors."""
    flops, vector = row["flops"], row["vector_flops"]
    text = units.si(flops, "FLOP") if flops else f"({units.si(vector, 'FLOP')})" if vector else "-"
    return {**row, "flops_text": text, "group": WORDS.get(row.get("role", ""), "")}


def _devices_table(found: Profile) -> Table:
    columns = (
        Column("device", "device"),
        Column("kernels", "operators" if found.kind == "cpu" else "kernels", "count"),
        Column("span_s", "span", "time"),
        Column("busy_s", "busy", "time"),
        Column("busy_share", "busy share", "share"),
        Column("active_share", "with copies", "share"),
        Column("gaps", "gaps", "count"),
        Column("gap_s", "idle", "time"),
        Column("gap_median_s", "median", "time"),
        Column("gap_longest_s", "longest", "time"),
        Column("launch_gap_s", "for launches", "time"),
    )
    caption = (
        "Span: first to last activity; busy: in kernels, overlaps once; for launches: idle, its launch not returned."
    )
    return Table("devices", "Time line", columns, [span.to_dict() for span in found.spans], caption)


def _layers_table(found: Profile, roof: tuple[Column, ...]) -> Table:
    columns = (
        Column("layer", "layer"),
        Column("phase", "phase"),
        Column("layers", "layers", "count"),
        Column("calls", "calls", "count"),
        Column("activities_per_layer", "activities", "count"),
        Column("kernels_per_layer", "kernels", "count"),
        Column("time_per_layer_s", "time each", "time"),
        *COSTS[1:],
        *roof,
    )
    uneven = [row["layer"] for row in found.layers if row["activities_least"] != row["activities_most"]]
    caption = "Activities and kernels of one call of one layer, the most common number."
    if uneven:
        caption += f" Not every call has the same: {', '.join(dict.fromkeys(uneven))}."
    return Table("layers", "Layers", columns, [_told(row) for row in found.layers], caption)


def _layer_groups_table(found: Profile, roof: tuple[Column, ...]) -> Table:
    columns = (
        Column("layer", "layer"),
        Column("phase", "phase"),
        Column("group", "group"),
        Column("count_per_layer", "count", "ratio"),
        Column("time_per_layer_s", "time", "time"),
        *COSTS[1:],
        *roof,
        *KNOWN,
    )
    caption = "Count and time of one layer on average; share of the phase's time; FLOPs and bytes of all layers."
    return Table("layer_groups", "One layer", columns, [_told(row) for row in found.layer_groups], caption)


def _groups_table(found: Profile, roof: tuple[Column, ...]) -> Table:
    columns = (
        Column("phase", "phase"),
        Column("group", "group"),
        Column("count", "count", "count"),
        *COSTS,
        *roof,
        *KNOWN,
    )
    caption = (
        "FLOPs of products from shapes, in brackets one for each element of other operators; rates and fractions over "
        "the time of those whose shapes are known (known)."
    )
    return Table("groups", "Groups", columns, [_told(row) for row in found.groups], caption)


def _operators_table(found: Profile, roof: tuple[Column, ...]) -> Table:
    columns = (
        Column("phase", "phase"),
        Column("label", "operator"),
        Column("group", "group"),
        Column("dtype", "dtype"),
        Column("count", "x", "count"),
        *COSTS,
        *roof,
    )
    rows = sorted(found.operators, key=lambda row: -row["time_s"])[:SHOWN]
    more = len(found.operators) - len(rows)
    caption = f"The {len(rows)} that take longest; {more} more in --format json." if more > 0 else ""
    return Table(
        "operators", "Operators", columns, [{**_told(row), "label": row["label"][:36]} for row in rows], caption
    )


def _ranges_table(found: Profile) -> Table:
    columns = (
        Column("name", "range"),
        Column("count", "x", "count"),
        Column("host_s", "on the host", "time"),
        Column("device_s", "on the device", "time"),
    )
    rows = [{**row, "name": row["name"][:60]} for row in found.ranges[:SHOWN]]
    return Table("ranges", "Ranges", columns, rows, "Nested ranges count in each.")


def print_profile(found: Profile, page: Page | None = None) -> None:
    """The answer, the facts, the tables, the notes."""
    from gambrel.show.text import Page

    page = page or Page()
    page.paragraph(answer(found), "bold")
    page.line()
    page.pairs(facts(found))
    page.tables(tables(found))
    for note in found.notes:
        page.paragraph(f"note: {note}", "warn", indent=6)
