"""Index arithmetic: quasi-affine expressions of loop variables in a normal form, simplified by value ranges.

An `IndexExpr` is `const + sum(coefficient * symbol)`, where a symbol is a loop variable, an integer known only at run
time, or the quotient, remainder or multiple of another index expression. Equal expressions have equal normal forms
wherever the simplifications find it, so indices can be compared and used as dictionary keys. A reshape produces
quotients and remainders; those that the ranges of the variables make redundant are removed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable with the values 0 .. extent-1."""

    name: str
    extent: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, max(0, self.extent - 1)


@dataclass(frozen=True, slots=True)
class Runtime:
    """An integer scalar of the kernel, defined by a `Let`, with a value in low .. high."""

    name: str
    low: int
    high: int

    @property
    def range(self) -> tuple[int, int]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(value / divisor) for a non-negative value."""

    value: IndexExpr
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        low, high = self.value.range
        return low // self.divisor, high // self.divisor


@dataclass(frozen=True, slots=True)
class Remainder:
    """value mod divisor for a non-negative value."""

    value: IndexExpr
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, self.divisor - 1


@dataclass(frozen=True, slots=True)
class Multiple:
    """value * factor, where the factor is one number that the compiler of the language does not know."""

    value: IndexExpr
    factor: Runtime

    @property
    def range(self) -> tuple[int, int]:
        return (self.value * self.factor.low).range


IndexSymbol = Var | Runtime | Quotient | Remainder | Multiple


@dataclass(frozen=True, slots=True)
class IndexExpr:
    """An index expression in normal form: terms are sorted by symbol and no coefficient is zero."""

    terms: tuple[tuple[IndexSymbol, int], ...] = ()
    const: int = 0

    @property
    def range(self) -> tuple[int, int]:
        low = high = self.const
        for symbol, c in self.terms:
            a, b = symbol.range
            low += c * (a if c > 0 else b)
            high += c * (b if c > 0 else a)
        return low, high

    @property
    def magnitude(self) -> int:
        """Return an upper bound on the absolute value of every intermediate result, operands of quotients included."""
        own, inner = abs(self.const), 0
        for symbol, c in self.terms:
            own += abs(c) * max(map(abs, symbol.range))
            if isinstance(symbol, Quotient | Remainder | Multiple):
                inner = max(inner, symbol.value.magnitude)
        return max(own, inner)

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def factor(self) -> int:
        """Return the largest number that divides every value, 0 for the constant 0."""
        return math.gcd(self.const, *(factor for _, factor in self.terms))

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        if isinstance(other, int):
            return IndexExpr(self.terms, self.const + other)
        sums = dict(self.terms)
        for symbol, c in other.terms:
            sums[symbol] = sums.get(symbol, 0) + c
        return _normal(sums, self.const + other.const)

    def __mul__(self, factor: int) -> IndexExpr:
        if factor == 0:
            return IndexExpr()
        return IndexExpr(tuple((a, c * factor) for a, c in self.terms), self.const * factor)

    def __sub__(self, other: IndexExpr | int) -> IndexExpr:
        return self + (other * -1 if isinstance(other, IndexExpr) else -other)

    def floordiv(self, divisor: int) -> IndexExpr:
        """Return the floor of the quotient by a positive integer."""
        # Multiples of the divisor leave the quotient exactly. What remains becomes a quotient symbol, or a constant if
        # its range is within one multiple of the divisor, as it is when a reshape is undone.
        whole, rest = self.split(divisor)
        shift, high = rest.range[0] // divisor, rest.range[1]
        # C rounds towards zero, so a multiple of the divisor makes the dividend non-negative first.
        rest, whole = rest - shift * divisor, whole + shift
        if high - shift * divisor < divisor:
            return whole
        return whole + IndexExpr(((Quotient(rest, divisor), 1),))

    def mod(self, divisor: int) -> IndexExpr:
        """Return the non-negative remainder by a positive integer."""
        _, rest = self.split(divisor)
        shift, high = rest.range[0] // divisor, rest.range[1]
        rest = rest - shift * divisor
        if high - shift * divisor < divisor:
            return rest
        return IndexExpr(((Remainder(rest, divisor), 1),))

    def split(self, divisor: int) -> tuple[IndexExpr, IndexExpr]:
        """Return (whole, rest) with self == divisor * whole + rest; rest has the terms that are not multiples."""
        whole, rest = [], []
        for symbol, c in self.terms:
            q, r = divmod(c, divisor)
            if r == 0:
                whole.append((symbol, q))
            else:
                rest.append((symbol, c))
        q, r = divmod(self.const, divisor)
        return IndexExpr(tuple(whole), q), IndexExpr(tuple(rest), r)

    def variables(self) -> Iterator[Var | Runtime]:
        """Yield the loop variables and run-time integers that it depends on, possibly repeatedly."""
        for symbol, _ in self.terms:
            if isinstance(symbol, Var | Runtime):
                yield symbol
            else:
                yield from symbol.value.variables()
                if isinstance(symbol, Multiple):
                    yield symbol.factor

    def coefficient(self, v: IndexSymbol) -> int:
        """Return the coefficient of `v` in the linear terms, 0 if there is none."""
        return next((c for a, c in self.terms if a == v), 0)

    def substitute(self, mapping: Mapping[IndexSymbol, IndexExpr]) -> IndexExpr:
        """Replace symbols by expressions and simplify the result."""
        out = IndexExpr((), self.const)
        for symbol, c in self.terms:
            found = mapping.get(symbol)
            if found is not None:
                out = out + found * c
            elif isinstance(symbol, Quotient):
                out = out + symbol.value.substitute(mapping).floordiv(symbol.divisor) * c
            elif isinstance(symbol, Remainder):
                out = out + symbol.value.substitute(mapping).mod(symbol.divisor) * c
            elif isinstance(symbol, Multiple):
                out = out + multiple(symbol.value.substitute(mapping), symbol.factor) * c
            else:
                out = out + IndexExpr(((symbol, c),))
        return out

    def to_c(self) -> str:
        """Return the expression in C and CUDA C++, whose division agrees because no dividend is negative."""
        parts: list[str] = []
        for symbol, c in self.terms:
            text = _symbol_text(symbol)
            parts.append(text if c == 1 else f"{c}*{text}")
        if self.const or not parts:
            parts.append(str(self.const))
        return parts[0] if len(parts) == 1 else "(" + " + ".join(parts) + ")"


def _symbol_text(symbol: IndexSymbol) -> str:
    if isinstance(symbol, Var | Runtime):
        return symbol.name
    if isinstance(symbol, Multiple):
        return f"({symbol.factor.name}*{symbol.value.to_c()})"
    op = "/" if isinstance(symbol, Quotient) else "%"
    return f"({symbol.value.to_c()} {op} {symbol.divisor})"


def _normal(sums: dict[IndexSymbol, int], const: int) -> IndexExpr:
    for symbol, c in sums.items():
        # divisor * (value / divisor) + value % divisor is the value, as when merged dimensions are divided and merged.
        if isinstance(symbol, Quotient) and c % symbol.divisor == 0:
            rest, part = Remainder(symbol.value, symbol.divisor), c // symbol.divisor
            if part and sums.get(rest) == part:
                others = {s: n for s, n in sums.items() if s not in (symbol, rest)}
                return _normal(others, const) + symbol.value * part
    terms = [(a, c) for a, c in sums.items() if c]
    terms.sort(key=_order)
    return IndexExpr(tuple(terms), const)


def _order(term: tuple[IndexSymbol, int]) -> tuple[int, str]:
    symbol = term[0]
    return (0, symbol.name) if isinstance(symbol, Var) else (1, _symbol_text(symbol))


def const(value: int) -> IndexExpr:
    """Return a constant index expression."""
    return IndexExpr((), value)


def of(symbol: IndexSymbol) -> IndexExpr:
    """Return a symbol as an index expression; a loop variable of extent 1 becomes 0."""
    if isinstance(symbol, Var) and symbol.extent == 1:
        return IndexExpr()
    return IndexExpr(((symbol, 1),))


def multiple(value: IndexExpr, factor: Runtime) -> IndexExpr:
    """Return an expression times a number that the compiler of the language does not know."""
    return IndexExpr(((Multiple(value, factor), 1),)) if value.terms or value.const else value


Index = tuple[IndexExpr, ...]


def linearize(index: Sequence[IndexExpr], dims: Sequence[int]) -> IndexExpr:
    """Return the row-major offset of an index."""
    out = IndexExpr()
    for i, n in zip(index, dims, strict=True):
        out = out * n + i
    return out


def delinearize(offset: IndexExpr, dims: Sequence[int]) -> Index:
    """Return the index of a row-major offset, the inverse of `linearize` for offsets in range."""
    out: list[IndexExpr] = []
    for n in reversed(dims[1:]):
        out.append(offset.mod(n) if n > 0 else const(0))
        offset = offset.floordiv(n) if n > 0 else const(0)
    if dims:
        out.append(offset if dims[0] != 1 else const(0))
    return tuple(reversed(out))


def reshaped(index: Sequence[IndexExpr], dims: Sequence[int], to: Sequence[int]) -> Index:
    """Return the index with the same row-major offset in an array of other dimensions, as many elements, at least one.

    Dimensions that a reshape keeps keep their indices, also where tests outside bound these to the dimension.
    """
    out: list[IndexExpr] = []
    a = b = 0
    while a < len(dims) or b < len(to):
        if a < len(dims) and dims[a] == 1:
            a += 1
        elif b < len(to) and to[b] == 1:
            out.append(const(0))
            b += 1
        else:
            first, start, mine, theirs = a, b, dims[a], to[b]
            a, b = a + 1, b + 1
            while mine != theirs:
                if mine < theirs:
                    mine, a = mine * dims[a], a + 1
                else:
                    theirs, b = theirs * to[b], b + 1
            out += delinearize(linearize(index[first:a], dims[first:a]), to[start:b])
    return tuple(out)


def depends_on(offset: IndexExpr, names: Collection[str]) -> bool:
    """Check whether an index depends on a run-time integer of one of these names."""
    return any(isinstance(v, Runtime) and v.name in names for v in offset.variables())


def variables_of(index: Iterable[IndexExpr]) -> set[Var | Runtime]:
    """Return the loop variables and run-time integers that an index depends on."""
    return {v for i in index for v in i.variables()}
