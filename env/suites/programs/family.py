"""Families of programs: functions with their arguments over sizes, types and variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from env.suites.input_specs import InputSpec, Normal, Randint, Uniform

__all__ = [
    "HALVES",
    "Argument",
    "Families",
    "Family",
    "Member",
    "Members",
    "each_of",
    "integers",
    "normal",
    "sizes",
    "uniform",
    "with_halves",
]

HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Argument:
    """One array argument: its dimensions, its element type by NumPy's name, and the distribution of its values."""

    dims: tuple[int, ...]
    dtype: str
    spec: InputSpec


def normal(*dims: int, std: float = 1.0, mean: float = 0.0, dtype: str = "float32") -> Argument:
    """Return an argument with normal values."""
    return Argument(dims, dtype, Normal(mean, std))


def uniform(low: float, high: float, *dims: int, dtype: str = "float32") -> Argument:
    """Return an argument with uniform values in [low, high)."""
    return Argument(dims, dtype, Uniform(low, high))


def integers(low: int, high: int, *dims: int, dtype: str = "int32") -> Argument:
    """Return an argument with integers from low to high - 1."""
    return Argument(dims, dtype, Randint(low, high))


@dataclass(frozen=True)
class Member:
    """One program of a family before it is lowered.

    Attributes:
        name: its variant and sizes; unique in the family.
        function: function of JAX arrays or of tensors, or a `torch.nn.Module`.
        arguments: its arguments, without the weights of a module.
        chaotic: whether rounding may change a decision (see `Program.chaotic`).
        seed: seed that the function was drawn from, if it was.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    chaotic: bool = False
    seed: int | None = None


Members: TypeAlias = Iterable[Member]


@dataclass(frozen=True)
class Family:
    """A named family.

    Attributes:
        name: its name.
        source: the function that yields its members, as `module.name`.
        description: the first line of that function's docstring.
        members: yields the members.
    """

    name: str
    source: str
    description: str
    members: Callable[[], Members]


@dataclass
class Families:
    """Families by name; `families.add` is a decorator."""

    by_name: dict[str, Family] = field(default_factory=dict)

    def add(self, members: Callable[[], Members]) -> Callable[[], Members]:
        """Add a family under the name of its function."""
        name = members.__name__
        if name in self.by_name:
            raise ValueError(f"two families are called {name!r}")
        description = (members.__doc__ or name.replace("_", " ")).strip().partition("\n")[0].rstrip(".")
        self.by_name[name] = Family(name, f"{members.__module__}.{name}", description, members)
        return members


def with_halves(sizes: Iterable[tuple[int, ...]], halves: int = 2) -> list[tuple[tuple[int, ...], str]]:
    """Return each size with float32, and the first ones also with bfloat16 and float16.

    Args:
        sizes: sizes of any rank.
        halves: how many of the sizes get the half types.
    """
    listed = list(sizes)
    return [(s, "float32") for s in listed] + [(s, h) for h in HALVES for s in listed[:halves]]


def sizes(*dims: int) -> str:
    """Return the part of a name that says the sizes."""
    return "x".join(map(str, dims))


def each_of(
    variants: Mapping[str, Callable[..., Any]], cases: Mapping[str, tuple[Argument, ...]], chaotic: bool = False
) -> Members:
    """Yield every variant for every case; a case has the arguments by the part of the name that says their sizes."""
    for variant, function in variants.items():
        for case, arguments in cases.items():
            yield Member(f"{variant}_{case}", function, arguments, chaotic)
