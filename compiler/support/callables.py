"""Policies and selectors that users may give as plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from compiler.errors import ArgumentError
from compiler.support.untrusted import short_repr

_F = TypeVar("_F", bound=Callable[..., Any])


def checked_function(given: _F, what: str, forms: str) -> _F:
    """Return a function that a user gave in place of an object.

    Args:
        given: what the user gave; it has been found not to be such an object.
        what: the kind of object, with its article, for messages.
        forms: what may be given, for messages.

    Raises:
        ArgumentError: it is a class, or no function.
    """
    if isinstance(given, type):
        raise ArgumentError(f"{what} is an object, not the class {given.__name__}; pass {given.__name__}()")
    if not callable(given):
        raise ArgumentError(f"{what} is {forms}, not {short_repr(given)}")
    return given
