"""The house rules: which way imports point, what loads when, how long things are, and that numbers have a source."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gambrel

SRC = Path(gambrel.__file__).parent
MODULES = sorted(SRC.rglob("*.py"))

#: What each room may import when it loads or runs; docs/house.md draws it.
BASE = {"units", "values", "types"}
ALLOWED = {
    "units": set(),
    "values": set(),
    "types": {"units", "values"},
    "plots": {"values"},
    "model": BASE,
    "hardware": BASE,
    "cost": BASE | {"plots", "model", "hardware"},
    "show": BASE | {"plots"},
    "measure": BASE | {"plots", "hardware"},
    "api": BASE | {"plots", "model", "hardware", "cost", "measure", "show"},
    "__init__": {"api", "hardware", "types"},
    "__main__": {"cli"},
}
HEAVY = ("numpy", "torch", "altair", "vl_convert", "huggingface_hub", "httpx2", "asyncio", "rich", "pandas")
HEAVY += ("typing", "tomllib")


def room(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def runtime_imports(tree):
    """Imports that run, so not those under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for other in node.orelse:
                yield from runtime_imports(other)
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gambrel"):
            yield from ([node.module] if node.module != "gambrel" else [f"gambrel.{a.name}" for a in node.names])
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("gambrel"))
        yield from runtime_imports(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path):
    own = room(path)
    if own == "cli":
        return
    for name in runtime_imports(ast.parse(path.read_text())):
        target = name.split(".")[1] if "." in name else "__init__"
        assert target == own or target in ALLOWED[own], name


def test_nobody_imports_the_command_line():
    for path in MODULES:
        if room(path) not in ("cli", "__main__"):
            assert "gambrel.cli" not in set(runtime_imports(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "code",
    [
        "import gambrel",
        "from gambrel.cli import main; main(['report', 'llama-3-8b', '--device', 'h100-sxm'])",
        "from gambrel.cli import main; main(['report', 'llama-3-8b', '--device', 'h100-sxm', '--format', 'json'])",
    ],
)
def test_heavy_libraries_stay_out(code):
    """In a fresh process, since this one has them."""
    probe = f"import sys; {code}; print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {probe}"], **CAPTURED)
    assert done.stderr.strip() == "[]"


CAPTURED = {"capture_output": True, "text": True, "check": True}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_functions_fit_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            arguments = len(node.args.args) + len(node.args.kwonlyargs)
            assert length <= 60, f"{node.name} has {length} lines"
            assert arguments <= 8, f"{node.name} has {arguments} arguments"


UNITLESS = re.compile(r"(^|_)(time|latency|duration|bandwidth|memory|size|power|energy|rate|capacity)$")


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in ("types", "cost", "model")], ids=lambda p: p.name)
def test_quantities_carry_their_unit(path):
    """Fields of dataclasses: a name that ends in a quantity must go on to say its unit."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and "float" in ast.unparse(field.annotation):
                    assert not UNITLESS.search(field.target.id), f"{node.name}.{field.target.id}"


def test_no_model_is_told_by_its_name():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
                left = node.left
                assert not (isinstance(left, ast.Constant) and str(left.value).lower() in ("llama", "qwen", "gpt"))


def test_public_names_exist():
    for name in gambrel.__all__:
        assert getattr(gambrel, name) is not None
    with pytest.raises(AttributeError):
        _ = gambrel.nothing


# The catalogues ---------------------------------------------------------------------------------


def test_the_catalogue_is_made_of_its_toml_files():
    from gambrel.hardware.build import collect
    from gambrel.hardware.catalogue import catalogue

    assert catalogue() == collect(), "run python -m gambrel.hardware.build"


def test_the_index_is_made_of_the_family_modules():
    from gambrel.model.families.build import text

    written = (SRC / "model" / "families" / "index.py").read_text()
    assert written == text(), "run python -m gambrel.model.families.build"


def devices():
    from gambrel.hardware.catalogue import device_ids

    return device_ids()


@pytest.mark.parametrize("name", devices())
def test_every_number_of_a_device_has_a_source(name):
    device = gambrel.load_device(name)
    assert device.id == name
    assert device.figures
    for key, figure in device.figures.items():
        for each in (figure, *figure.also):
            origin = device.sources[each.source]
            assert origin["url"].startswith("https://"), key
            assert re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", str(origin["date"])), key
            assert isinstance(origin["checked"], bool), key


@pytest.mark.parametrize("name", devices())
def test_devices_are_plausible(name):
    """Units slip by powers of ten, and sparse peaks by two."""
    device = gambrel.load_device(name)
    assert 1e9 < device.mem_bytes < 1e13
    assert 5e10 < device.mem_bytes_per_s < 2e13
    assert all(1e11 < peak < 2e16 for peak in device.peak_flops_per_s.values())
    peaks = device.peak_flops_per_s
    if "bf16" in peaks and "fp8" in peaks:
        assert peaks["fp8"] <= 2.05 * peaks["bf16"]


def test_device_facts_agree_with_the_shared_table(shared):
    """The cross-check: bandwidth and bf16 within 10 % of the table, for the rows that name one device."""
    ours = {"H200 SXM": "h200", "H100 SXM": "h100-sxm", "A100 SXM 80": "a100-sxm-80gb", "L4": "l4", "L40S": "l40s"}
    ours |= {"MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x", "RTX 4090": "rtx-4090", "A30": "a30"}
    rows = [line.split("|") for line in (shared / "devices.md").read_text().splitlines() if line.startswith("| ")]
    found = 0
    for cells in rows:
        name = cells[1].strip()
        if name in ours:
            device = gambrel.load_device(ours[name])
            bf16, rate = float(cells[2].split("(")[0]), float(cells[6])
            assert device.peak("bf16") / 1e12 == pytest.approx(bf16, rel=0.1), name
            assert device.mem_bytes_per_s / 1e12 == pytest.approx(rate, rel=0.1), name
            found += 1
    assert found == len(ours)


def test_every_model_has_a_source():
    from gambrel.api import bundled_models

    rows = bundled_models()
    assert len(rows) >= 40
    for row in rows:
        assert row["source"]["url"].startswith("https://huggingface.co/")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["source"]["date"])
    names = [name for row in rows for name in (row["name"], *row["aliases"])]
    assert len(names) == len(set(names))


def test_bundled_models_leave_no_key_unread():
    for path in (SRC / "data" / "models").glob("*.json"):
        model = gambrel.load_model(path.stem)
        assert model.reading.unread == (), path.stem
        assert json.loads(path.read_text())["name"] == path.stem


def test_bundled_models_equal_the_shared_configs(shared):
    """A bundled model is the shared config of the same hub id, to the unit."""
    import csv

    from gambrel.api import bundled_models

    with (shared / "configs" / "truth.csv").open(newline="") as file:
        truth = {row["model_id"]: row for row in csv.DictReader(file) if row["status"] == "ok"}
    compared = 0
    for row in bundled_models():
        known = truth.get(row["hub_id"])
        if known and "ties" not in known["truth_note"] and "allocates" not in known["truth_note"]:
            assert str(row["params_total"]) == known["total_params"], row["name"]
            compared += 1
    assert compared > 30
