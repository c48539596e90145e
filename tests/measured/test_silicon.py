"""No kernel that others measured was faster than the bound of gambrel's operator for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import rows as measured
import silicon

#: Rows that must have been compared at the least, so that a reader that finds nothing fails.
AT_LEAST = {"GEMM": 20_000, "prefill attention": 9_000, "decode attention": 5_500, "MoE": 12_000}


@pytest.fixture(scope="session")
def folder(shared):
    return shared / "measured" / "silicon"


@pytest.fixture(scope="session")
def found(folder):
    return {kind: read(folder) for kind, read in silicon.READERS.items()}


@pytest.mark.parametrize("kind", silicon.READERS)
def test_no_kernel_is_faster_than_its_bound(found, kind, tell):
    rows = found[kind]
    tell(measured.verdict(rows, kind))
    assert [measured.words(row) for row in measured.faster(rows)] == []
    assert len(measured.compared(rows)) >= AT_LEAST[kind]


def test_16_and_8_bit_gemm_rows(found, tell):
    rows = [row for row in found["GEMM"] if row.kind.removeprefix("GEMM ") in silicon.HALF]
    tell(measured.verdict(rows, "GEMM in bf16, fp16, fp8"))
    assert measured.faster(rows) == []
    assert len(measured.compared(rows)) >= 17_000


def test_every_line_of_the_files_is_a_row(folder, found):
    for kind, pattern in zip(
        silicon.READERS, ("gemm_*", "context_attention_*", "generation_attention_*", "moe_*"), strict=True
    ):
        lines = sum(len(path.read_text().splitlines()) - 1 for path in folder.glob(pattern))
        assert len(found[kind]) == lines


def test_rows_are_set_aside_by_two_rules_only(found, tell):
    """Decode attention of TensorRT-LLM 1.0.0 on A100 implies up to 1.67 times peak bandwidth: all its rows are bad."""
    aside = [row for rows in found.values() for row in rows if row.aside]
    counts = measured.asides(aside)
    tell(f"set aside: {dict(counts)}, of them above the bound: {sum(row.ratio > 1 for row in aside)}")
    assert set(counts) <= {silicon.A100_DECODE, silicon.H100_INT8}
    assert sum(counts.values()) < 300


@pytest.mark.parametrize("kind", silicon.READERS)
def test_a_bound_twice_too_high_is_seen(folder, kind, monkeypatch):
    """A device at half its peaks and half its bandwidth doubles every bound."""
    real = silicon.device

    def half(name):
        dev = real(name)
        peaks = {dtype: peak / 2 for dtype, peak in dev.peak_flops_per_s.items()}
        return replace(dev, peak_flops_per_s=peaks, mem_bytes_per_s=dev.mem_bytes_per_s / 2)

    monkeypatch.setattr(silicon, "device", half)
    assert measured.faster(silicon.READERS[kind](folder))
