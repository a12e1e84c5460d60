"""The kernel selector that measures: what it chooses, remembers and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import KernelChoice, KernelSite, MeasuredKernels, compile, parse
from compiler.backends import measured_kernels
from compiler.backends.registry import find_backend
from compiler.errors import PlanError
from tests.fuzz.plan_programs import plan_program
from tests.session.test_kernel_sites import TRANSPOSE, fused


class _Scripted(MeasuredKernels):
    """Times choices by a table; the k-th measurement of a choice takes its k-th entry, or the last one."""

    def __init__(self, table: dict[str, tuple[float, ...]], **options: Any) -> None:
        super().__init__(**options)
        self.table, self.asked = table, list[str]()

    def _times(self, built: Any, inputs: Any) -> dict[KernelChoice, float]:
        del inputs
        found = {}
        for choice in built:
            times = self.table.get(str(choice), (1.0,))
            found[choice] = times[min(self.asked.count(str(choice)), len(times) - 1)]
            self.asked.append(str(choice))
        return found


def _site() -> KernelSite:
    (site,) = fused(TRANSPOSE).kernel_sites()
    return site


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        ({"generated{tile=8}": (0.5,)}, "generated{tile=8}"),
        ({"generated{tile=8}": (0.5, 1.2)}, "generated"),  # the second measurement does not confirm the first
        ({"generated{tile=8}": (0.99,)}, "generated"),  # saves less than the margin
        ({}, "generated"),
    ],
)
def test_the_fastest_choice_must_be_faster_than_the_default_twice(table: Any, chosen: str) -> None:
    assert str(_Scripted(table).choose_kernel(_site())) == chosen


def test_the_budget_bounds_the_number_of_choices() -> None:
    selector = _Scripted({}, budget=3)
    assert selector.choose_kernel(_site()) == KernelChoice()
    assert selector.asked == [str(c) for c in _site().offered(3)] and len(selector.asked) == 3


def test_what_was_measured_is_remembered_in_a_file(tmp_path: Path) -> None:
    store = tmp_path / "choices.json"
    first = _Scripted({"generated{tile=16}": (0.5,)}, store=store)
    assert str(first.choose_kernel(_site())) == "generated{tile=16}"
    count = len(first.asked)
    assert str(first.choose_kernel(_site())) == "generated{tile=16}" and len(first.asked) == count
    second = _Scripted({"generated{tile=8}": (0.1,)}, store=store)
    assert str(second.choose_kernel(_site())) == "generated{tile=16}" and second.asked == []
    renamed = fused(TRANSPOSE.replace("ROOT r", "ROOT other")).kernel_sites()[0]
    assert str(second.choose_kernel(renamed)) == "generated{tile=16}"


def test_another_machine_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "choices.json"
    _Scripted({"generated{tile=16}": (0.5,)}, store=store).choose_kernel(_site())
    backend = find_backend("cpu")
    monkeypatch.setattr(type(backend), "machine_key", lambda _: "another machine")
    selector = _Scripted({"generated{tile=8}": (0.1,)}, store=store)
    assert str(selector.choose_kernel(_site())) == "generated{tile=8}"


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 1, "choices": {"k": 3}}', "{"])
def test_a_damaged_store_is_reported_with_its_name(text: str, tmp_path: Path) -> None:
    store = tmp_path / "choices.json"
    store.write_text(text)
    with pytest.raises(PlanError, match=r"choices\.json"):
        MeasuredKernels(store=store)


def test_a_store_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    selector = _Scripted({}, store=tmp_path / "file" / "choices.json")
    with pytest.raises(PlanError, match="cannot write kernel choices"):
        selector.choose_kernel(_site())


@pytest.mark.parametrize("name", ["wide", "loops"])
def test_measured_kernels_compute_the_same(name: str, tmp_path: Path) -> None:
    program = plan_program(name)
    selector = MeasuredKernels(budget=3, rounds=1, store=tmp_path / "choices.json")
    executable = compile(program.text, kernel_selector=selector)
    assert program.wanted.difference(executable(*program.inputs)) is None
    again = compile(parse(program.text), kernel_selector=MeasuredKernels(budget=3, store=tmp_path / "choices.json"))
    assert again.plan == executable.plan
    measured = json.loads((tmp_path / "choices.json").read_text())["choices"]
    assert 1 <= len(measured) <= len(executable.kernels)


def test_inputs_have_the_types_of_the_kernel() -> None:
    module = parse("ENTRY e { a = s8[3] parameter(0) b = bf16[2] parameter(1) ROOT t = (s8[3], bf16[2]) tuple(a, b) }")
    one, two = measured_kernels._inputs(module, np.random.default_rng(0))
    assert (one.dtype, one.shape, two.dtype.name, two.shape) == (np.int8, (3,), "bfloat16", (2,))
