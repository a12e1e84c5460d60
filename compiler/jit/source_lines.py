"""Lines of Python to which ops of a program belong, for error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex

from compiler.errors import UnsupportedError

__all__ = ["with_source_line"]

_INSTRUCTION = re.compile(r"%([\w\-]+)")
_INTERNAL = tuple(os.path.dirname(os.path.abspath(f)) + os.sep for f in (jax.__file__, __file__))  # noqa: PTH100, PTH120


def with_source_line(error: UnsupportedError, closed: Any) -> UnsupportedError:
    """Return an error of the compiler with the line of Python to which its instruction belongs, if it is known.

    JAX names instructions after primitives, so that the first line with that primitive is found.

    Args:
        error: its message starts with the instruction.
        closed: the jaxpr from which the program was lowered.
    """
    found = _INSTRUCTION.search(str(error))
    line = None if found is None else next(_lines(closed.jaxpr, found.group(1)), None)
    return error if line is None else UnsupportedError(f"{line}: {error}")


def _lines(jaxpr: Any, name: str) -> Iterator[str]:
    """Yield the file and line of each equation of a primitive."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            traceback = equation.source_info.traceback
            for frame in () if traceback is None else traceback.frames:
                if not frame.file_name.startswith(_INTERNAL):
                    yield f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
                    break
    for inner in jex.subjaxprs(jaxpr):
        yield from _lines(inner, name)
