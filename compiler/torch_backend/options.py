"""The options of `torch.compile(..., backend="hlogym", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from compiler.errors import ArgumentError
from compiler.support.untrusted import short_repr


@dataclass(frozen=True)
class BackendOptions:
    """How graphs of `torch.compile` are compiled.

    Attributes:
        backend: the backend of the compiler, as in `compile`: "cpu", "cuda", "interpreter" or "auto".
        policy: decides fusion: a name, a folder of a policy, a policy, or None for the default.
        fallback: run a graph with an unsupported op by PyTorch and warn; False raises the error instead.
        fallback_random: let PyTorch draw the random numbers, so that they equal those of eager mode for the same seed.
            By default they are drawn inside the program, from a seed that PyTorch's generator gives.
        cache: keep compiled programs in the cache folder, where later processes find them.
    """

    backend: str = "cpu"
    policy: Any = None
    fallback: bool = True
    fallback_random: bool = False
    cache: bool = True

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> BackendOptions:
        """Return the options for a dictionary; raise ArgumentError for a name or a value that is not possible."""
        names = {f.name for f in fields(BackendOptions)}
        for name, value in (given or {}).items():
            if name not in names:
                raise ArgumentError(
                    f"the hlogym backend of torch.compile has no option {short_repr(name)}; there are "
                    + ", ".join(sorted(names))
                )
            default = getattr(BackendOptions, name)
            if default is not None and type(value) is not type(default):
                wanted = type(default).__name__
                raise ArgumentError(f"option {name!r} of the hlogym backend is a {wanted}, not {short_repr(value)}")
        return BackendOptions(**(given or {}))
