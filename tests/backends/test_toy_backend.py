"""A new backend is one folder: a toy backend in an otherwise unchanged copy of the compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BACKEND = '''
"""A backend that runs on the CPU and counts its calls."""

from dataclasses import dataclass

from compiler.backends.cpu.backend import CpuBackend
from compiler.backends.cpu.executable import CpuExecutable
from compiler.codegen.schedules.schedule import Schedule


class ToyExecutable(CpuExecutable):
    backend = "toy"
    calls = 0

    def __call__(self, *arrays):
        ToyExecutable.calls += 1
        return super().__call__(*arrays)


@dataclass(frozen=True)
class ToyBackend(CpuBackend):
    name: str = "toy"
    priority: int = 0
    optional: bool = True

    @property
    def default_schedule(self):
        return Schedule(tile=0, lanes=32)

    def build(self, module, plan=None, kernels=None):
        built = super().build(module, plan, kernels)
        return ToyExecutable(module, built.built, plan)

    def load(self, folder):
        loaded = super().load(folder)
        return ToyExecutable(loaded.module, loaded.built, loaded.plan)


BACKEND = ToyBackend()
'''
PROGRAM = """
import numpy as np
from compiler import CompilationPlan, CompilationSession, compile, load, parse
from compiler.backends.registry import BACKENDS, find_backend
from compiler.errors import UnknownNameError

text = "ENTRY main { a = f32[3] parameter(0) n = f32[3] negate(a) ROOT r = f32[3] add(n, n) }"
exe = compile(text, backend="toy")
print(exe(np.ones(3, np.float32))[0].tolist(), len(exe.kernels), exe.plan.backend)
exe.save("saved")
print(load("saved")(np.ones(3, np.float32))[0].tolist(), type(exe).calls)
plan = CompilationPlan.from_json(exe.plan.to_json())
print(compile(text, backend="toy", plan=plan).plan == exe.plan)
session = CompilationSession(parse(text), backend="toy")
print(session.device == BACKENDS["cpu"].device_model(), find_backend("auto").name != "toy", sorted(BACKENDS))
transpose = "ENTRY main { a = f32[99,99] parameter(0) ROOT t = f32[99,99] transpose(a), dimensions={1,0} }"
kinds = [compile(transpose, b).kernels[0].kind for b in ("cpu", "toy")]
(site,) = CompilationSession(parse(transpose), backend="toy").kernel_sites()
print(*kinds, site.choices.options["generated"].knobs[0].default, [str(c) for c in site.choices[:3]])
try:
    compile(text, backend="tox")
except UnknownNameError as e:
    print("toy" in str(e))
"""


def test_a_backend_is_one_folder(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "compiler", tmp_path / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "compiler" / "backends" / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(BACKEND)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[-2.0, -2.0, -2.0] 1 toy",
        "[-2.0, -2.0, -2.0] 2",
        "True",
        "True True ['cpu', 'cuda', 'interpreter', 'toy', 'xla']",
        "transpose loop 0 ['generated', 'generated{tile=8}', 'generated{tile=16}']",
        "True",
    ]
