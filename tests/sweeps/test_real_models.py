"""The sweep over dumps of real models, on small programs."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from compiler.interpreter import evaluate
from compiler.ir.verifier import check_module
from compiler.text import parse
from env.suites import load_suite
from tests.sweeps.fusion_scaling import Point, beginning, exponent
from tests.sweeps.real_model_run import Compilation, compile_file
from tests.sweeps.real_models import line, programs, summary

CHOLESKY = """
HloModule m
ENTRY main {
  a = f32[4,4] parameter(0)
  ROOT c = f32[4,4] cholesky(a), lower=true
}
"""


def test_stages_and_counts_of_a_compilation(tmp_path: Path) -> None:
    path = tmp_path / "softmax.hlo"
    path.write_text(load_suite("quickstart").find("softmax").text())
    made = Compilation()
    compile_file(path, "cpu", made)
    assert {"parse", "passes", "fusion", "codegen", "gcc"} <= made.seconds.keys() == made.cpu_seconds.keys()
    assert made.kernels == made.launches == 1 and made.host_ops == {}
    assert made.memory["arguments"] == made.memory["results"] == 2048 * 1024 * 4


def test_ops_left_to_the_interpreter_are_listed_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "cholesky.hlo"
    path.write_text(CHOLESKY.replace("[4,4]", "[200,200]"))  # smaller ones are kernels
    made = Compilation()
    compile_file(path, "cuda", made)
    assert made.host_ops == {"cholesky: %...: cholesky has no kernel": 1}


def test_equal_files_are_one_program_and_refusals_are_in_the_table(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.hlo").write_text(CHOLESKY if name != "c" else CHOLESKY.replace("[4,4]", "[8,8,8]"))
    found = programs(argparse.Namespace(folder=tmp_path, only=None, limit=None))
    assert {p.stem: copies for p, copies in found.items()} == {"a": ["b"], "c": []}
    row = {"program": "a", "copies": ["b"], "error": "UnsupportedError: %r needs other devices\nmore"}
    assert line(row).endswith("| refused: UnsupportedError: %r needs other devices |")
    assert "2 files, 1 of them distinct; 0 distinct ones compile, 1 do not" in summary([row])[0]


def test_the_beginning_of_a_program_returns_what_the_rest_reads() -> None:
    module = parse(load_suite("quickstart").find("softmax").text())
    short = beginning(module, 4)
    assert check_module(short) == []
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    assert len(evaluate(short, args)) == len(short.entry.root.operands) >= 1
    assert short.entry.instructions != module.entry.instructions


def test_the_exponent_of_linear_growth_is_one() -> None:
    found = [Point("p", n, n, n, 0.0, 0.0, n / 1000) for n in (100, 1000, 10_000)]
    assert abs(exponent(found) - 1) < 1e-6
