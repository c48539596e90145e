"""Records of runs: whole or not at all, and what may be compared."""

from __future__ import annotations

import json

import pytest

from gambrel.cli import main
from gambrel.measure import record
from gambrel.measure.against import against
from gambrel.measure.record import Measurement, RecordError, append, read_all

FACTS = {
    "machine": "abc",
    "device": "a card",
    "dtype": "bf16",
    "phase": "decode",
    "batch": 1,
    "context_tokens": 512,
    "new_tokens": 1,
    "model": "gpt2",
    "busy": False,
    "started_at": "2026-11-30T00:00:00Z",
    "versions": {"torch": "2.13.0"},
}
FAST = tuple(0.010 + 1e-5 * i for i in range(9))
SLOW = tuple(0.012 + 1e-5 * i for i in range(9))


def run(run_id, values_s=FAST, **facts):
    return Measurement(run_id, f"gpt2 decode {run_id}", values_s, (0.05,), {**FACTS, **facts})


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("GAMBREL_DATA", str(tmp_path))
    return tmp_path / "runs.jsonl"


def test_none_yet(store, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs yet\n"
    assert main(["runs", "last"]) == 2
    assert "none yet" in capsys.readouterr().err


def test_list_and_show(store, capsys):
    append(run("one"))
    append(run("two", SLOW, busy=True))
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "2 runs" in out
    assert "12.0 ms" in out
    assert main(["runs", "two"]) == 0
    out = capsys.readouterr().out
    assert "machine was busy" in out
    assert "versions.torch" in out
    assert "9 repetitions after 1 warm-ups" in out
    assert main(["runs", "last", "--format", "json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["runs"]
    assert shown["values_s"] == list(SLOW)
    assert shown["metadata"]["versions"] == {"torch": "2.13.0"}
    for kind in ("csv", "markdown"):
        for ids in ([], ["one"], ["one", "two"]):
            assert main(["runs", *ids, "--format", kind]) == 0
            assert capsys.readouterr().out


def test_compare_says_what_chance_explains(store, capsys):
    for name, values in (("one", FAST), ("same", FAST[::-1]), ("slow", SLOW), ("short", (0.01,))):
        append(run(name, values))
    assert main(["runs", "one", "slow", "--format", "json"]) == 0
    difference = json.loads(capsys.readouterr().out)["difference"]
    assert difference["significant"] is True
    assert difference["low"] <= difference["ratio"] <= difference["high"]
    assert difference["ratio"] == pytest.approx(SLOW[4] / FAST[4])
    main(["runs", "one", "slow"])
    assert "the second is slower, beyond chance" in " ".join(capsys.readouterr().out.split())
    main(["runs", "one", "same"])
    assert "no difference that chance does not explain" in " ".join(capsys.readouterr().out.split())
    main(["runs", "one", "short"])
    assert "too few repetitions" in capsys.readouterr().out
    assert against(run("a"), run("b", SLOW)).verdict == against(run("a"), run("b", SLOW)).verdict


def test_what_is_not_comparable_is_refused(store, capsys):
    append(run("one"))
    append(run("other", SLOW, dtype="fp32", batch=8))
    assert main(["runs", "one", "other"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "dtype is 'bf16' and 'fp32'" in err
    assert "batch is 1 and 8" in err
    assert main(["runs", "one", "other", "--force"]) == 0
    assert "not comparable, they differ in dtype, batch" in capsys.readouterr().out
    assert main(["runs", "one", "other", "one"]) == 2
    assert main(["runs", "nobody"]) == 2


def test_half_a_record_leaves_the_others_alone(store, capsys):
    append(run("one"))
    append(run("two", SLOW))
    whole = store.read_bytes()
    store.write_bytes(whole[: -len(whole) // 4])
    records, told = read_all()
    assert [r.id for r in records] == ["one"]
    assert len(told) == 1
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert "one" in out
    assert err.count("\n") == 1
    assert "line 2 is not a whole record" in err
    append(run("three"))
    assert [r.id for r in read_all()[0]] == ["one", "three"]
    assert store.read_bytes().startswith(whole[: -len(whole) // 4])


@pytest.mark.parametrize("broken", ["null", "[]", '{"id": 1}', '{"id": "x", "name": "x", "values_s": "abc"}', "\x00"])
def test_a_strange_line_is_no_record(store, broken):
    append(run("one"))
    with store.open("a") as file:
        file.write(broken + "\n")
    append(run("two"))
    records, told = read_all()
    assert [r.id for r in records] == ["one", "two"]
    assert len(told) == 1


def test_a_record_without_values_is_listed(store, capsys):
    append(run("none", ()))
    assert main(["runs"]) == 0
    assert main(["runs", "none"]) == 2
    assert "no median" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_failing_write_leaves_nothing_behind(store, monkeypatch, step):
    append(run("one"))
    before = store.read_bytes()

    def fail(file, data):
        file.write(data[: len(data) // 2])
        raise OSError("no space left on device")

    def fail_sync(_):
        raise OSError("no space left on device")

    if step == "write":
        monkeypatch.setattr(record, "_write", fail)
    else:
        monkeypatch.setattr(record.os, "fsync", fail_sync)
    with pytest.raises(RecordError, match="no space left"):
        append(run("two"))
    assert store.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write"):
        append(run("one"), str(tmp_path / "file" / "runs.jsonl"))


def test_another_file(tmp_path, capsys):
    path = str(tmp_path / "theirs.jsonl")
    append(run("theirs"), path)
    assert main(["runs", "theirs", "--file", path]) == 0
    assert "gpt2 decode theirs" in capsys.readouterr().out
