"""The thread pool of the runtime with several callers at once, checked by sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNTIME = HERE.parent.parent / "compiler" / "backends" / "cpu" / "runtime.c"


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_several_callers_may_use_the_pool_at_once(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "stress"
    sources = [str(HERE / "pool_stress.c"), str(RUNTIME)]
    command = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-fsanitize={sanitizer}"]
    built = subprocess.run([*command, *sources, "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip(f"gcc has no {sanitizer} sanitizer here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=200, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer cannot run with this kernel's address layout")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")
