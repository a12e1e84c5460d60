"""Listings of one small program after every stage of a compilation, made by the compiler."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from compiler import CompilationSession, parse
from compiler.api import decide
from compiler.codegen.kernel_spec import fused_form
from compiler.codegen.languages import C
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest.loop_ir import Kernel
from compiler.fusion.policies import make_policy
from compiler.ir import HloModule
from compiler.passes import PipelineRun
from compiler.passes.pipelines.default import default_pipeline
from compiler.runtime.thunks import Thunk
from docs.tools.loop_nest import loop_nest_text
from docs.tools.markdown import fenced, table

__all__ = ["LISTINGS"]

PROGRAM = Path(__file__).parents[1] / "examples" / "programs" / "newton.hlo"


def source() -> str:
    """Return the program as it is written."""
    return fenced(PROGRAM.read_text(encoding="utf-8"), "hlo", title="newton.hlo")


def passes() -> str:
    """Return a table of the passes that changed the program."""
    run = PipelineRun()
    run.run(default_pipeline(), _module())
    rows = [[f"`{s.name}`", str(s.before), str(s.after)] for s in run.statistics() if s.changed]
    return table(["Pass that changed the module", "Ops before", "Ops after"], rows)


def optimized() -> str:
    """Return the computations that the passes changed, as HLO text."""
    session = _session()
    session.run_passes()
    before, after = _computations(_module()), _computations(session.module)
    changed = [after[name] for name in after if before.get(name) != after[name]]
    return fenced("\n\n".join(changed), "hlo")


def loops() -> str:
    """Return a table of the loops and their choices."""
    session = _session()
    session.run_passes()
    rows = [
        [
            f"`{s.id}`",
            str(s.trip_count),
            ", ".join(f"`{c}`" for c in s.choices),
            f"`{session.default_loops().choose_loop(s, session.module)}`",
        ]
        for s in session.loops()
    ]
    return table(["Site", "Trip count", "Choices", "Default policy chooses"], rows)


def actions() -> str:
    """Return a table of the legal fusions before the first one is chosen, with their estimated savings."""
    session = _session()
    session.run_passes()
    session.run_loop_policy()
    rows = [
        [f"`{a.kind}`", f"`%{a.producer}` into `%{a.consumer}`", f"{session.fusion.estimate(a) * 1e9:.0f} ns"]
        for a in session.actions()
    ]
    return table(["Kind", "Fusion", "Estimated saving"], rows)


def fused() -> str:
    """Return the fused computation and the entry after fusion, as HLO text."""
    session, found = _decided(), []
    for name, text in _computations(session.module).items():
        if name.startswith("fused_computation") or name == session.module.entry.name:
            found.append(text)
    return fenced("\n\n".join(found), "hlo")


def nest() -> str:
    """Return the loop nest of the fusion that ends in a reduction."""
    return fenced(loop_nest_text(_reduction()), "text")


def bound() -> str:
    """Return the same nest after its default schedule was applied for a CPU."""
    return fenced(loop_nest_text(C.bind(_reduction(), C.default_schedule)), "text")


def _reduction() -> Kernel:
    nests = (lower(fused_form(i)) for i in _decided().fork().kernels() if i.opcode.text == "fusion")
    (reduction,) = (n for n in nests if n.kind == "reduction")
    return reduction


def c_source() -> str:
    """Return the C function of the fusion that ends in a reduction."""
    (kernel,) = (k for k in _decided().fork().finish().kernels if k.kind == "reduction")
    return fenced(kernel.source, "c")


def loop_source() -> str:
    """Return the C function of the loop kernel."""
    (kernel,) = (k for k in _decided().fork().finish().kernels if k.kind == "loop-kernel")
    return fenced(kernel.source, "c")


def thunks() -> str:
    """Return a table of the thunks and the buffers that they read and write."""
    rows = [
        [f"`{t.name}`", t.kind, _buffers(t, "reads"), _buffers(t, "writes")] for t in _decided().fork().finish().thunks
    ]
    return table(["Thunk", "Kind", "Reads", "Writes"], rows)


def plan() -> str:
    """Return the recorded plan as JSON."""
    return fenced(_decided().plan.to_json(), "json", title="exe.plan.to_json()")


def run() -> str:
    """Return a session in which the executable is compared with NumPy."""
    given = [
        "x = np.linspace(0, 10, 4096, dtype=np.float32)",
        "roots, error = exe(x)",
        "np.allclose(roots, np.sqrt(1 + x * x), rtol=1e-6)",
        "error.shape, error.dtype",
        "bool(error < 1e-6)",
    ]
    names: dict[str, object] = {"np": np, "exe": _decided().fork().finish()}
    lines = []
    for line in given:
        lines.append(f">>> {line}")
        if " = " in line:
            exec(line, names)  # noqa: S102 - the lines above
        else:
            lines.append(repr(eval(line, names)))  # noqa: S307 - the lines above
    return fenced("\n".join(lines), "pycon")


@cache
def _text() -> str:
    return PROGRAM.read_text(encoding="utf-8")


def _module() -> HloModule:
    return parse(_text())


def _session() -> CompilationSession:
    return CompilationSession(_module(), backend="cpu")


@cache
def _decided() -> CompilationSession:
    session = _session()
    decide(session, make_policy("default"))
    return session


def _computations(module: HloModule) -> dict[str, str]:
    """Return each computation's text by its name."""
    blocks = [block for block in str(module).split("\n\n") if "{\n" in block]
    return {block.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%"): block.rstrip() for block in blocks}


def _buffers(thunk: Thunk, which: str) -> str:
    found = thunk.reads() if which == "reads" else thunk.writes()
    resolved = [b.resolve() for b in found]
    return ", ".join(f"{b.kind.value} {b.index} `{b.shape}`" for b in resolved)


LISTINGS = {
    "flow.source": source,
    "flow.passes": passes,
    "flow.optimized": optimized,
    "flow.loops": loops,
    "flow.actions": actions,
    "flow.fused": fused,
    "flow.nest": nest,
    "flow.bound": bound,
    "flow.c": c_source,
    "flow.loop-c": loop_source,
    "flow.thunks": thunks,
    "flow.plan": plan,
    "flow.run": run,
}
