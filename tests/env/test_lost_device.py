"""A kernel that makes the GPU unusable counts as a crash of its plan, not as a failure of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from compiler import compile
from compiler.backends.cuda.emulation import stand_in
from compiler.errors import DeviceLostError
from env.program_json import program_to_json
from env.suites import load_suite
from env.worker import Worker


def test_the_worker_ends_when_the_device_is_lost() -> None:
    program = load_suite("linear_algebra").find("partial_product")
    symbol = compile(program.text(), backend="cuda", policy="heuristic").kernels[0].symbol
    request: dict[str, Any] = {"op": "prepare", "program": program_to_json(program), "plan": None, "backend": "cuda"}
    request |= {"seed": 0, "keep": []}
    with stand_in.installed():
        assert "handle" in Worker().handle(request)
    with stand_in.installed() as gpu:
        gpu.failing[symbol] = 700
        with pytest.raises(DeviceLostError, match=symbol):
            Worker().handle(request)
