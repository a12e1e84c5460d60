"""The examples of the documentation run, print what they should, and are short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks_of

EXAMPLES = DOCS / "examples"
MOST_LINES = 80
ARGUMENTS = {"train_ppo": ["128"]}
"""Smaller runs than the defaults, for what takes more than some seconds."""


def printed(name: str, *installed: Path) -> str:
    """Run an example as a user does; its output."""
    return run(EXAMPLES / f"{name}.py", *ARGUMENTS.get(name, []), installed=installed)


def run(program: Path, *arguments: str, installed: Sequence[Path] = ()) -> str:
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*installed, DOCS.parent)))},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_are_short_and_tested(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert f"def test_{path.stem}(" in Path(__file__).read_text(encoding="utf-8")
    assert f"docs/examples/{path.name}" in (DOCS / "examples.md").read_text(encoding="utf-8")


def test_fusion_policy() -> None:
    none, small, default = (
        int(re.findall(r"(\d+) kernels", line)[0]) for line in printed("fusion_policy").splitlines()
    )

    assert default < small < none


def test_torch_compile(tmp_path: Path) -> None:
    # The entry points of this checkout, as pip would install them.
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / "hlogym-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: hlogym\nVersion: 0\n")
    points = project["entry-points"]["torch_dynamo_backends"]
    lines = ["[torch_dynamo_backends]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    out = printed("torch_compile", tmp_path)

    first, last = numbers(out.partition("\n")[0])
    assert last < first
    assert out.endswith("running statistics equal\n")


def test_compiler_pass() -> None:
    out = printed("compiler_pass")

    assert "ROOT %tanh = f32[1000]{0} tanh(%x)" in out
    assert "'hyperbolic-tangent'" in out
    assert out.endswith("equal to np.tanh\n")


def test_kernel_selector() -> None:
    out = printed("kernel_selector")

    first, *timed, last = out.splitlines()
    assert first.startswith("main/fusion: transpose (f32[1024,1024], f32[1024,1024])")
    assert [line.split()[0] for line in timed] == [
        "generated",
        *(f"generated{{tile={n}}}" for n in (0, 8, 16, 64, 128)),
    ]
    assert last.endswith("{'main': {'fusion': {'implementation': 'generated', 'schedule': {'tile': 8}}}}")


def test_jax_function() -> None:
    out = printed("jax_function")

    assert "parameters: weights['in'], weights['out'], x, labels" in out
    kernels, loss = numbers(out.splitlines()[-1])
    assert 1 <= kernels < 20
    assert 2 < loss < 3  # of ten classes, before any training


def test_jax_jit() -> None:
    *steps, kernels, slopes = printed("jax_jit").splitlines()

    losses = [numbers(line)[1] for line in steps]
    assert losses[0] > losses[1] > losses[2]
    assert numbers(kernels)[0] >= 1
    near_zero, near_one = numbers(slopes)[-2:]
    assert near_zero == pytest.approx(1, abs=0.3) and near_one == pytest.approx(0.54, abs=0.3)  # of a sine


def test_torch_model() -> None:
    out = printed("torch_model")

    assert out.splitlines()[0].split() == ["norm.weight", "float32[64]"]
    assert out.endswith("kernels, result equal to PyTorch's\n")


def test_reward() -> None:
    (stopped, fused), (priced_stopped, priced_fused) = (numbers(line) for line in printed("reward").splitlines())

    assert stopped == 0  # nothing was done, so the program is as fast as the unfused one
    assert fused > 0
    assert priced_fused == pytest.approx(fused - 0.1)  # one kernel
    assert priced_stopped < -0.3  # several


def test_train_ppo() -> None:
    first, last = printed("train_ppo").splitlines()[-2:]

    episodes, speedup = numbers(first)
    assert episodes >= 3
    assert speedup > 1
    assert last.startswith("softmax by the learned policy")
    assert last.endswith("equal to the interpreter's result")


def test_agent() -> None:
    first, last = (numbers(line)[-1] for line in printed("agent").splitlines())

    # Deterministic: the cost model is, and so are the seeds.
    assert last > first > 1


@pytest.mark.parametrize("page", ["index.md", "environments/index.md", "environments/fusion.md"])
def test_programs_within_pages(page: str, tmp_path: Path) -> None:
    """Blocks that import what they use are whole programs; they run, and print something."""
    programs = [
        b.text
        for b in blocks_of((DOCS / page).read_text(encoding="utf-8"))
        if b.language == "python" and b.text.startswith("import ")
    ]
    assert programs
    for text in programs:
        (tmp_path / "program.py").write_text(text, encoding="utf-8")
        assert run(tmp_path / "program.py")
