"""What executables print in a terminal and in a notebook."""

from __future__ import annotations

from compiler.runtime.executable import Executable, parameter_leaves
from compiler.support.display import counted, html_table
from compiler.support.memory import size_text
from compiler.support.safe_names import one_line

__all__ = ["executable_html", "executable_text"]

_LEAVES = 4
_ROWS = 100


def executable_text(executable: Executable) -> str:
    """Return one line with the backend, the program, its arguments and results, its kernels and its memory."""
    module = executable.module
    arguments = _shapes([str(s) for s in parameter_leaves(module)])
    results = _shapes([str(s) for s in module.entry.result_shape.leaves() if s.is_array])
    kernels = counted(len(executable.kernels), "kernel")
    memory = "" if executable.memory is None else f", {size_text(executable.memory.peak)} per call"
    return one_line(f"<{type(executable).__name__} of {module.name}: ({arguments}) -> ({results}), {kernels}{memory}>")


def executable_html(executable: Executable) -> str:
    """Return a table of the kernels, headed by the line of `executable_text`."""
    rows = [(k.name, k.kind, f"{k.bytes:,}", f"{k.flops:,}") for k in executable.kernels[:_ROWS]]
    more = len(executable.kernels) - _ROWS
    rows += [(f"and {more:,} more", "", "", "")] if more > 0 else []
    return html_table(executable_text(executable), ("kernel", "kind", "bytes", "flops"), rows)


def _shapes(shapes: list[str]) -> str:
    more = [f"and {len(shapes) - _LEAVES} more"] if len(shapes) > _LEAVES else []
    return ", ".join(shapes[:_LEAVES] + more)
