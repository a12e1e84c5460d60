"""The recipes of the documentation work as written, and touch as few files as they say."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from compiler.learned.features.passes import observation_size
from tests.docs.applying import SNIPPETS, apply_recipe, copy_tree, run_python
from tests.docs.pages import DOCS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_tree(tmp_path)


def test_an_op_is_a_row_an_evaluator_an_expression_and_a_test(tree: Path) -> None:
    touched = apply_recipe("op", tree)

    assert len(touched.all) <= 4
    assert len(touched.new) == 1
    run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, touched.new), *COMPLETENESS)
    assert run_python(tree, "-c", SOFTSIGN).split() == ["True", "1", "True", str(observation_size(5))]


COMPLETENESS = (
    "tests/ir/test_opcode_coverage.py",
    "tests/ir/test_shape_inference.py::test_every_opcode_is_inferred_or_written_out",
    "tests/interpreter/test_conformance.py::test_every_opcode_has_cases_or_a_reason",
)
"""Tests that ask something of every op; a new one must not need changes to them."""

SOFTSIGN = """
import numpy as np
from compiler import compile, parse

text = '''HloModule m
ENTRY main {
  x = f32[1000] parameter(0)
  n = f32[1000] negate(x)
  s = f32[1000] softsign(n)
  ROOT e = f32[1000] exponential(s)
}'''
x = np.linspace(-5, 5, 1000, dtype=np.float32)
exe = compile(text)
print(np.allclose(exe(x)[0], np.exp(-x / (1 + np.abs(x))), rtol=1e-5))
print(len(exe.kernels))  # it fuses with its neighbours
print("fabs" in compile(text, backend="cuda").kernels[0].source)
from compiler.learned.features.passes import observation_size
print(observation_size(5))  # policies that were learned before still fit
"""


def test_a_pass_is_a_file_and_a_golden_test(tree: Path) -> None:
    touched = apply_recipe("pass", tree)

    assert (len(touched.new), len(touched.changed)) == (2, 0)
    golden = run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden", "-k", "hyperbolic")
    assert "2 passed" in golden
    assert "hyperbolic-tangent" in run_python(tree, "-m", "experiments.cli", "opt", "--list-passes")
    assert run_python(tree, "-c", TANH).split() == ["True", "tanh"]


TANH = """
import numpy as np
from compiler import compile

text = "ENTRY main { x = f32[9] parameter(0) s = f32[9] sinh(x) c = f32[9] cosh(x) ROOT q = f32[9] divide(s, c) }"
exe = compile(text, pipeline=["hyperbolic-tangent", "dce"])
x = np.linspace(-200, 200, 9, dtype=np.float32)
print(np.allclose(exe(x)[0], np.tanh(x)))
print(exe.module.entry.root.opcode.text)
"""


def test_a_backend_is_a_folder(tree: Path) -> None:
    touched = apply_recipe("backend", tree)

    assert not touched.changed
    assert {f.parent for f in touched.new} == {Path("compiler/backends/tracing")}
    out = run_python(tree, "-m", "experiments.cli", "run", str(NEWTON), "--backend", "tracing", "--check", "--profile")
    assert "while" in out  # a row of the profile; --check fails when the outputs differ
    assert run_python(tree, "-c", TRACING).split() == ["True", "tanh", "True"]


NEWTON = DOCS / "examples" / "programs" / "newton.hlo"
TRACING = """
import numpy as np
from compiler import compile
from compiler.backends.registry import find_backend

exe = compile("ENTRY main { x = f32[9] parameter(0) ROOT t = f32[9] tanh(x) }", backend="tracing")
x = np.linspace(-2, 2, 9, dtype=np.float32)
print(np.allclose(exe(x)[0], np.tanh(x)))
print(*(row.name for row in exe.profile(x)))
print(find_backend("auto").name != "tracing")
"""


def test_a_suite_is_a_folder(tree: Path) -> None:
    touched = apply_recipe("suite", tree)

    assert not touched.changed
    assert {f.parent for f in touched.new} == {Path("my_suite")}
    out = run_python(tree, "-m", "experiments.cli", "run", "my_suite/embedding.hlo", "--check")
    assert out.startswith("out0: float32")
    assert run_python(tree, "-c", SUITE).split() == ["embedding", "True"]


SUITE = """
import gymnasium as gym
import env
from env.suites import load_suite, random_inputs

(program,) = load_suite("my_suite").programs
e = gym.make("hlogym/Fusion-v0", suite="my_suite")
print(e.reset()[1]["program"])
(_, ids) = random_inputs(program, [("float32", (100, 16)), ("int32", (32,))], seed=0)
print(0 <= ids.min() and ids.max() < 100)
"""


def test_a_package_declares_entry_points(tree: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(SNIPPETS / "package", site)
    shutil.copytree(SNIPPETS / "suite" / "my_suite", site / "acme_hlogym" / "programs")
    project = tomllib.loads((site / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / "acme_hlogym-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    out = run_python(tree, "-c", f"import sys; sys.path.append({str(site)!r})\n{PACKAGE}")

    assert out.split() == ["embedding", "True", "acme-hlogym", "1.0"]


PACKAGE = """
from compiler import compile
from compiler.support.plugins import list_extensions
from env.suites import load_suite

(program,) = load_suite("acme").programs
print(program.name)
print(compile(program.text(), fusion_policy="acme-first").plan.decided_by["fusion"] == "acme-first")
print(list_extensions("hlogym.fusion_policies")[0].distribution)
"""


@pytest.mark.parametrize(
    ("recipe", "example"),
    [
        ("fusion_policy", "fusion_policy"),
        ("kernel_selector", "kernel_selector"),
        ("reward", "reward"),
        ("agent", "agent"),
    ],
)
def test_what_is_one_file_is_shown_by_an_example(recipe: str, example: str) -> None:
    """The example runs alone, against the package as it is; `test_examples.py` runs it."""
    page = (DOCS / "recipes" / f"{recipe}.md").read_text(encoding="utf-8")

    assert f'--8<-- "docs/examples/{example}.py"' in page
    imported = re.findall(r"^(?:from|import) (\S+)", (DOCS / "examples" / f"{example}.py").read_text(), re.MULTILINE)
    assert not any(name.startswith("docs") for name in imported)


def test_pages_show_every_snippet() -> None:
    written = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "recipes").glob("*.md"))
    for snippet in (p for p in SNIPPETS.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        assert f'--8<-- "{snippet.relative_to(DOCS.parent).as_posix()}"' in written
