"""Fuzz loop kernels: random nests of loops with known and unknown trip counts, against the interpreter.

python -m tests.fuzz.loop_nests [--programs 500] [--seed 0] [--cuda]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_kernel import make_loop_kernel
from compiler.errors import UnsupportedError
from compiler.interpreter import Context, evaluate_op
from compiler.ir import HloInstruction
from compiler.text import parse
from env.reference import Reference
from tests.codegen import running

BATCH = 25
"""Number of kernels that are compiled at a time."""
CONDITIONS = ("static", "static", "limit", "value", "active", "active")
"""What ends a loop: a constant, a carried limit, a carried value, or that no position is active any more."""
INTEGERS = ("add", "subtract", "multiply", "xor", "and", "or", "maximum", "minimum")
HEADER = """HloModule loops
any { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] or(a, b) }
all { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] and(a, b) }
"""


class Writer:
    """The text of a module, computation by computation; the innermost one is written first.

    Attributes:
        values: the names of the values in scope, by shape.
        finished: the finished computations, as HLO text.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.n = int(rng.choice([17, 40, 64, 100, 257]))
        self.first = bool(rng.integers(2))
        self.count = 0
        self.lines: list[str] = []
        self.values: dict[str, list[str]] = {}
        self.finished: list[str] = []

    @property
    def matrix(self) -> str:
        """The dimensions of arrays with several elements per position."""
        return f"[{self.n},3]" if self.first else f"[3,{self.n}]"

    def shapes(self) -> tuple[str, ...]:
        """Return the shapes that loops carry."""
        return f"s32[{self.n}]", f"f32[{self.n}]", f"pred[{self.n}]", f"s32{self.matrix}", "s32[]", "f32[]", "u32[2]"

    def add(self, shape: str, text: str) -> str:
        """Add an instruction, and return its name."""
        self.count += 1
        name = f"v{self.count}"
        self.lines.append(f"{name} = {shape} {text}")
        self.values.setdefault(shape, []).append(name)
        return name

    def pick(self, shape: str) -> str:
        """Return a value of a shape: one of those in scope, or a new one."""
        known = self.values.get(shape, [])
        if known and self.rng.random() < 0.8:
            return str(self.rng.choice(known[-6:]))
        dims = shape[shape.index("[") :]
        if dims == "[]":
            number = {"s": int(self.rng.integers(-5, 6)), "f": float(self.rng.choice([0.5, -1.25, 2.0])), "p": "true"}
            return self.add(shape, f"constant({number[shape[0]]})")
        if shape == "u32[2]":
            return self.add(shape, f"constant({{{self.rng.integers(9)}, {self.rng.integers(9)}}})")
        if shape.startswith("s32") and self.rng.random() < 0.5:
            return self.add(shape, f"iota(), iota_dimension={int(self.rng.integers(dims.count(',') + 1))}")
        if shape.startswith("pred"):
            left, right = self.pick(f"s32{dims}"), self.pick(f"s32{dims}")
            return self.add(shape, f"compare({left}, {right}), direction={self.rng.choice(['LT', 'GE', 'EQ', 'NE'])}")
        return self.add(shape, f"broadcast({self.pick(shape.split('[')[0] + '[]')}), dimensions={{}}")

    def op(self, shape: str) -> str:
        """Add an op with a result of a shape, and return its name."""
        rng, dims = self.rng, shape[shape.index("[") :]
        a, b = self.pick(shape), self.pick(shape)
        if shape == "u32[2]":
            low = self.add("u32[1]", f"slice({a}), slice={{[0:1]}}")
            high = self.add("u32[1]", f"slice({b}), slice={{[1:2]}}")
            product = self.add("u32[1]", f"multiply({low}, {high})")
            return self.add(shape, f"concatenate({high}, {product}), dimensions={{0}}")
        if dims != "[]" and rng.random() < 0.2:
            return self.add(shape, f"select({self.pick(f'pred{dims}')}, {a}, {b})") if "," not in dims else a
        if shape.startswith("pred"):
            return self.add(shape, f"{rng.choice(['and', 'or', 'xor'])}({a}, {b})")
        if shape == f"s32{self.matrix}":
            return self._matrix_op(shape, a, b)
        if shape.startswith("s32"):
            if rng.random() < 0.15:
                return self._column(shape) if dims != "[]" else self.add(shape, f"negate({a})")
            return self.add(shape, f"{rng.choice(INTEGERS)}({a}, {b})")
        kind = rng.integers(4)
        if kind == 0:
            number = self.add(shape, f"convert({self.pick(f's32{dims}')})")
            return self.add(shape, f"tanh({number})")
        if kind == 1:
            return self.add(shape, f"{rng.choice(['tanh', 'cosine', 'logistic'])}({a})")
        both = self.add(shape, f"{rng.choice(['add', 'multiply'])}({a}, {b})")
        return self.add(shape, f"tanh({both})")

    def _matrix_op(self, shape: str, a: str, b: str) -> str:
        kind = self.rng.integers(3)
        if kind == 0:
            return self.add(shape, f"reverse({a}), dimensions={{{1 if self.first else 0}}}")
        if kind == 1:
            vector = self.pick(f"s32[{self.n}]")
            return self.add(shape, f"broadcast({vector}), dimensions={{{0 if self.first else 1}}}")
        return self.add(shape, f"{self.rng.choice(INTEGERS)}({a}, {b})")

    def _column(self, shape: str) -> str:
        at, n, matrix = int(self.rng.integers(3)), self.n, self.pick(f"s32{self.matrix}")
        part, whole = f"[{at}:{at + 1}]", f"[0:{n}]"
        dims, slices = (f"[{n},1]", f"{whole}, {part}") if self.first else (f"[1,{n}]", f"{part}, {whole}")
        return self.add(shape, f"reshape({self.add(f's32{dims}', f'slice({matrix}), slice={{{slices}}}')})")

    @contextmanager
    def computation(self, name: str, state: Sequence[str]) -> Iterator[list[str]]:
        """Write a computation of one carried tuple; yield the names of its elements."""
        outside = self.lines, self.values
        self.lines, self.values = [f"s = ({', '.join(state)}) parameter(0)"], {}
        yield [self.add(t, f"get-tuple-element(s), index={k}") for k, t in enumerate(state)]
        text = "\n  ".join(self.lines)
        self.finished.append(f"{name} {{\n  {text}\n}}\n")
        self.lines, self.values = outside

    def root(self, text: str) -> None:
        """Make the last instruction the root."""
        self.lines.append(f"ROOT r{self.count} = {text}")

    # ---- loops

    def loop(self, depth: int, start: str, state: Sequence[str]) -> tuple[str, str]:
        """Write a loop; return its name and what ends it. The state begins with a counter and a limit."""
        self.count += 1
        name, kind = f"loop{self.count}", str(self.rng.choice(CONDITIONS))
        if f"s32[{self.n}]" not in state and kind == "active":
            kind = "limit"
        trips, tested = int(self.rng.integers(1, 6)), self._tested(kind, state)
        with self.computation(f"{name}_condition", state) as elements:
            self.root(f"pred[] {self._condition(kind, elements, trips, tested)}")
        with self.computation(f"{name}_body", state) as elements:
            self._body(kind, depth, elements, state, trips, tested)
        whole = ", ".join(state)
        return self.add(f"({whole})", f"while({start}), condition={name}_condition, body={name}_body"), kind

    def _tested(self, kind: str, state: Sequence[str]) -> int:
        """Return the position of the carried value on which a loop's condition depends."""
        shape = f"s32[{self.n}]" if kind == "active" else "s32[]"
        found = [k for k, t in enumerate(state) if t == shape and k > 1]
        return int(self.rng.choice(found)) if found else 0

    def _condition(self, kind: str, elements: Sequence[str], trips: int, tested: int) -> str:
        limit = self.add("s32[]", f"constant({trips})")
        below = self.add("pred[]", f"compare({elements[0]}, {limit}), direction=LT")
        if kind == "static":
            return f"copy({below})"
        if kind == "limit":
            within = self.add("pred[]", f"compare({elements[0]}, {elements[1]}), direction=LT")
            return f"and({within}, {below})"
        if kind == "value":
            bound = self.add("s32[]", "constant(40)")
            return f"and({below}, {self.add('pred[]', f'compare({elements[tested]}, {bound}), direction=LT')})"
        active = self._active(elements, tested)
        if trips % 2:
            false = self.add("pred[]", "constant(false)")
            some = self.add("pred[]", f"reduce({active}, {false}), dimensions={{0}}, to_apply=any")
        else:
            true, rest = self.add("pred[]", "constant(true)"), self.add(f"pred[{self.n}]", f"not({active})")
            done = self.add("pred[]", f"reduce({rest}, {true}), dimensions={{0}}, to_apply=all")
            some = self.add("pred[]", f"not({done})")
        return f"and({some}, {below})"

    def _active(self, elements: Sequence[str], tested: int) -> str:
        vector, n = f"s32[{self.n}]", self.n
        bound = self.add(vector, f"broadcast({self.add('s32[]', 'constant(30)')}), dimensions={{}}")
        low = self.add(vector, f"broadcast({self.add('s32[]', 'constant(-20)')}), dimensions={{}}")
        small = self.add(f"pred[{n}]", f"compare({elements[tested]}, {bound}), direction=LT")
        large = self.add(f"pred[{n}]", f"compare({elements[tested]}, {low}), direction=GE")
        return self.add(f"pred[{n}]", f"and({small}, {large})")

    def _body(
        self, kind: str, depth: int, elements: Sequence[str], state: Sequence[str], trips: int, tested: int
    ) -> None:
        for _ in range(int(self.rng.integers(0, 3)) if depth else 0):
            self._some_ops(state)
            self.inner(depth - 1)
        self._some_ops(state)
        one = self.add("s32[]", "constant(1)")
        new = [self.add("s32[]", f"add({elements[0]}, {one})"), elements[1]]
        for k, t in enumerate(state[2:], 2):
            new.append(elements[k] if self.rng.random() < 0.1 else self.op(t))
        if kind == "active":
            active = self._active(elements, tested)
            for k, t in enumerate(state[2:], 2):
                if self.rng.random() < 0.05:
                    continue  # which makes the loop one without a kernel
                if t == f"{t.split('[')[0]}[{self.n}]":
                    new[k] = self.add(t, f"select({active}, {new[k]}, {elements[k]})")
                elif t == f"s32{self.matrix}":
                    dims = f"dimensions={{{0 if self.first else 1}}}"
                    where = self.add(f"pred{self.matrix}", f"broadcast({active}), {dims}")
                    new[k] = self.add(t, f"select({where}, {new[k]}, {elements[k]})")
        self.root(f"({', '.join(state)}) tuple({', '.join(new)})")

    def _some_ops(self, state: Sequence[str]) -> None:
        for _ in range(int(self.rng.integers(1, 5))):
            self.op(str(self.rng.choice(state)))

    def inner(self, depth: int) -> None:
        """Write a loop inside a body, whose results come into scope."""
        state = self.state()
        zero = self.add("s32[]", f"constant({int(self.rng.integers(0, 2))})")
        bounds = self.add("s32[]", "constant(0)"), self.add("s32[]", "constant(4)")
        limit = self.add("s32[]", f"clamp({bounds[0]}, {self.pick('s32[]')}, {bounds[1]})")
        start = self.add(f"({', '.join(state)})", f"tuple({', '.join([zero, limit, *map(self.pick, state[2:])])})")
        result, kind = self.loop(depth, start, state)
        for k, t in enumerate(state):
            if str(self.n) in t or kind != "active":  # the number of iterations over active positions must not be read
                self.add(t, f"get-tuple-element({result}), index={k}")

    def state(self) -> list[str]:
        """Return the shapes of the carried values of a new loop."""
        more = [str(t) for t in self.rng.choice(self.shapes(), int(self.rng.integers(1, 5)))]
        return ["s32[]", "s32[]", f"s32[{self.n}]", *more]


def random_loop(rng: np.random.Generator) -> HloInstruction:
    """Return a random `while` whose initial state is a tuple of parameters."""
    w = Writer(rng)
    state = w.state()
    start = [f"p{k}" for k in range(len(state))]
    w.lines = [f"{p} = {t} parameter({k})" for k, (p, t) in enumerate(zip(start, state, strict=True))]
    w.lines.append(f"start = ({', '.join(state)}) tuple({', '.join(start)})")
    result, _ = w.loop(2, "start", state)
    w.add(state[2], f"get-tuple-element({result}), index=2")
    entry = "\n  ".join([*w.lines[:-1], f"ROOT {w.lines[-1]}"])
    text = HEADER + "".join(w.finished) + f"ENTRY main {{\n  {entry}\n}}\n"
    return parse(text).entry.root.operands[0]


def random_case(rng: np.random.Generator, language: str) -> tuple[running.Case, tuple[int, ...]] | str:
    """Return a random loop kernel with arguments and the outputs to compare, or why there is none."""
    i = random_loop(rng)
    schedule = None if rng.random() < 0.3 else Schedule(lanes=int(rng.choice([16, 64, 100])), tile=0)
    try:
        made = make_loop_kernel(i, language, schedule)
    except UnsupportedError as e:
        return str(e)
    args = running.random_args(i.shape.tuple_shapes, rng)
    args[0] = np.asarray(rng.integers(0, 2), np.int32)
    # The scalars of a loop over active positions are those of the first tile, and nothing reads them.
    read = tuple(n for n, k in enumerate(made.outputs) if i.shape.tuple_shapes[k].num_elements > 2)

    def run(arrays: Sequence[Any], context: Context) -> list[running.Array]:
        value: Any = evaluate_op(i, [tuple(arrays)], context)
        return [np.asarray(value[made.outputs[n]]) for n in read]

    return running.Case(made.spec, tuple(args), Reference(run, args)), read


def fuzz(programs: int, seed: int, language: str = "c") -> tuple[Counter[str], list[str]]:
    """Run random loop kernels; return how many were right, wrong and refused, and a description of each wrong one."""
    counts: Counter[str] = Counter()
    problems = []
    for first in range(0, programs, BATCH):
        cases, numbers = [], []
        for n in range(first, min(first + BATCH, programs)):
            made = random_case(np.random.default_rng((seed, n)), language)
            if isinstance(made, str):
                counts["refused: " + made.split(": ", 1)[-1][:60]] += 1
            else:
                cases.append(made)
                numbers.append(n)
        for n, (case, read), found in zip(numbers, cases, _run([c for c, _ in cases], language), strict=True):
            what = found if isinstance(found, str) else running.problem([found[k] for k in read], case)
            counts["right" if what is None else "wrong"] += 1
            if what is not None:
                problems.append(f"seed ({seed}, {n}): {what}")
    return counts, problems


def _run(cases: Sequence[running.Case], language: str) -> Sequence[list[running.Array] | str]:
    if language == "c":
        return running.run_c(cases)
    with tempfile.TemporaryDirectory() as folder:
        return [r.error or r.outputs for r in running.run_emulated(cases, Path(folder), max_grid=4)]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cuda", action="store_true", help="emulated CUDA instead of C")
    options = parser.parse_args()
    counts, problems = fuzz(options.programs, options.seed, "cuda" if options.cuda else "c")
    for name, count in counts.most_common():
        print(f"{count:6d}  {name}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
