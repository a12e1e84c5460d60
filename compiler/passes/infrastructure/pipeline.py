"""Pass pipelines: sequences and fixed points of passes, with statistics, hooks and verification."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from compiler.errors import HloVerificationError
from compiler.ir import HloModule
from compiler.ir.callgraph import check_call_graph
from compiler.ir.reverifier import reverify
from compiler.passes.infrastructure.base import HloPass, Swept, op_count
from compiler.support.gc_pause import gc_paused

Hook = Callable[[HloPass, HloModule, bool], None]
"""Called after each pass with the pass, the module, and whether the pass changed it."""


@dataclass(frozen=True)
class PassRecord:
    """One application of a pass: op counts before and after (see `op_count`), and its time."""

    name: str
    changed: bool
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class PassStatistics:
    """The sum of all applications of a pass in a run.

    Attributes:
        before: op count before the first application.
        after: op count after the last application.
        removed: ops removed by all applications together, which may be negative.
    """

    name: str
    runs: int
    changed: int
    before: int
    after: int
    removed: int
    seconds: float


class PipelineStopped(Exception):  # noqa: N818 - control flow, not an error
    """Raised within a run when the pass `stop_after` has run; `PipelineRun.run` catches it."""


@dataclass
class PipelineRun:
    """A run of passes on a module: what to do after each pass, and records of all applications.

    Attributes:
        verify: verify the module after each pass that changed it.
        stop_after: end the run after the pass of this name.
        hooks: called after each pass.
        records: filled by the run, one entry per application.
        unsettled: filled by the run with the names of fixed points that reached their limit of rounds.
    """

    verify: bool = False
    stop_after: str | None = None
    hooks: tuple[Hook, ...] = ()
    records: list[PassRecord] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)

    def run(self, hlo_pass: HloPass, module: HloModule) -> bool:
        """Apply a pass or a pipeline with the garbage collector paused; return whether the module changed.

        Raises:
            HloVerificationError: `verify` is set and a pass produced an invalid module; the message names the pass.
            UnsupportedError: the module is too large or nests too deeply for passes.
        """
        check_call_graph(module)
        try:
            with gc_paused():
                return self.apply(hlo_pass, module)
        except PipelineStopped:
            return any(r.changed for r in self.records)

    def apply(self, hlo_pass: HloPass, module: HloModule) -> bool:
        """Apply a pass within a run: PipelineStopped is passed on to `run`."""
        if is_composite(hlo_pass):
            return hlo_pass.run_within(self, module)
        before = self.records[-1].after if self.records else op_count(module)
        start = time.perf_counter()
        changed = hlo_pass.run(module)
        if changed:
            if not type(hlo_pass).__module__.startswith("compiler.passes."):  # it knows nothing of notes
                for computation in module.computations:
                    computation.note_direct_changes()
            module.reorder()
        seconds = time.perf_counter() - start
        after = op_count(module) if changed else before
        self.records.append(PassRecord(hlo_pass.name, changed, before, after, seconds))
        if self.verify and changed:
            _verify_after(hlo_pass, module)
        for hook in self.hooks:
            hook(hlo_pass, module, changed)
        if hlo_pass.name == self.stop_after:
            raise PipelineStopped
        return changed

    def statistics(self) -> list[PassStatistics]:
        """Return the sums of the records by pass, in order of first application."""
        by_name: dict[str, list[PassRecord]] = {}
        for r in self.records:
            by_name.setdefault(r.name, []).append(r)
        return [
            PassStatistics(
                name,
                len(rs),
                sum(r.changed for r in rs),
                rs[0].before,
                rs[-1].after,
                sum(r.before - r.after for r in rs),
                sum(r.seconds for r in rs),
            )
            for name, rs in by_name.items()
        ]


class CompositePass(HloPass, Protocol):
    """A pass that consists of other passes, which a run records individually."""

    @property
    def passes(self) -> tuple[HloPass, ...]:
        """The passes that it consists of."""
        ...

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """Run the passes and record them in `run`; return whether the module changed."""
        ...


def is_composite(hlo_pass: HloPass) -> TypeGuard[CompositePass]:
    """Check whether a pass consists of other passes."""
    return hasattr(hlo_pass, "run_within")


@dataclass(frozen=True)
class PassPipeline:
    """A sequence of passes; itself a pass."""

    name: str
    passes: tuple[HloPass, ...]

    def run(self, module: HloModule) -> bool:
        """Run every pass once in order; return whether the module changed."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """Run the passes and record them in `run`; return whether the module changed."""
        changed = False
        for p in self.passes:
            changed |= run.apply(p, module)
        return changed


@dataclass(frozen=True)
class FixedPoint:
    """Repeats passes until a whole round changes nothing, for at most `limit` rounds; itself a pass.

    A round ends early once every pass has run without effect since the last change.
    """

    name: str
    passes: tuple[HloPass, ...]
    limit: int = 25

    def run(self, module: HloModule) -> bool:
        """Run rounds of the passes; return whether the module changed."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """Run the passes and record them in `run`; return whether the module changed."""
        changed, quiet = False, 0
        for _ in range(self.limit):
            for p in self.passes:
                if run.apply(p, module):
                    changed, quiet = True, 0
                else:
                    quiet += 1
                if quiet >= len(self.passes):
                    return changed
        run.unsettled.append(self.name)
        return changed


def run_pass(hlo_pass: HloPass, module: HloModule, sweeps: int | None = None, verify: bool = True) -> bool:
    """Apply a pass once; return whether the text of the module changed.

    Args:
        hlo_pass: the pass to apply.
        module: changed in place.
        sweeps: limits the number of sweeps, each of which visits every instruction once and none that it creates; None
            runs the pass until nothing changes.
        verify: verify the module afterwards if it changed.

    Raises:
        HloVerificationError: the pass produced an invalid module; the message names the pass.
    """
    return PipelineRun(verify=verify).run(hlo_pass if sweeps is None else Swept(hlo_pass, sweeps), module)


def leaves(hlo_pass: HloPass) -> tuple[HloPass, ...]:
    """Return the individual passes of a pipeline in order, each nested one once."""
    if is_composite(hlo_pass):
        return tuple(leaf for p in hlo_pass.passes for leaf in leaves(p))
    return (hlo_pass,)


def _verify_after(hlo_pass: HloPass, module: HloModule) -> None:
    try:
        reverify(module)
    except HloVerificationError as e:
        raise HloVerificationError([f"after pass {hlo_pass.name}: {f}" for f in e.findings]) from None
