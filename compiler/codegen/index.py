"""Index arithmetic: integer expressions of loop variables, kept in linear normal form and simplified by ranges.

An `Int` is `const + sum(coefficient * atom)`; atoms are loop variables, quotients, remainders, or integers known only
at run time. Reshapes become quotients and remainders, which vanish when the ranges of the variables allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable running over 0 .. extent-1."""

    name: str
    extent: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, max(0, self.extent - 1)


@dataclass(frozen=True, slots=True)
class Runtime:
    """An integer scalar of the kernel (a let), known to lie in low .. high."""

    name: str
    low: int
    high: int

    @property
    def range(self) -> tuple[int, int]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(value / divisor) of a non-negative value."""

    value: Int
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        low, high = self.value.range
        return low // self.divisor, high // self.divisor


@dataclass(frozen=True, slots=True)
class Remainder:
    """value mod divisor of a non-negative value."""

    value: Int
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, self.divisor - 1


Atom = Var | Runtime | Quotient | Remainder


@dataclass(frozen=True, slots=True)
class Int:
    """const + sum of coefficient * atom; terms are sorted, coefficients are not zero."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    @property
    def range(self) -> tuple[int, int]:
        low = high = self.const
        for atom, c in self.terms:
            a, b = atom.range
            low += c * (a if c > 0 else b)
            high += c * (b if c > 0 else a)
        return low, high

    @property
    def magnitude(self) -> int:
        """No number met on the way to the value is larger, whatever its sign: those within quotients included."""
        own, inner = abs(self.const), 0
        for atom, c in self.terms:
            own += abs(c) * max(map(abs, atom.range))
            if isinstance(atom, Quotient | Remainder):
                inner = max(inner, atom.value.magnitude)
        return max(own, inner)

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __add__(self, other: Int | int) -> Int:
        if isinstance(other, int):
            return Int(self.terms, self.const + other)
        sums = dict(self.terms)
        for atom, c in other.terms:
            sums[atom] = sums.get(atom, 0) + c
        return _normal(sums, self.const + other.const)

    def __mul__(self, factor: int) -> Int:
        if factor == 0:
            return Int()
        return Int(tuple((a, c * factor) for a, c in self.terms), self.const * factor)

    def __sub__(self, other: Int | int) -> Int:
        return self + (other * -1 if isinstance(other, Int) else -other)

    def floordiv(self, divisor: int) -> Int:
        """Floor of the quotient by a positive integer."""
        whole, rest = self._split(divisor)
        shift, high = rest.range[0] // divisor, rest.range[1]
        # What is divided must not be negative: C rounds towards zero.
        rest, whole = rest - shift * divisor, whole + shift
        if high - shift * divisor < divisor:
            return whole
        return whole + Int(((Quotient(rest, divisor), 1),))

    def mod(self, divisor: int) -> Int:
        """Remainder by a positive integer, 0 or more."""
        _, rest = self._split(divisor)
        shift, high = rest.range[0] // divisor, rest.range[1]
        rest = rest - shift * divisor
        if high - shift * divisor < divisor:
            return rest
        return Int(((Remainder(rest, divisor), 1),))

    def _split(self, divisor: int) -> tuple[Int, Int]:
        """(whole, rest) with self == divisor * whole + rest, rest taking the terms that do not divide."""
        whole, rest = [], []
        for atom, c in self.terms:
            q, r = divmod(c, divisor)
            if r == 0:
                whole.append((atom, q))
            else:
                rest.append((atom, c))
        q, r = divmod(self.const, divisor)
        return Int(tuple(whole), q), Int(tuple(rest), r)

    def variables(self) -> Iterator[Var | Runtime]:
        """Loop variables and run-time integers it depends on, possibly repeated."""
        for atom, _ in self.terms:
            if isinstance(atom, Var | Runtime):
                yield atom
            else:
                yield from atom.value.variables()

    def coefficient(self, v: Atom) -> int:
        """Factor of `v` among the linear terms; 0 when it is not among them."""
        return next((c for a, c in self.terms if a == v), 0)

    def substitute(self, mapping: Mapping[Atom, Int]) -> Int:
        """Replace atoms, simplifying again."""
        out = Int((), self.const)
        for atom, c in self.terms:
            found = mapping.get(atom)
            if found is not None:
                out = out + found * c
            elif isinstance(atom, Quotient):
                out = out + atom.value.substitute(mapping).floordiv(atom.divisor) * c
            elif isinstance(atom, Remainder):
                out = out + atom.value.substitute(mapping).mod(atom.divisor) * c
            else:
                out = out + Int(((atom, c),))
        return out

    def to_c(self) -> str:
        """C text; also CUDA's. Divisions are of non-negative values."""
        parts: list[str] = []
        for atom, c in self.terms:
            text = _atom_text(atom)
            parts.append(text if c == 1 else f"{c}*{text}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ") if len(parts) == 1 else "(" + " + ".join(parts) + ")"


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, Var | Runtime):
        return atom.name
    op = "/" if isinstance(atom, Quotient) else "%"
    return f"({atom.value.to_c()} {op} {atom.divisor})"


def _normal(sums: dict[Atom, int], const: int) -> Int:
    terms = [(a, c) for a, c in sums.items() if c]
    terms.sort(key=_order)
    return Int(tuple(terms), const)


def _order(term: tuple[Atom, int]) -> tuple[int, str]:
    atom = term[0]
    return (0, atom.name) if isinstance(atom, Var) else (1, _atom_text(atom))


def const(value: int) -> Int:
    """A known integer."""
    return Int((), value)


def of(atom: Atom) -> Int:
    """The atom itself; a variable of extent 1 is 0."""
    if isinstance(atom, Var) and atom.extent == 1:
        return Int()
    return Int(((atom, 1),))


Index = tuple[Int, ...]


def linearize(index: Sequence[Int], dims: Sequence[int]) -> Int:
    """Row-major offset."""
    out = Int()
    for i, n in zip(index, dims, strict=True):
        out = out * n + i
    return out


def delinearize(offset: Int, dims: Sequence[int]) -> Index:
    """Inverse of `linearize` for an offset in range."""
    out: list[Int] = []
    for n in reversed(dims[1:]):
        out.append(offset.mod(n) if n > 0 else const(0))
        offset = offset.floordiv(n) if n > 0 else const(0)
    if dims:
        out.append(offset if dims[0] != 1 else const(0))
    return tuple(reversed(out))


def variables_of(index: Iterable[Int]) -> set[Var | Runtime]:
    """Everything an index depends on."""
    return {v for i in index for v in i.variables()}


Substitution = Callable[[Int], Int]
