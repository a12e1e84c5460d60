"""Pipelines: passes in order, passes to a fixed point, with statistics, hooks and verification around each."""

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
"""Called after each single pass with the pass, the module as it left it, and whether it changed."""


@dataclass(frozen=True)
class PassRecord:
    """One application of one pass: op counts before and after (see `op_count`), and its time."""

    name: str
    changed: bool
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class PassStatistics:
    """All applications of one pass in a run, added up.

    Attributes:
        before: op count before the first application.
        after: op count after the last.
        removed: by all of them; other passes between them do not count. May be negative.
    """

    name: str
    runs: int
    changed: int
    before: int
    after: int
    removed: int
    seconds: float


class PipelineStopped(Exception):  # noqa: N818 - control flow, not an error
    """Raised within a run when `stop_after` has been reached; `PipelineRun.run` catches it."""


@dataclass
class PipelineRun:
    """One run of passes over a module: what to do around each, and what was recorded.

    Attributes:
        verify: check the module after each pass that changed it.
        stop_after: end the run once a pass of this name has run.
        hooks: called after each single pass.
        records: filled by the run, one entry an application.
        unsettled: filled by the run, names of the fixed points that were cut off by their limit of rounds.
    """

    verify: bool = False
    stop_after: str | None = None
    hooks: tuple[Hook, ...] = ()
    records: list[PassRecord] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)

    def run(self, hlo_pass: HloPass, module: HloModule) -> bool:
        """Run a pass or a pipeline, with the collector of cycles paused; whether anything changed.

        Raises:
            HloVerificationError: `verify` is set and a pass broke a rule; the message names the pass.
            UnsupportedError: the module is larger or nests deeper than passes can work on.
        """
        check_call_graph(module)
        try:
            with gc_paused():
                return self.apply(hlo_pass, module)
        except PipelineStopped:
            return any(r.changed for r in self.records)

    def apply(self, hlo_pass: HloPass, module: HloModule) -> bool:
        """As `run`, within a run: a stop goes through to the outermost."""
        if is_composite(hlo_pass):
            return hlo_pass.run_within(self, module)
        before = self.records[-1].after if self.records else op_count(module)
        start = time.perf_counter()
        changed = hlo_pass.run(module)
        if changed:
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
        """The records added up by pass, in order of first application."""
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
    """A pass made of others, each of which a run records on its own."""

    @property
    def passes(self) -> tuple[HloPass, ...]:
        """What it is made of."""
        ...

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """`run`, recorded in `run`."""
        ...


def is_composite(hlo_pass: HloPass) -> TypeGuard[CompositePass]:
    """Whether a pass is made of others."""
    return hasattr(hlo_pass, "run_within")


@dataclass(frozen=True)
class PassPipeline:
    """Passes one after the other; itself a pass."""

    name: str
    passes: tuple[HloPass, ...]

    def run(self, module: HloModule) -> bool:
        """Run every pass once, in order."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """`run`, recorded in `run`."""
        changed = False
        for p in self.passes:
            changed |= run.apply(p, module)
        return changed


@dataclass(frozen=True)
class FixedPoint:
    """Passes over and over until a whole round changes nothing, `limit` rounds at most; itself a pass.

    A pass is left out of a round when nothing has changed since it last ran without effect.
    """

    name: str
    passes: tuple[HloPass, ...]
    limit: int = 25

    def run(self, module: HloModule) -> bool:
        """Run rounds of the passes."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """`run`, recorded in `run`."""
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
    """Apply one pass once; whether the text of the module changed.

    Args:
        hlo_pass: what to apply.
        module: changed in place.
        sweeps: visit each instruction so many times, and what the rewrites made not within the same sweep; None: to
            the pass's own fixed point.
        verify: check the module afterwards, if it changed.

    Raises:
        HloVerificationError: the pass broke a rule; the message names it.
    """
    return PipelineRun(verify=verify).run(hlo_pass if sweeps is None else Swept(hlo_pass, sweeps), module)


def leaves(hlo_pass: HloPass) -> tuple[HloPass, ...]:
    """The single passes of a pipeline, in order, each nested one once."""
    if is_composite(hlo_pass):
        return tuple(leaf for p in hlo_pass.passes for leaf in leaves(p))
    return (hlo_pass,)


def _verify_after(hlo_pass: HloPass, module: HloModule) -> None:
    try:
        reverify(module)
    except HloVerificationError as e:
        raise HloVerificationError([f"after pass {hlo_pass.name}: {f}" for f in e.findings]) from None
