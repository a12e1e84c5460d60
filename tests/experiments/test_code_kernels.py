"""Learning to choose kernels by their machine code: measurements, rows, training, and what is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from compiler.backends.cpu import disassembly
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import BackendError
from compiler.learned.code_kernels import CODE_INPUTS, DRAFT_INPUTS, CodeModel, generated_kernels
from compiler.learned.features.machine_code import CODE_FEATURES
from experiments.kernel_times import code as code_times
from experiments.kernel_times.__main__ import main
from experiments.kernel_times.code import (
    CodeOptions,
    CodeRows,
    Predicted,
    collect_code,
    joined_rows,
    judged,
    predicted,
    train_code,
)
from experiments.kernel_times.dataset import ChoiceTime, DatasetError, KernelTimes, append_lines, read_dataset
from tests.session.test_kernel_sites import fused

EXP = """HloModule exp
ENTRY e { p = f32[512,1000] parameter(0)
  q = f32[512,1000] multiply(p, p)
  ROOT r = f32[512,1000] exponential(q) }"""
GATHER = """HloModule rows
ENTRY e { p = f32[4096]{0} parameter(0)
  i = s32[1000,1]{1,0} parameter(1)
  g = f32[1000]{0} gather(p, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1}
  ROOT r = f32[1000]{0} multiply(g, g) }"""
needs_objdump = pytest.mark.skipif(disassembly.why_unreadable() is not None, reason="machine code cannot be read here")


def _dataset(folder: Path, split: str = "train", program: str = EXP) -> Path:
    site = fused(program).kernel_sites()[0]
    times = (ChoiceTime(KernelChoice(), 1, 1e-4, 0.0),)
    kernel = KernelTimes(site.fingerprint, str(site.module()), "p", "f", split, "default", 1, times)
    append_lines(folder / "kernels.jsonl", [{"format": 1}, kernel.to_json()])
    return folder / "kernels.jsonl"


def _rows(kernels: int = 400, seed: int = 0) -> CodeRows:
    """Return kernels of two candidates: one with fewer instructions is faster by a tenth, one with more slower."""
    rng = np.random.default_rng(seed)
    shape = 3 * kernels, len(CODE_INPUTS)
    inputs = rng.normal(size=shape).astype(np.float32)
    fewer = np.tile([False, True, False], kernels) & (rng.random(3 * kernels) < 0.5)
    column = CODE_INPUTS.index("changed all: instructions")
    inputs[:, column] = np.where(fewer, -1.0, 1.0)
    gains = np.where(fewer, 0.1, -0.1)
    gains[::3] = 0.0
    inputs[::3, column] = 0.0
    default = np.repeat(np.arange(0, 3 * kernels, 3), 3)
    return CodeRows(
        inputs[:, : len(DRAFT_INPUTS)], inputs, np.stack([gains, gains], axis=1), np.repeat(np.arange(kernels), 3),
        default, np.repeat([f"f{n % 10}" for n in range(kernels)], 3), np.repeat(np.arange(kernels) < kernels // 2, 3),
        np.ones(3 * kernels, bool), np.zeros(3 * kernels, bool),
    )  # fmt: skip


@needs_objdump
def test_candidates_are_measured_with_their_code_and_once_only(tmp_path: Path) -> None:
    source, out = _dataset(tmp_path), tmp_path / "code.jsonl"
    assert list(collect_code(source, out, None, False)) == [(1, 1)]
    header, kernels, done = read_dataset(out)
    assert header["processor"]
    (kernel,) = kernels
    assert kernel.times[0].choice == KernelChoice()
    assert len(kernel.times) == len(kernel.code) > 1
    assert {len(row) for row in kernel.code} == {len(CODE_FEATURES)}
    assert len(set(kernel.code)) > 1
    assert done == {kernel.fingerprint}
    assert list(collect_code(source, out, None, False)) == []


@needs_objdump
def test_candidates_of_some_fields_are_measured_alone(tmp_path: Path) -> None:
    source, out = _dataset(tmp_path), tmp_path / "code.jsonl"
    main(["code-times", str(source), "--out", str(out), "--fields", "unroll,columns"])
    (kernel,) = read_dataset(out)[1]
    assert kernel.times[0].choice == KernelChoice()
    assert {frozenset(t.choice.schedule) for t in kernel.times[1:]} == {
        frozenset({"unroll"}),
        frozenset({"unroll", "vector"}),
    }
    assert list(collect_code(source, tmp_path / "none.jsonl", None, False, ["columns"])) == [(1, 0)]


def test_a_field_that_no_schedule_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no field colums"):
        main(["code-times", str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "y.jsonl"), "--fields", "colums"])


@needs_objdump
def test_kernels_that_access_elements_by_data_are_not_measured(tmp_path: Path) -> None:
    source, out = _dataset(tmp_path, program=GATHER), tmp_path / "code.jsonl"
    assert list(collect_code(source, out, None, False)) == [(1, 0)]
    assert not read_dataset(out)[1]


def test_of_many_candidates_the_first_and_some_at_random_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    site = fused(EXP).kernel_sites()[0]
    kernels = generated_kernels(site, code_times.CANDIDATES)
    first = [c for c in kernels if c.schedule in code_times.CANDIDATES[:6]]
    assert len(first) == 6
    monkeypatch.setattr(code_times, "MEASURED", 9)
    drawn = [list(code_times.drawn_kernels(kernels, seed)) for seed in ("a", "b", "c", "a")]
    assert all(d[:7] == [KernelChoice(), *first] and len(set(d)) == 9 and set(d) <= set(kernels) for d in drawn)
    assert drawn[0] == drawn[3]
    assert len({*map(tuple, drawn)}) > 1
    monkeypatch.setattr(code_times, "MEASURED", 99)
    assert code_times.drawn_kernels(kernels, "a").keys() == kernels.keys()


def test_without_machine_code_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_times, "why_unreadable", lambda: "there is no objdump")
    with pytest.raises(BackendError, match="there is no objdump"):
        list(collect_code(_dataset(tmp_path), tmp_path / "code.jsonl", None, False))


def test_code_is_kept_with_the_times_of_some_threads() -> None:
    times = tuple(ChoiceTime(KernelChoice(), n, 1e-5, 0.0) for n in (1, 2))
    kernel = KernelTimes("k", "", "p", "f", "train", "default", 2, times, ((1.0,), (2.0,)))
    assert KernelTimes.from_json(kernel.to_json()) == kernel
    assert kernel.with_threads((2,)).code == ((2.0,),)


def test_what_the_code_says_is_learned_and_the_draft_cannot_know() -> None:
    rows = _rows()
    trees = train_code(rows, rows.training, CodeOptions(trees=60, learning_rate=0.3))
    found = dataclasses.replace(predicted(trees, rows, ~rows.training), is_open=np.ones(len(rows.kernel), np.bool_))
    everything = CodeOptions(draft_margin=-9.0, compiled=9)
    by_code = judged(rows, found, ~rows.training, everything)
    assert by_code.gains.mean() == pytest.approx(by_code.best.mean(), rel=0.05)
    assert by_code.best.mean() == pytest.approx(0.05, abs=0.01)
    assert by_code.compiled.tolist() == [2.0] * 200
    by_draft = judged(rows, dataclasses.replace(found, code=found.draft), ~rows.training, everything)
    assert by_draft.gains.mean() < 0.02


def _predicted(rows: CodeRows, draft: float) -> Predicted:
    """Return predictions by which candidates that gain are taken, if the draft's gain of all allows it."""
    sure = np.where(rows.gains[:, 0] > 0, 0.1, -0.1)
    return Predicted(np.ones(len(sure), np.bool_), np.full(len(sure), draft), sure)


def test_candidates_that_the_draft_refuses_are_not_taken() -> None:
    rows = _rows()
    refused = judged(rows, _predicted(rows, -0.5), ~rows.training, CodeOptions())
    assert not refused.gains.any()
    assert not refused.compiled.any()
    one = judged(rows, _predicted(rows, 0.0), ~rows.training, CodeOptions(compiled=1))
    assert one.compiled.tolist() == [1.0] * 200
    assert one.gains.mean() > 0


def test_kernels_that_access_elements_by_data_do_not_count() -> None:
    rows = _rows()
    by_data = dataclasses.replace(rows, by_data=rows.kernel >= 300)
    assert len(judged(by_data, _predicted(rows, 0.1), ~rows.training, CodeOptions()).gains) == 100


def test_kernels_without_prospects_are_not_opened() -> None:
    rows = _rows()
    closed = dataclasses.replace(_predicted(rows, 0.0), is_open=rows.kernel % 2 == 0)
    found = judged(rows, closed, ~rows.training, CodeOptions())
    numbers = np.unique(rows.kernel[~rows.training])
    assert (found.compiled > 0).tolist() == (numbers % 2 == 0).tolist()


@pytest.mark.parametrize("opened", [0.2, 0.7])
def test_a_share_of_kernels_that_were_not_seen_has_prospects(opened: float) -> None:
    rows = _rows()
    trees = train_code(rows, rows.training, CodeOptions(trees=20, opened=opened))
    found = predicted(trees, rows, ~rows.training).is_open[~rows.training & ~rows.is_candidate]
    assert found.mean() == pytest.approx(opened, abs=0.15)


@needs_objdump
def test_a_model_is_trained_and_judged_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = _dataset(tmp_path), tmp_path / "code.jsonl"
    main(["code-times", str(source), "--out", str(out)])
    header, (kernel,), _ = read_dataset(out)
    others = [
        KernelTimes(f"{n}", kernel.hlo, "q", f"g{n}", "validation" if n % 3 == 0 else "train", "default", 1,
                    kernel.times, kernel.code)
        for n in range(12)
    ]  # fmt: skip
    append_lines(out, [k.to_json() for k in others])
    page, model = tmp_path / "page.md", tmp_path / "model"
    main(["code", str(out), "--out", str(model), "--page", str(page)])
    assert "| validation | of default fusions | the code of all candidates | 4 |" in page.read_text()
    assert list(CodeModel.load(model).trees) == [header["processor"]]
    assert "Choosing kernels by their machine code" in capsys.readouterr().out


def test_rows_of_several_datasets_keep_their_kernels_apart() -> None:
    few, more = _rows(4), _rows(6, seed=1)
    both = joined_rows([few, more])
    assert both.kernel.tolist() == np.repeat(np.arange(10), 3).tolist()
    assert both.default.tolist() == np.repeat(np.arange(0, 30, 3), 3).tolist()
    assert both.gains[12:].tolist() == more.gains.tolist()
    assert few.kernel.max() == 3
    assert more.kernel.min() == 0


def test_datasets_of_different_processors_are_refused(tmp_path: Path) -> None:
    site = fused(EXP).kernel_sites()[0]
    times = (ChoiceTime(KernelChoice(), 1, 1e-4, 0.0),)
    code = ((0.0,) * len(CODE_FEATURES),)
    kernel = KernelTimes(site.fingerprint, str(site.module()), "p", "f", "train", "default", 1, times, code)
    for name in ("one", "two"):
        append_lines(tmp_path / name, [{"format": 1, "processor": name}, kernel.to_json()])
    with pytest.raises(DatasetError, match=r"two was measured on another processor than .*one"):
        main(["code", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "model")])


def test_a_dataset_without_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="code-times collects it"):
        main(["code", str(_dataset(tmp_path)), "--out", str(tmp_path / "model")])
