"""The pages say what the tool does: keys of the JSON, commands, output, examples, tables and links are all tried.

A page may hold, in fences: `sh` with commands (one that needs something says `# needs …`), `console` with a command
after `$ ` and lines of its output, in order, `python` that runs from top to bottom, and any language with a
title="file" that is written beside them first.
"""

from __future__ import annotations

import doctest
import json
import re
import runpy
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import endpoints
import pytest

import gambrel
from gambrel.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FIRST_CELL = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def blocks(page, language):
    return [text for kind, _, text in FENCE.findall(page.read_text()) if kind == language]


@pytest.fixture
def beside(page, tmp_path, monkeypatch):
    """An empty folder with the files that the page shows, and a config.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("config.json").write_text(json.dumps(gambrel.load_model("llama-3-8b").config))
    for _, title, text in FENCE.findall(page.read_text()):
        if title:
            Path(title).write_text(text)


@pytest.fixture
def run(capsys):
    """Runs one command line in this process: its output, after checking that it went well."""

    def call(line):
        arguments = shlex.split(line, comments=True)
        end = next((i for i, word in enumerate(arguments) if word in ("|", ">", "&&")), None)
        capsys.readouterr()
        assert main(arguments[1:end]) == 0, line
        return capsys.readouterr().out

    return call


# Commands, output and examples ------------------------------------------------------------------


def commands(page):
    for text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("gambrel ") and "# needs " not in line:
                yield line


@pytest.mark.parametrize(
    ("page", "line"), [pytest.param(p, line, id=f"{p.name}: {line}") for p in PAGES for line in commands(p)]
)
def test_commands_run(page, line, beside, run):
    assert run(line)


SHOWN = [(page, text) for page in PAGES for text in blocks(page, "console")]


@pytest.mark.parametrize(("page", "text"), SHOWN, ids=[f"{p.name}: {t.splitlines()[0]}" for p, t in SHOWN])
def test_output_is_as_shown(page, text, beside, run):
    """Lines of the output may be left out, those that are there stand in this order."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = part.rstrip("\n").splitlines()
        printed = run(line)
        rest = iter(printed.splitlines())
        missing = [want for want in shown if want and want != "…" and want not in rest]
        assert missing == [], f"{line} prints\n{printed}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_examples_run(page, beside):
    """From top to bottom in one namespace; lines with >>> print what is shown below them."""
    if any("numpy" in text for text in blocks(page, "python")):
        pytest.importorskip("numpy")
    names = {"__name__": "__main__"}
    for number, text in enumerate(blocks(page, "python"), 1):
        title = f"{page.name}, example {number}"
        if ">>> " not in text:
            exec(compile(text, title, "exec"), names)
            continue
        example = doctest.DocTestParser().get_doctest(text, names, title, str(page), 0)
        told = []
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=told.append, clear_globs=False)
        names = example.globs
        assert not told, "".join(told)


# Keys of the JSON -------------------------------------------------------------------------------

MODELS = ("llama-3-8b", "qwen3-30b-a3b")
DEVICE = ("--device", "h200")
#: By section of docs/json.md, the command lines that together print all its keys.
DOCUMENTS = {
    "report": [("report", model, *DEVICE) for model in MODELS],
    "params": [("params", model) for model in MODELS],
    "ops": [("ops", model, *options) for model in MODELS for options in (DEVICE, ())],
    "verify": [("verify", "gpt2", "--prefill", "8")],
    "roofline": [("roofline", model, *DEVICE, "--versus", "a100-80gb", "-o", "x.json") for model in MODELS],
    "crossover": [("crossover", model, *DEVICE) for model in MODELS],
    "fit": [("fit", model, *DEVICE) for model in MODELS],
    "request": [("request", model, *DEVICE) for model in MODELS],
    "compare": [("compare", model, *DEVICE, "--measured", "100ms") for model in MODELS],
    "compare --file RESULTS": [("compare", "llama-3-8b", *DEVICE, "--file", "result.json")],
    "compare --file LOG": [("compare", "llama-3-8b", *DEVICE, "--file", "server.log")],
    "mfu": [("mfu", model, *DEVICE, "--tokens-per-s-per-device", "100") for model in MODELS],
    "train": [("train", model, "--tokens", "1T", "--devices", "8xh200") for model in MODELS],
    "memory": [
        ("memory", "llama-3-8b", *DEVICE, "--dp=2"),
        ("memory", "qwen3-30b-a3b", *DEVICE, "--dp=16", "--ep=2", "--pp=2", "--micro-batches=4", "--network=50GB/s"),
    ],
    "run": [
        ("run", "tiny.json", "--quick", "--engine=torch", "--prompt=8", "--context=8", "--file=x.jsonl", "--counters")
    ],
    "calibrate": [("calibrate", "--device=cpu", "--quick", "--datasheet=cpu-epyc-9654", "-o", "x.toml")],
    "runs": [("runs", "--file", "runs.jsonl")],
    "runs ID": [("runs", "a1", "--file", "runs.jsonl")],
    "runs ID ID": [("runs", "a1", "b2", "--file", "runs.jsonl")],
    "probe": [("probe", "URL", "--input=100", "--output=5", "--requests=4", "--no-record", "--model=gpt2", *DEVICE)],
    "profile": [("profile", "--trace", "trace.json", "--device", "h100-sxm")],
    "models": [("models",)],
    "devices": [("devices",)],
    "devices DEVICE": [("devices", "h100-sxm")],
    "--explain": [(command, "llama-3-8b", *DEVICE, "--explain", "flops") for command in ("report", "fit", "crossover")],
}


def paths(value, at=""):
    """The path of every leaf: a.b for objects, a[] for a list of objects."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from paths(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for inner in value:
            yield from paths(inner, f"{at}[]")
    else:
        yield at


def documented():
    sections = re.split(r"^## `?([^`\n]+)`?$", (DOCS / "json.md").read_text(), flags=re.MULTILINE)
    return {name: FIRST_CELL.findall(text) for name, text in zip(sections[1::2], sections[2::2], strict=True)}


def stands_for(key, path):
    """Whether a documented key is this path; <anything> stands for one key."""
    pattern = re.sub(r"<\w+>", r"[^.\\[\\]]+", re.escape(key).replace(r"\<", "<").replace(r"\>", ">"))
    return re.fullmatch(pattern, path) is not None


def test_every_document_has_a_section():
    assert {name for name, keys in documented().items() if keys} == set(DOCUMENTS)
    assert {lines[0][0] for lines in DOCUMENTS.values()} == set(COMMANDS)


@pytest.fixture
def served(section):
    """The address that URL stands for: a stub server whose every fourth request fails, with metrics of its own."""
    if section != "probe":
        yield "no server"
        return
    pytest.importorskip("httpx2", reason="needs httpx2 (pip install gambrel[probe])")
    with endpoints.serve(endpoints.partly, endpoints.METRICS) as server:
        yield server.url


@pytest.mark.parametrize("section", DOCUMENTS)
@pytest.mark.parametrize("page", [DOCS / "json.md"], ids=[""])
def test_every_key_is_documented_and_exists(section, page, beside, served, run):
    if section in ("verify", "run"):
        pytest.importorskip("torch", reason="needs CPU PyTorch (pip install gambrel[oracle])")
        pytest.importorskip("transformers", reason="needs transformers (pip install gambrel[oracle])")
    if section == "calibrate":
        pytest.importorskip("torch", reason="needs PyTorch (pip install gambrel[torch])")
    printed = set()
    for line in DOCUMENTS[section]:
        line = [served if word == "URL" else word for word in line]
        printed.update(paths(json.loads(run(shlex.join(["gambrel", *line, "--format", "json"])))))
    keys = documented()[section]
    assert len(keys) == len(set(keys))
    assert sorted(path for path in printed if not any(stands_for(key, path) for key in keys)) == []
    assert sorted(key for key in keys if not any(stands_for(key, path) for path in printed)) == []


# Tables and links -------------------------------------------------------------------------------


def cells(page, heading):
    """The rows of the first table below a heading."""
    text = (DOCS / page).read_text().split(f"\n## {heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


FAMILIES = re.compile(r"(?<=<!-- written by python tests/test_docs.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def family_list():
    """Every model type, by the module that has it."""
    from gambrel.model import families

    for module in (import_module(f"gambrel.model.families.{name}") for name in families.MODULES):
        tables = (getattr(module, name, {}) for name in ("FAMILIES", "NESTED", "CUSTOM"))
        types = ", ".join(f"`{name}`" for name in sorted({name for table in tables for name in table}))
        entry = f"* **{module.__doc__.splitlines()[0].rstrip('.')}**: {types}."
        yield "\n".join(textwrap.wrap(entry, 118, subsequent_indent="  ", break_on_hyphens=False))


def test_every_family_is_listed():
    from gambrel.model.families import known

    text = (DOCS / "models.md").read_text()
    assert FAMILIES.search(text)[0] == "\n".join([*family_list(), ""]), "run python tests/test_docs.py"
    assert {row[0] for row in cells("models.md", "Families")} <= set(known())


def test_every_format_is_listed():
    from gambrel.model.precision import FORMATS, KV_FORMATS

    told = {row[0]: row[1:] for row in cells("precision.md", "Formats")}
    assert told.keys() == FORMATS.keys()
    for name, fmt in FORMATS.items():
        bits, _, compute, kv = told[name]
        assert float(bits) == 8 * fmt.element_bytes
        assert compute == {"base": "base dtype"}.get(fmt.compute, fmt.compute)
        assert (kv == "yes") == (name in KV_FORMATS)


def test_every_method_is_listed():
    from gambrel.model.quantized import METHODS

    told = cells("precision.md", "Quantised checkpoints")
    assert {name.strip("` ") for row in told for name in row[0].split(",")} == METHODS.keys()


def test_every_explanation_is_shown():
    from gambrel.cost.explain import EXPLANATIONS

    assert {*re.findall(r"--explain (\w+)$", (DOCS / "numbers.md").read_text(), re.MULTILINE)} == EXPLANATIONS.keys()


def test_rooms_are_as_drawn():
    allowed = runpy.run_path(str(ROOT / "tests" / "rules" / "test_house.py"))["ALLOWED"]
    told = {
        row[0]: set(re.findall(r"\w+", row[1])) - {"nothing"} for row in cells("house.md", "Which way imports point")
    }
    assert told == allowed


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_index_lists_every_page():
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text())
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md")


if __name__ == "__main__":
    models = DOCS / "models.md"
    models.write_text(FAMILIES.sub("\n".join([*family_list(), ""]), models.read_text()))
