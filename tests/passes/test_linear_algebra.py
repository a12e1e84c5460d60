"""Linear algebra identities: after the default pipeline each program needs the hand-derived minimum of flops."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import env.suites
from compiler.analysis.flops import module_flops
from compiler.passes import PipelineRun
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from tests.passes.programs import difference, reference, run

FOLDER = Path(env.suites.__file__).parent / "linear_algebra"
PROGRAMS: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))["programs"]


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: str(e["name"]))
def test_minimum_flops(entry: dict[str, Any]) -> None:
    module = parse((FOLDER / entry["file"]).read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    want = reference(module, args)
    before = module_flops(module)

    PipelineRun(verify=True).run(default_pipeline(), module)

    assert difference(run(module, args), want) is None
    assert module_flops(module) == entry["minimum_flops"]
    assert module_flops(module) <= before


def test_suite_loads() -> None:
    suite = env.suites.load_suite(FOLDER)
    assert [p.name for p in suite.programs] == [e["name"] for e in PROGRAMS]
