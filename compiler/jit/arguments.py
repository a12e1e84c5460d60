"""Arguments of functions of `hlogym.jit`: which are static or donated, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax

from compiler.errors import ArgumentError, HlogymError
from compiler.support.untrusted import short_repr

__all__ = ["DONATED", "STATIC", "Arguments", "check_leaves", "explained"]

STATIC, DONATED = 1, 2
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """Which arguments of a function are static or donated, by position and by name, and the names of the first ones."""

    static_numbers: tuple[int, ...] = ()
    static_names: tuple[str, ...] = ()
    donated_numbers: tuple[int, ...] = ()
    donated_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @staticmethod
    def of(function: Any, *given: Any) -> Arguments:
        """Return the arguments from `static_argnums`, `static_argnames`, `donate_argnums` and `donate_argnames`."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a builtin
            parameters = []
        resolved = *_resolved("static", parameters, *given[:2]), *_resolved("donate", parameters, *given[2:])
        return Arguments(*resolved, tuple(p.name for p in parameters if p.kind in _POSITIONAL))

    def leaf_name(self, path: Any) -> str:
        """Return the name of a leaf of (args, kwargs), such as `x` or `params['w']`."""
        by_name = path[0].idx == 1
        if by_name:
            return f"{path[1].key}{jax.tree_util.keystr(path[2:])}"
        n = path[1].idx
        return f"{self.names[n] if n < len(self.names) else f'args[{n}]'}{jax.tree_util.keystr(path[2:])}"

    def split(self, args: Any, kwargs: Any) -> tuple[Hashable, list[Any], Any]:
        """Return the static arguments, the leaves of the others, and their structure."""
        if not self.static_numbers and not self.static_names:
            return None, *jax.tree_util.tree_flatten((args, kwargs))
        static = [(n, args[n]) for n in self.static_numbers if n < len(args)]
        named = [(name, kwargs[name]) for name in self.static_names if name in kwargs]
        others = tuple(None if n in self.static_numbers else a for n, a in enumerate(args))
        rest = {name: value for name, value in kwargs.items() if name not in self.static_names}
        return (*static, *named), *jax.tree_util.tree_flatten((others, rest))

    def marks(self, args: Any, kwargs: Any) -> list[int]:
        """Return for each leaf of the arguments STATIC, DONATED or 0."""
        positional = [_mark(n, self.static_numbers, self.donated_numbers) for n in range(len(args))]
        named = {name: _mark(name, self.static_names, self.donated_names) for name in kwargs}
        marks = [m for m, a in zip(positional, args, strict=True) for _ in jax.tree.leaves(a)]
        return marks + [named[name] for name in sorted(kwargs) for _ in jax.tree.leaves(kwargs[name])]


def _mark(argument: Any, static: tuple[Any, ...], donated: tuple[Any, ...]) -> int:
    return STATIC if argument in static else DONATED if argument in donated else 0


def _resolved(kind: str, parameters: list[inspect.Parameter], numbers: Any, names: Any) -> tuple[Any, Any]:
    """Return positions and names; a parameter that can be given both ways is listed under both."""
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters
    for n in numbers:
        if not any_number and not -len(positional) <= n < len(positional):
            raise ArgumentError(f"{kind}_argnums: the function has {len(positional)} positional argument(s), no {n}")
    for name in names:
        if not any_name and name not in {p.name for p in parameters}:
            raise ArgumentError(f"{kind}_argnames: the function has no argument {name!r}")
    numbers = [n + len(positional) if n < 0 and positional else n for n in numbers]
    by_name = {p.name: n for n, p in enumerate(positional) if p.kind is p.POSITIONAL_OR_KEYWORD}
    found = {*numbers, *(by_name[name] for name in names if name in by_name)}
    also = {*names, *(p.name for n, p in enumerate(positional) if n in found and p.name in by_name)}
    return tuple(sorted(found)), tuple(sorted(also))


# ---- errors


def check_leaves(arguments: Arguments, args: Any, kwargs: Any) -> None:
    """Raise ArgumentError if a static argument is not hashable or a leaf of another argument is no array."""
    for where, value in [*enumerate(args), *kwargs.items()]:
        name = f"argument {where}"
        if where in arguments.static_numbers or where in arguments.static_names:
            try:
                hash(value)
            except TypeError:
                raise ArgumentError(
                    f"{name} is static, but a {type(value).__name__} is not hashable: {short_repr(value)}; pass a "
                    "hashable value, such as a tuple in place of a list, or do not mark it static"
                ) from None
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if not isinstance(leaf, jax.ShapeDtypeStruct) and not _is_array(leaf):
                raise ArgumentError(
                    f"{name}{jax.tree_util.keystr(path)} is {short_repr(leaf)}, a {type(leaf).__name__}, which is no "
                    "array; if the program depends on it, list its argument in static_argnums or static_argnames"
                )


def _is_array(leaf: Any) -> bool:
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


def explained(error: Exception, arguments: Arguments, args: Any, kwargs: Any) -> Exception:
    """Return the error to raise: one that says which argument is wrong, or the error of JAX or of the function."""
    if not isinstance(error, HlogymError):
        try:
            check_leaves(arguments, args, kwargs)
        except ArgumentError as better:
            return better
    return error
