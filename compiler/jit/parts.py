"""Functions with effects or callbacks: JAX runs the equations that have them, and programs compute the others."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex

from compiler.jit.lowering import effects_of, spec
from compiler.jit.primitive import call
from compiler.jit.programs import Settings

__all__ = ["call_in_parts", "is_program"]

_CALLBACKS = frozenset(("pure_callback", "ffi_call"))
"""Primitives without effects that call code which this compiler does not have."""
_NESTED = frozenset(("jit", "scan", "while", "cond"))
"""Primitives whose bodies, branches or functions are called in parts."""
_CACHED = 256
"""Number of functions whose parts are kept."""


def is_program(closed: Any) -> bool:
    """Check whether a closed jaxpr can be one program: nothing in it has effects or calls back."""
    return not effects_of(closed) and not _calls_back(closed.jaxpr)


def _calls_back(jaxpr: Any) -> bool:
    return any(e.primitive.name in _CALLBACKS for e in jaxpr.eqns) or any(map(_calls_back, jex.subjaxprs(jaxpr)))


def _is_of_jax(equation: Any) -> bool:
    """Check whether JAX has to run an equation."""
    return (
        bool(effects_of(equation))
        or equation.primitive.name in _CALLBACKS
        or any(map(_calls_back, jex.jaxprs_in_params(equation.params)))
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """Equations of a jaxpr that a program computes, or one that JAX runs.

    Attributes:
        jaxpr: closed jaxpr of the equations.
        is_program: whether a program computes them.
        inputs, outputs: variables of the whole jaxpr that the part reads and sets.
    """

    jaxpr: Any
    is_program: bool
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def call_in_parts(closed: Any, settings: Settings, *args: Any, donated: tuple[int, ...] = ()) -> list[Any]:
    """Call a closed jaxpr with arrays or tracers: as one program, or else as programs and equations that JAX runs.

    Args:
        closed: the jaxpr.
        settings: of its programs.
        *args: its arguments.
        donated: numbers of the arguments that results of one program may take over.
    """
    if is_program(closed):
        return call(closed, settings, *args, donated=donated)
    variables = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
    values = dict(zip(variables, (*closed.consts, *args), strict=True))
    for part in _parts(closed, settings):
        given = [values[v] for v in part.inputs]
        if part.is_program:
            results = call(part.jaxpr, settings, *given)
        else:
            results = jax.core.eval_jaxpr(part.jaxpr.jaxpr, part.jaxpr.consts, *given)
        values.update(zip(part.outputs, results, strict=True))
    return [v.val if isinstance(v, jex.Literal) else values[v] for v in closed.jaxpr.outvars]


@functools.lru_cache(maxsize=_CACHED)
def _parts(closed: Any, settings: Settings) -> tuple[_Part, ...]:
    """Return the parts of a closed jaxpr in the order in which they run.

    Each level has one program and, after it, equations of JAX. An equation is at the first level where its operands are
    known, so that printing a value does not divide what computes it. The equations of JAX keep their order.
    """
    levels: dict[Any, int] = {}  # of variables
    programs: dict[int, list[Any]] = {}
    of_jax: dict[int, list[Any]] = {}
    latest = 0
    for equation in closed.jaxpr.eqns:
        level = max((levels.get(v, 0) for v in _variables(equation.invars)), default=0)
        if _is_of_jax(equation):
            latest = max(latest, level)
            of_jax.setdefault(latest, []).append(equation)
            level = latest + 1
        else:
            programs.setdefault(level, []).append(equation)
        levels.update((v, level) for v in equation.outvars)
    parts = []
    for level in sorted({*programs, *of_jax}):
        if level in programs:
            parts.append(_program(closed, programs[level]))
        parts += [_equation(closed, e, settings) for e in of_jax.get(level, ())]
    return tuple(parts)


def _program(closed: Any, equations: list[Any]) -> _Part:
    """Return the part of equations that a program computes; it returns what other equations read."""
    own = set(map(id, equations))
    read = {v for e in closed.jaxpr.eqns if id(e) not in own for v in _variables(e.invars)}
    read.update(_variables(closed.jaxpr.outvars))
    jaxpr = _of_equations(closed.jaxpr, equations, read)
    whole = jax.make_jaxpr(functools.partial(jax.core.eval_jaxpr, jaxpr, closed.consts))
    return _Part(whole(*(spec(v.aval) for v in jaxpr.invars)), True, jaxpr.invars, jaxpr.outvars)


def _equation(closed: Any, equation: Any, settings: Settings) -> _Part:
    """Return the part of one equation that JAX runs; what is inside a loop or branch is called in parts."""
    if equation.primitive.name in _NESTED:
        equation = equation.replace(params={k: _in_parts(v, settings) for k, v in equation.params.items()})
    jaxpr = _of_equations(closed.jaxpr, [equation], set(equation.outvars))
    return _Part(jex.ClosedJaxpr(jaxpr, closed.consts), False, jaxpr.invars, jaxpr.outvars)


def _in_parts(value: Any, settings: Settings) -> Any:
    """Return a parameter of an equation with its closed jaxprs called in parts."""
    if isinstance(value, tuple):
        return tuple(_in_parts(v, settings) for v in value)
    if not isinstance(value, jex.ClosedJaxpr) or is_program(value):
        return value
    return jax.make_jaxpr(functools.partial(call_in_parts, value, settings))(*map(spec, value.in_avals))


def _of_equations(jaxpr: Any, equations: list[Any], read: set[Any]) -> Any:
    """Return the jaxpr of some equations, whose results are the variables in `read` that they set."""
    known = {*jaxpr.constvars, *(v for e in equations for v in e.outvars)}
    return jaxpr.replace(
        eqns=equations,
        invars=list(dict.fromkeys(v for e in equations for v in _variables(e.invars) if v not in known)),
        outvars=[v for e in equations for v in e.outvars if v in read],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def _variables(operands: Sequence[Any]) -> Iterator[Any]:
    return (v for v in operands if not isinstance(v, jex.Literal))
