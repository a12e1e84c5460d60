"""The tables of `python -m experiments.gpu page`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu.command import main
from experiments.gpu.job import GpuResultError
from experiments.gpu.page import FACTORS, best_interval, page, ratio_text, ratio_to_best


def result(part: str, rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    provenance = {"command": "python -m experiments.gpu", "commit": "abc", "date": "2026-01-01"}
    return {"kind": "gpu", "part": part, "complete": True, "stand_in": False, "skipped": None, "facts": {},
            "provenance": provenance, "rows": rows, "errors": [], **values}  # fmt: skip


def write(folder: Path, *results: dict[str, Any]) -> None:
    for r in results:
        (folder / f"{r['part']}.json").write_text(json.dumps(r), encoding="utf-8")


def samples(seconds: float) -> dict[str, list[float]]:
    return {"device": [seconds] * 3, "call": [2 * seconds] * 3}


def row(name: str, ours: float, **peers: float) -> dict[str, Any]:
    return {"name": name, "samples": {"hlogym": samples(ours), **{n: samples(s) for n, s in peers.items()}},
            "failures": {}, "bytes": 1000}  # fmt: skip


RACES = [row("fast", 1e-5, xla=4e-5, inductor=2e-5), row("slow", 1e-5, xla=0.5e-5, inductor=3e-5)]


def test_ratios_are_those_of_the_fastest_peer() -> None:
    assert ratio_to_best(RACES[0], "device", ("xla", "inductor")) == pytest.approx(2.0)
    assert ratio_to_best(RACES[1], "device", ("xla", "inductor")) == pytest.approx(0.5)
    assert ratio_to_best(RACES[1], "device", ("inductor",)) == pytest.approx(3.0)
    assert ratio_to_best(RACES[1], "device", ("eager",)) is None
    found = best_interval(RACES[0], "device", ("xla", "inductor"))
    assert found is not None
    assert found.low == found.high == pytest.approx(2.0)


def test_races_are_summarized(tmp_path: Path) -> None:
    environment = result("environment", [], facts={"copy_bytes_per_second": 1e9, "device": "a card"})
    write(tmp_path, environment, result("races", RACES))
    lines = page(tmp_path).splitlines()
    assert "- on the device, xla / ours: 1.41x [0.50, 4.00], 2 programs" in lines
    assert "- on the device, the best peer / ours: 1.00x [0.50, 2.00], 2 programs" in lines
    assert "- below 0.9x the best peer on the device: 1 of 2" in lines
    slow, fast = (line for line in lines if line.startswith(("| slow", "| fast")))
    assert slow.startswith("| slow | 10 µs | 5 µs | 30 µs | 0.50x |")
    assert fast.endswith("| 2.00x | 10% |")  # 1000 bytes in 10 µs at 1 GB/s
    assert "| copy bytes per second | 1 GB/s |" in lines


def test_failures_name_the_kernel(tmp_path: Path) -> None:
    fault = [{"kernel": "main/fusion", "symbol": "hk_1", "choice": "", "problem": "illegal address"}]
    error = {"name": "jax/x", "error": "CUDARuntimeError: illegal address", "kernels_at_fault": fault}
    wrong = {"name": "jax/y", "finding": "2 of 4 elements differ", "kernels": 3, "kernels_at_fault": fault}
    write(tmp_path, result("correctness", [wrong], errors=[error]))
    text = page(tmp_path)
    assert "| jax | default | 2 | 0 | 1 | 1 | 3 |" in text
    assert "failed: jax/x: CUDARuntimeError: illegal address (main/fusion hk_1: illegal address)" in text
    assert "wrong: jax/y: 2 of 4 elements differ (main/fusion hk_1: illegal address)" in text


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    write(tmp_path, result("races", [row("a|b\n<script>", 1e-5, xla=1e-5)]))
    assert "<script>" not in page(tmp_path)
    assert all(line.count("| ") < 12 for line in page(tmp_path).splitlines())


def test_small_ratios_keep_their_digits() -> None:
    assert [ratio_text(v) for v in (1.234, 0.5, 0.0123, 0.00045)] == ["1.23", "0.50", "0.012", "0.00045"]


def test_constants_of_a_fit_are_a_table(tmp_path: Path) -> None:
    facts = {"model": "H100", FACTORS: {"launch": 0.5}, "constants": {"name": "H100", "launch": 1.2e-06}}
    write(tmp_path, result("model_fit", [], facts=facts))
    text = page(tmp_path)
    assert "| launch | 1.2e-06 | 0.50 |" in text
    assert "| name | H100 | not fitted |" in text
    assert "{" not in text


def test_the_command_writes_only_the_page(tmp_path: Path) -> None:
    write(tmp_path, result("races", RACES))
    main(["page", "--from", str(tmp_path)])
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == page(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"kind": "gpu", "rows": []}', "[]", "no JSON"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "races.json").write_text(text, encoding="utf-8")
    with pytest.raises(GpuResultError, match=r"races\.json"):
        page(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuResultError, match="has no results"):
        page(tmp_path)


def test_libraries_and_memory_have_lines_of_their_own(tmp_path: Path) -> None:
    products = [row("product f32 1x1x1", 2e-5, eager=1e-5), row("product bf16 1x1x1", 2e-5, eager=4e-5)]
    kernel = {"name": "k", "kind": "loop", "grid": 1, "block": 32, "warm_seconds": 1e-3}
    kernels = [{**kernel, "bytes": size, "seconds": 1e-2} for size in (10_000_000, 9_500_000, 1000)]
    write(tmp_path, result("environment", [], facts={"copy_bytes_per_second": 1e9}), result("races", products),
          result("kernel_times", [{"name": "kernels/x", "kernels": kernels}]))  # fmt: skip
    lines = page(tmp_path).splitlines()
    assert "- on the device, products by PyTorch's library / ours: 1.00x [0.50, 2.00], 2 programs" in lines
    start = "- 2 kernels move 8 MiB or more: 98% of the copy bandwidth is their median, 95% the least; 0 are below 90%"
    assert start in lines
