"""The README keeps its word: its commands exist, its example is what the tool prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gambrel.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def gambrel_lines():
    lines = [line for block in SHELL for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("gambrel ")]


def test_the_two_commands_come_first():
    report, tests = (block.strip() for block in SHELL[:2])
    for command in (report, tests):
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert report.endswith(".venv/bin/gambrel report llama-3-8b --device h100-sxm")
    assert tests.endswith(".venv/bin/pytest")


def test_the_example_is_what_the_tool_prints(capsys):
    main(["report", "llama-3-8b", "--device", "h100-sxm"])
    assert f"```text\n{capsys.readouterr().out.rstrip()}\n```" in README


@pytest.mark.parametrize("arguments", gambrel_lines(), ids=" ".join)
def test_commands_run(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if arguments[1:2] == ["./config.json"]:
        import json

        import gambrel

        (tmp_path / "config.json").write_text(json.dumps(gambrel.load_model("qwen3-8b").config))
    assert main(arguments) == 0
    assert capsys.readouterr().out


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_python_example():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
