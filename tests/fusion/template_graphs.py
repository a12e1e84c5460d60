"""Small random graphs of ops with templates, such as products and sorts, and of others around them."""

from __future__ import annotations

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape
from compiler.ir.attributes import ConvDimLabels, SliceDim, Window, WindowDim
from compiler.ir.types import PrimitiveType as T
from compiler.text import parse

_HEAD = (
    "HloModule random\n\n%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
    "  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\n"
    "%less (a: f32[], b: f32[]) -> pred[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    "  ROOT %c = pred[] compare(%a, %b), direction=LT, type=TOTALORDER\n}\n\n"
    "ENTRY %main (x: f32[6,20], y: f32[6,20], w: f32[20,9], i: s32[5]) -> (f32[6,20]) {\n"
    "  %x = f32[6,20] parameter(0)\n  %y = f32[6,20] parameter(1)\n  %w = f32[20,9] parameter(2)\n"
    "  %i = s32[5] parameter(3)\n  ROOT %t = (f32[6,20]) tuple(%x)\n}\n"
)
_UNARY = (Opcode.NEGATE, Opcode.ABS, Opcode.FLOOR)
_BINARY = (Opcode.ADD, Opcode.SUBTRACT, Opcode.MAXIMUM)


def template_graph(seed: int, size: int = 9, convolutions: bool = False) -> HloModule:
    """Return a random graph; its results are exact for arguments that are small integers.

    Args:
        seed: of the choices.
        size: number of ops, of which some need a few others.
        convolutions: whether most ops with a template are convolutions.
    """
    rng = np.random.default_rng(seed)
    module = parse(_HEAD)
    c = module.entry
    x, y, w, i = c.parameters
    graph = _Graph(c, rng, [x, y, w], i, module, convolutions)
    for _ in range(size):
        graph.step()
    ends = [v for v in graph.values if not v.users or rng.random() < 0.1]
    old = c.root
    c.root = c.add(Opcode.TUPLE, ends)
    c.remove(old)
    return module


def integer_arguments(module: HloModule, rng: np.random.Generator) -> list[np.ndarray]:
    """Return small integers as arguments, some of the indices out of bounds."""
    return [rng.integers(-3, 8, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]


class _Graph:
    def __init__(
        self,
        c: HloComputation,
        rng: np.random.Generator,
        values: list[HloInstruction],
        indices: HloInstruction,
        module: HloModule,
        convolutions: bool,
    ) -> None:
        self.c, self.rng, self.values, self.indices, self.module = c, rng, values, indices, module
        self.convolutions = convolutions
        self.zero = c.add_constant(np.float32(0))

    def step(self) -> None:
        v = self.values[-1 - int(self.rng.integers(min(5, len(self.values))))]
        found = None
        kind = int(self.rng.integers(10))
        if self.convolutions and kind <= 2 and self.rng.random() < 0.8:
            found = self._convolution(v)
        elif kind <= 1:
            found = self._product(v)
        elif kind == 2:
            found = self._scatter(v)
        elif kind == 3:
            found = self._sort(v)
        elif kind == 4 and v.shape.rank == 2:
            found = self.c.add(Opcode.TRANSPOSE, [v], dimensions=(1, 0))
        elif kind == 5 and v.shape.rank == 2:
            row = self.c.add(Opcode.REDUCE, [v, self.zero], dimensions=(1,), to_apply=self.module.find("sum"))
            self.values.append(self._small(row))
            found = self.c.add(Opcode.BROADCAST, [self.values[-1]], v.shape, dimensions=(0,))
        elif kind == 7:
            found = self._running(v)
        elif kind == 6:
            found = self.c.add(_UNARY[int(self.rng.integers(len(_UNARY)))], [v])
        self.values.append(found if found is not None else self._binary(v))

    def _binary(self, v: HloInstruction) -> HloInstruction:
        same = [w for w in self.values if w.shape.dimensions == v.shape.dimensions]
        other = same[int(self.rng.integers(len(same)))]
        return self.c.add(_BINARY[int(self.rng.integers(len(_BINARY)))], [v, other])

    def _small(self, v: HloInstruction) -> HloInstruction:
        """Return the sign of a value, so that products of products stay exact."""
        return self.c.add(Opcode.SIGN, [v])

    def _product(self, v: HloInstruction) -> HloInstruction | None:
        if v.shape.rank != 2:
            return None
        pairs = [
            (w, k, m)
            for w in self.values
            if w.shape.rank == 2
            for k in range(2)
            for m in range(2)
            if v.shape.dimensions[k] == w.shape.dimensions[m]
        ]
        if not pairs:
            return None
        w, k, m = pairs[int(self.rng.integers(len(pairs)))]
        operands = [o if o.opcode is Opcode.PARAMETER else self._small(o) for o in (v, w)]
        return self.c.add(Opcode.DOT, operands, lhs_contracting_dims=(k,), rhs_contracting_dims=(m,))

    def _convolution(self, v: HloInstruction) -> HloInstruction | None:
        """Return a convolution of rows with features; the kernel has as many elements as some other value."""
        kernels = [w for w in self.values if w.shape.rank == 2]
        if v.shape.rank != 2 or not kernels:
            return None
        space, features = v.shape.dimensions
        w = kernels[int(self.rng.integers(len(kernels)))]
        forms = [
            (k, inner, w.shape.num_elements // (k * inner))
            for k in range(1, 5)
            for inner in range(1, features + 1)
            if features % inner == 0 and w.shape.num_elements % (k * inner) == 0
        ]
        forms = [(k, inner, outer) for k, inner, outer in forms if outer % (features // inner) == 0 and outer <= 40]
        if not forms:
            return None
        k, inner, outer = forms[int(self.rng.integers(len(forms)))]
        window = WindowDim(
            k, int(self.rng.integers(1, 3)), int(self.rng.integers(-1, 3)), int(self.rng.integers(-1, 3)),
            int(self.rng.integers(1, 3)), int(self.rng.integers(1, 3)), bool(self.rng.integers(2)),
        )  # fmt: skip
        if (space - 1) * window.lhs_dilate + 1 + window.pad_low + window.pad_high < (k - 1) * window.rhs_dilate + 1:
            return None
        x, kernel = (o if o.opcode is Opcode.PARAMETER else self._small(o) for o in (v, w))
        turned = bool(self.rng.integers(2))
        x = self.c.add(Opcode.TRANSPOSE, [x], dimensions=(1, 0)) if turned else x
        x = self.c.add(Opcode.RESHAPE, [x], Shape(T.F32, (1, *x.shape.dimensions)))
        sizes, order = {"0": k, "i": inner, "o": outer}, "".join(self.rng.permutation(list("0io")))
        kernel = self.c.add(Opcode.RESHAPE, [kernel], Shape(T.F32, tuple(sizes[c] for c in order)))
        labels = ConvDimLabels("bf0" if turned else "b0f", order, "b0f")
        made = self.c.add(
            Opcode.CONVOLUTION, [x, kernel], window=Window((window,)), dim_labels=labels,
            feature_group_count=features // inner,
        )  # fmt: skip
        return self.c.add(Opcode.RESHAPE, [made], Shape(T.F32, made.shape.dimensions[1:]))

    def _running(self, v: HloInstruction) -> HloInstruction | None:
        """Return cumulative sums along one dimension, possibly in reverse."""
        if v.shape.rank == 0:
            return None
        axis, reverse = int(self.rng.integers(v.shape.rank)), bool(self.rng.integers(2))
        n = v.shape.dimensions[axis]
        cumulative = WindowDim(n, pad_low=0 if reverse else n - 1, pad_high=n - 1 if reverse else 0)
        window = Window(tuple(cumulative if d == axis else WindowDim(1) for d in range(v.shape.rank)))
        x = v if v.opcode is Opcode.PARAMETER else self._small(v)
        return self.c.add(
            Opcode.REDUCE_WINDOW, [x, self.zero], v.shape, window=window, to_apply=self.module.find("sum")
        )

    def _scatter(self, v: HloInstruction) -> HloInstruction | None:
        if v.shape.rank != 2:
            return None
        columns = v.shape.dimensions[1]
        sources = [w for w in self.values if w.shape.rank == 2 and w.shape.dimensions[1] == columns]
        source = sources[int(self.rng.integers(len(sources)))]
        count = self.indices.shape.dimensions[0]
        if source.shape.dimensions[0] < count:
            return None
        bounds = tuple(SliceDim(0, n, 1) for n in (count, columns))
        updates = self.c.add(Opcode.SLICE, [source], slice=bounds)
        operand = v
        if self.rng.random() < 0.4:
            operand = self.c.add(Opcode.BROADCAST, [self.zero], v.shape, dimensions=())
        indices = self.indices
        if self.rng.random() < 0.5:
            indices = self.c.add(Opcode.ABS, [indices])
        return self.c.add(
            Opcode.SCATTER, [operand, indices, updates], to_apply=self.module.find("sum"),
            update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
        )  # fmt: skip

    def _sort(self, v: HloInstruction) -> HloInstruction | None:
        if v.shape.rank == 0:
            return None
        axis = int(self.rng.integers(v.shape.rank))
        return self.c.add(
            Opcode.SORT, [v], dimensions=(axis,), is_stable=True, to_apply=self.module.find("less"),
        )  # fmt: skip
