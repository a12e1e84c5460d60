"""Expansion decisions: how an op without a kernel of its own is computed, site by site.

A convolution may be a library call or a product over patches, a small product a library call or loops, a window a
library call, slices or prefix sums. A choice other than "keep" runs one pass on one instruction. What is not decided is
expanded by `passes.pipelines.default.lower` before fusion, which takes the default of every site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeAlias, runtime_checkable

from compiler.analysis.convolutions import suits_windows
from compiler.analysis.marks import is_marked, mark
from compiler.backends.backend import Backend
from compiler.codegen.languages import C, find_language
from compiler.errors import PlanError
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.printing import canonical_computations
from compiler.passes.dots.convolution_patches import suits_direct
from compiler.passes.dots.dot_strength_reduction import suits_tiles
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.infrastructure.sparing import sparing
from compiler.passes.reductions.windows import has_scan
from compiler.runtime.implementations import implementations_of
from compiler.runtime.instruction_kernels import has_kernel
from compiler.runtime.kernel_modules import kernel_module
from compiler.support.callables import checked_function
from compiler.support.lru_dict import LruDict
from compiler.support.untrusted import short_repr

KEEP = "keep"
"""The choice to compute an op as it is, by a library or a kernel of its own."""
STAGES = "stages"
"""The choice to compute parts first, each by other blocks of a GPU, and then the result from theirs."""
_MARK = "hlogym_expansion"
_SMALL_DOT = "dot-strength-reduction{max_contracted=4096,max_multiplications=4096}"


@dataclass(frozen=True)
class Expansion:
    """A way to compute an op by others.

    Attributes:
        name: the name of the choice.
        opcode: the op.
        pass_text: the pass that expands it.
        default_pass: the pass by whose limits the expansion is the default; the same pass if empty.
        only_staged: whether it is only for languages in which large reductions are divided into stages.
        on_request: whether it is never the default.
    """

    name: str
    opcode: Opcode
    pass_text: str
    default_pass: str = ""
    only_staged: bool = False
    on_request: bool = False

    def is_for(self, language: str | None) -> bool:
        """Check whether the expansion is a choice for kernels in a language."""
        return not self.only_staged or (language is not None and find_language(language).staged)


EXPANSIONS: tuple[Expansion, ...] = (
    Expansion("arithmetic", Opcode.RNG_BIT_GENERATOR, "rng-expander"),
    Expansion(STAGES, Opcode.REDUCE_WINDOW, "scan-stages", only_staged=True),
    Expansion("slices", Opcode.REDUCE_WINDOW, "reduce-window-to-slices"),
    Expansion("prefix-sums", Opcode.REDUCE_WINDOW, "reduce-window-rewriter"),
    Expansion("product", Opcode.CONVOLUTION, "convolution-to-dot"),
    Expansion("patches", Opcode.CONVOLUTION, "convolution-to-patches"),
    Expansion("winograd", Opcode.CONVOLUTION, "convolution-winograd", on_request=True),
    Expansion("loop", Opcode.SCATTER, "scatter-expander", "scatter-expander{simple=false}"),
    Expansion(STAGES, Opcode.TOPK, "topk-stages", only_staged=True),
    Expansion("ranks", Opcode.TOPK, "topk-by-rank"),
    Expansion("sort", Opcode.TOPK, "topk-decomposer"),
    Expansion(
        "loops", Opcode.DOT, "dot-strength-reduction{max_contracted=4096,max_multiplications=1048576}", _SMALL_DOT
    ),
    Expansion(STAGES, Opcode.REDUCE, "reduce-stages", only_staged=True),
    Expansion(STAGES, Opcode.DOT, "product-stages", only_staged=True, on_request=True),
)
"""The expansions among which there is a choice; of those of one op that apply by their limits, the first is the
default."""
_INTERPRETED = frozenset({Opcode.RNG_BIT_GENERATOR})
"""Ops that the interpreter computes between kernels if they are kept."""


@cache
def _opcodes(language: str | None) -> frozenset[Opcode]:
    return frozenset(e.opcode for e in EXPANSIONS if e.is_for(language))


@dataclass(frozen=True)
class ExpansionSite:
    """An op for whose computation there is a choice.

    Attributes:
        id: names of its computation and of the instruction.
        position: its index among the sites of the module in its current form.
        opcode: what the op is.
        signature: shapes of its operands and its result.
        choices: the legal choices, the default first.
        instruction: the op itself, for policies that look at its graph.
    """

    id: str
    position: int
    opcode: Opcode
    signature: str
    choices: tuple[str, ...]
    instruction: HloInstruction | None = field(default=None, compare=False, repr=False)

    @property
    def default(self) -> str:
        """The choice that is taken when none is made."""
        return self.choices[0]


ChooseExpansion: TypeAlias = Callable[[ExpansionSite], str]
"""A function that chooses as `ExpansionPolicy.choose_expansion` does."""


@runtime_checkable
class ExpansionPolicy(Protocol):
    """Chooses how ops are computed."""

    def choose_expansion(self, site: ExpansionSite) -> str:
        """Return one of `site.choices`."""
        ...


class DefaultExpansions:
    """Takes the default of every site."""

    def choose_expansion(self, site: ExpansionSite) -> str:
        """Return the first choice."""
        return site.default


@dataclass(frozen=True)
class FunctionExpansions:
    """An expansion policy that asks a function."""

    function: ChooseExpansion

    def choose_expansion(self, site: ExpansionSite) -> str:
        """See `ExpansionPolicy.choose_expansion`."""
        return self.function(site)


def as_expansion_policy(given: ExpansionPolicy | ChooseExpansion) -> ExpansionPolicy:
    """Return an expansion policy itself, or one that asks the given function.

    Raises:
        ArgumentError: `given` is neither.
    """
    if isinstance(given, ExpansionPolicy) and not isinstance(given, type):
        return given
    forms = "an object with choose_expansion(site), or a function of the site"
    return FunctionExpansions(checked_function(given, "an expansion policy", forms))


# ---- sites


def expansion_sites(module: HloModule, backend: Backend) -> list[ExpansionSite]:
    """Return the ops with a choice, in an order that depends on the graph alone; none for a backend without kernels."""
    return [site for site, _ in _sites(module, backend)]


def _sites(module: HloModule, backend: Backend) -> Iterator[tuple[ExpansionSite, HloInstruction]]:
    opcodes = _opcodes(backend.language)
    if backend.language is None or not any(i.opcode in opcodes for c in module.computations for i in c.instructions):
        return
    sequences = set(module.control_flow_computations())
    position = 0
    for computation, order in canonical_computations(module.entry).items():
        if computation not in sequences:
            continue
        for i in order:
            choices = choices_of(i, backend) if i.opcode in opcodes else ()
            if len(choices) > 1:
                operands = ", ".join(str(o.shape) for o in i.operands)
                signature = f"({operands}) -> {i.shape}"
                yield ExpansionSite(f"{computation.name}/{i.name}", position, i.opcode, signature, choices, i), i
                position += 1


_CHOICES: LruDict[tuple[str, str], tuple[str, ...]] = LruDict(10_000)


def choices_of(i: HloInstruction, backend: Backend) -> tuple[str, ...]:
    """Return the legal choices for an instruction, the default first; at most one means that nothing can be chosen."""
    if is_kept(i):
        return (KEEP,)
    alone = kernel_module(i)
    key = backend.name, alone.fingerprint()
    found = _CHOICES.get(key)
    if found is None:
        found = _CHOICES[key] = _choices_of(i, alone, backend)
    if KEEP in found and found[0] != STAGES and _is_kept_by_default(i, backend):
        return (KEEP, *(n for n in found if n != KEEP))
    return found


def _is_kept_by_default(i: HloInstruction, backend: Backend) -> bool:
    """Check whether `lower_for` keeps an op because of what is around it; in loops, small products depend on these."""
    if i.opcode is not Opcode.DOT:
        is_direct = backend.language == C.name and (suits_windows(i) or suits_direct(i))
        return i.opcode is Opcode.TOPK or has_scan(i) or is_direct
    module = i.parent.parent if i.parent is not None else None
    return module is not None and i.parent is module.entry and backend.language == C.name and suits_tiles(i)


def _choices_of(i: HloInstruction, alone: HloModule, backend: Backend) -> tuple[str, ...]:
    mine = [e for e in EXPANSIONS if e.opcode is i.opcode and e.is_for(backend.language)]
    offered = [e for e in mine if _changes(alone, e.pass_text)]
    names = [e.name for e in offered if not e.on_request]
    in_library = backend.library_refusal(i) is None
    if in_library or i.opcode in _INTERPRETED or implementations_of(i, backend.name) or _has_kernel(i, backend):
        names.append(KEEP)
    if names:
        names += [e.name for e in offered if e.on_request]
    by_limits = (
        e.name for e in offered if not (in_library or e.on_request) and _changes(alone, e.default_pass or e.pass_text)
    )
    default = next(by_limits, KEEP if KEEP in names else None)
    if default is None or default not in names:
        return tuple(names)
    return (default, *(n for n in names if n != default))


def _has_kernel(i: HloInstruction, backend: Backend) -> bool:
    return backend.language is not None and has_kernel(i, backend.language)


def _changes(alone: HloModule, pass_text: str) -> bool:
    return make_pass(pass_text).run(alone.clone())


# ---- choosing


def is_kept(i: HloInstruction) -> bool:
    """Check whether an instruction was decided to be computed as it is."""
    return is_marked(i, _MARK, KEEP)


def find_expansion_site(module: HloModule, site_id: str, backend: Backend) -> ExpansionSite:
    """Return a site by its id.

    Raises:
        PlanError: there is none; the message lists the sites of the module.
    """
    sites = expansion_sites(module, backend)
    for s in sites:
        if s.id == site_id:
            return s
    listed = ", ".join(s.id for s in sites) or "none"
    raise PlanError(f"there is no choice of expansion for {short_repr(site_id)}; sites: {listed}")


def apply_expansion(module: HloModule, position: int, choice: str, backend: Backend) -> bool:
    """Apply a choice to the site at a position; return whether the module changed.

    Raises:
        PlanError: there is no such site, or it does not have this choice.
    """
    sites = list(_sites(module, backend))
    if position >= len(sites):
        raise PlanError(f"there is no expansion site at position {position}; the module has {len(sites)}")
    site, instruction = sites[position]
    if choice not in site.choices:
        raise PlanError(
            f"%{instruction.name} cannot be computed as {short_repr(choice)}; choices: {', '.join(site.choices)}"
        )
    if choice == KEEP:
        mark(instruction, _MARK, KEEP)
        return True
    expansion = next(e for e in EXPANSIONS if e.opcode is instruction.opcode and e.name == choice)
    return sparing(make_pass(expansion.pass_text), lambda i: i is not instruction).run(module)
