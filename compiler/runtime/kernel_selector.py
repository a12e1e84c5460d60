"""The protocol of kernel selectors, and the selector that takes the default of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.callables import checked_function

ChooseKernel: TypeAlias = Callable[[KernelSite], KernelChoice]
"""A function that chooses as `KernelSelector.choose_kernel` does."""


@runtime_checkable
class KernelSelector(Protocol):
    """Chooses the implementation and the schedule of each kernel."""

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return one of `site.choices`, or any other choice that `site.check` accepts."""
        ...


@runtime_checkable
class PreparedSelector(KernelSelector, Protocol):
    """A selector that sees all kernels of a program before it is asked about each."""

    def prepare(self, sites: Sequence[KernelSite]) -> None:
        """Decide about kernels together, because that is faster."""
        ...


class KernelRanking(Protocol):
    """Ranks choices of a kernel without measuring them, for searches that measure the best few."""

    def rank(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Sequence[float]:
        """Return a number per choice, of which the least belongs to the one that is expected to be fastest."""
        ...


def most_promising(
    ranking: KernelRanking, site: KernelSite, choices: Sequence[KernelChoice], count: int
) -> list[KernelChoice]:
    """Return at most `count` choices, the first of them first and then those that a ranking expects to be fastest."""
    ranks = ranking.rank(site, choices)
    others = sorted(range(1, len(choices)), key=lambda n: ranks[n])
    return [choices[n] for n in (0, *others)[:count]]


class DefaultKernels:
    """Takes the default of every kernel, which the rules of the backend and of the registered implementations give."""

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return the first choice."""
        return site.default


@dataclass(frozen=True)
class FunctionSelector:
    """A kernel selector that asks a function."""

    function: ChooseKernel

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """See `KernelSelector.choose_kernel`."""
        return self.function(site)


def as_selector(given: KernelSelector | ChooseKernel) -> KernelSelector:
    """Return a kernel selector itself, or one that asks the given function.

    Raises:
        ArgumentError: `given` is neither.
    """
    if isinstance(given, KernelSelector) and not isinstance(given, type):
        return given
    forms = "an object with choose_kernel(site), or a function of the site"
    return FunctionSelector(checked_function(given, "a kernel selector", forms))
