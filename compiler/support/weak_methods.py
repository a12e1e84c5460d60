"""Functions that call a bound method without keeping its object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["weakly"]

P = ParamSpec("P")
R = TypeVar("R")


def weakly(method: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls a bound method of a living object without keeping that object alive.

    An object that stores such a function is not part of a reference cycle, so it is freed as soon as it is unused. The
    function raises ReferenceError once the object is gone.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = reference()
        if bound is None:
            raise ReferenceError("the object of this method is gone")
        return bound(*args, **kwargs)

    return call
