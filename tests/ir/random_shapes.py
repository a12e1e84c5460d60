"""Random instructions for shape inference: mostly valid, some slightly wrong, a few with dynamic dimensions.

Each generator draws operand shapes, the op with its attributes (`%` stands for the operands), and what it calls.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from compiler.ir.attributes import WindowDim
from tests.fuzz.sizes import dimensions

Case = tuple[tuple[str, ...], str, str]
Generator = Callable[[random.Random], Case]

REDUCER = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
LESS = "less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = pred[] compare(a, b), direction=LT }\n"
GREATER = "ge { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = pred[] compare(a, b), direction=GE }\n"


def sizes(r: random.Random, rank: int, low: int = 1, high: int = 0) -> list[int]:
    """Return that many dimension sizes, optionally within bounds."""
    if not high:
        return [max(low, n) for n in dimensions(r, rank)]
    return [r.randint(low, high) for _ in range(rank)]


def shape(r: random.Random, dims: Sequence[int], element_type: str = "f32", dynamic: float = 0.2) -> str:
    """Return a shape of these sizes, each dynamic with probability `dynamic`."""
    return f"{element_type}[{','.join(('<=' if r.random() < dynamic else '') + str(max(0, d)) for d in dims)}]"


def braces(numbers: Sequence[int]) -> str:
    """Format a list of integers: `{1,2}`."""
    return "{" + ",".join(map(str, numbers)) + "}"


def off(r: random.Random, n: int, probability: float = 0.1) -> int:
    """Return the number or, now and then, a neighbour of it."""
    return n + r.choice([-1, 1]) if r.random() < probability else n


def _transpose(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 4))
    order = r.sample(range(len(dims)), len(dims))
    if r.random() < 0.1:
        order[0] = order[-1]
    return (shape(r, dims),), f"transpose(%), dimensions={braces(order)}", ""


def _concatenate(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    at = r.randrange(len(dims))
    operands = []
    for _ in range(r.randint(1, 3)):
        each = [off(r, d, 0.03) for d in dims]
        each[at] = r.randint(0, 5)
        operands.append(shape(r, each))
    return tuple(operands), f"concatenate(%), dimensions={{{at}}}", ""


def _pad(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    config = "x".join(f"{r.randint(-2, 2)}_{r.randint(-2, 2)}_{r.randint(0, 2)}" for _ in dims)
    return (shape(r, dims), "f32[]"), f"pad(%), padding={config}", ""


def _reverse(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    return (
        (shape(r, dims),),
        f"reverse(%), dimensions={braces(r.sample(range(len(dims)), r.randint(0, len(dims))))}",
        "",
    )


def _dimension_size(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    return (shape(r, dims),), f"get-dimension-size(%), dimensions={{{r.randint(0, len(dims))}}}", ""


def _set_dimension_size(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    size = r.choice(["s32[]", "s32[]", "s64[]", "s32[1]"])
    return (shape(r, dims), size), f"set-dimension-size(%), dimensions={{{r.randint(0, len(dims))}}}", ""


def _select(r: random.Random) -> Case:
    dims = sizes(r, r.randint(0, 3))
    chooser = shape(r, dims if r.random() < 0.6 else [], r.choice(["pred"] * 5 + ["s32"]))
    return (chooser, shape(r, dims), shape(r, [off(r, d, 0.05) for d in dims])), "select", ""


def _clamp(r: random.Random) -> Case:
    dims = sizes(r, r.randint(0, 3))
    low, high = (shape(r, dims if r.random() < 0.5 else []) for _ in range(2))
    return (low, shape(r, dims), high), "clamp", ""


def _reduce(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 4))
    gone = r.sample(range(len(dims) + (r.random() < 0.1)), r.randint(0, len(dims)))
    return (shape(r, dims), "f32[]"), f"reduce(%), dimensions={braces(gone)}, to_apply=add", REDUCER


def _window(r: random.Random, size: Sequence[int]) -> list[WindowDim]:
    """Return one window dimension for each of these sizes."""
    return [
        WindowDim(
            n, r.randint(1, 3), r.randint(-1, 2), r.randint(-1, 2), r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 3])
        )
        for n in size
    ]


def _window_text(window: Sequence[WindowDim]) -> str:
    def each(name: str, values: Sequence[object]) -> str:
        return f"{name}={'x'.join(map(str, values))}"

    fields = [
        each("size", [w.size for w in window]),
        each("stride", [w.stride for w in window]),
        each("pad", [f"{w.pad_low}_{w.pad_high}" for w in window]),
        each("lhs_dilate", [w.lhs_dilate for w in window]),
        each("rhs_dilate", [w.rhs_dilate for w in window]),
    ]
    return "window={" + " ".join(fields) + "}"


def _reduce_window(r: random.Random) -> Case:
    # XLA aborts the process if padding makes a dimension negative, so dimensions are at least 2.
    dims = sizes(r, r.randint(1, 3), 2, 8)
    window = _window_text(_window(r, sizes(r, len(dims), 1, 3)))
    return (shape(r, dims), "f32[]"), f"reduce-window(%), {window}, to_apply=add", REDUCER


def _select_and_scatter(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 2), 3, 8)
    window = _window(r, sizes(r, len(dims), 1, 3))
    source = [off(r, w.output_size(n), 0.05) for w, n in zip(window, dims, strict=True)]
    op = f"select-and-scatter(%), {_window_text(window)}, select=ge, scatter=add"
    return (shape(r, dims, dynamic=0), shape(r, source, dynamic=0), "f32[]"), op, GREATER + REDUCER


def _shuffled(r: random.Random, parts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Return the sizes in a random order, and the new position of each."""
    flat = [n for part in parts for n in part]
    places = r.sample(range(len(flat)), len(flat))
    dims = [0] * len(flat)
    for n, place in zip(flat, places, strict=True):
        dims[place] = n
    return dims, places


def _dot(r: random.Random) -> Case:
    batch, contracted, left, right = (sizes(r, r.randint(0, 2)) for _ in range(4))
    (a, at_a), (b, at_b) = _shuffled(r, [batch, contracted, left]), _shuffled(r, [batch, contracted, right])
    if b and r.random() < 0.1:
        b[0] += 1
    first = r.choice(["f32", "bf16", "s8", "c64", "pred", "f8e4m3fn"])
    n, m = len(batch), len(batch) + len(contracted)
    op = (
        f"dot(%), lhs_batch_dims={braces(at_a[:n])}, lhs_contracting_dims={braces(at_a[n:m])}, "
        f"rhs_batch_dims={braces(at_b[:n])}, rhs_contracting_dims={braces(at_b[n:m])}"
    )
    return (shape(r, a, first), shape(r, b, r.choice([first, first, "f32"]))), op, ""


def _ragged_dot(r: random.Random) -> Case:
    groups, m, k, n = sizes(r, 4)
    count = shape(r, [off(r, groups)], "s32", 0)
    free = (
        [m, k],
        [groups, k, n],
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
    )
    contracted = ([m, k], [k, n], "lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={1}")
    batch = (
        [groups, m, k], [groups, k, n],
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}, "
        "lhs_ragged_dims={0}",
    )  # fmt: skip
    a, b, attributes = r.choice([free, contracted, batch])
    return (shape(r, a, dynamic=0), shape(r, b, dynamic=0), count), f"ragged-dot(%), {attributes}", ""


def _convolution(r: random.Random) -> Case:
    rank = r.randint(0, 3)
    groups = r.choice([1, 1, 2, 3])
    batches = r.choice([1, 1, 2]) if groups == 1 else 1
    spatial, kernel = sizes(r, rank, 3, 8), sizes(r, rank, 1, 3)
    k_in, k_out = r.randint(1, 3), r.randint(1, 2) * groups * batches
    numbers = [str(i) for i in range(rank)]
    left, out = (r.sample(["b", "f", *numbers], rank + 2) for _ in range(2))
    right = r.sample(["i", "o", *numbers], rank + 2)
    at_left = {"b": r.randint(1, 2) * batches, "f": off(r, k_in * groups, 0.05)} | dict(
        zip(numbers, spatial, strict=True)
    )
    at_right = {"i": k_in, "o": off(r, k_out)} | dict(zip(numbers, kernel, strict=True))
    window = _window_text(_window(r, kernel)) + ", " if rank else ""
    labels = f"{''.join(left)}_{''.join(right)}->{''.join(out)}"
    op = f"convolution(%), {window}dim_labels={labels}, feature_group_count={groups}, batch_group_count={batches}"
    operands = shape(r, [at_left[c] for c in left]), shape(r, [at_right[c] for c in right], dynamic=0.02)
    return operands, op, ""


def _gather(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    rank = len(dims)
    collapsed = sorted(r.sample(range(rank), r.randint(0, rank)))
    mapped = r.sample(range(rank), r.randint(1, rank))
    indices = sizes(r, r.randint(0, 2))
    batch = len(indices)
    vector_dim = r.randint(0, batch)
    if len(mapped) == 1 and r.random() < 0.3:
        vector_dim = batch
    else:
        indices.insert(vector_dim, len(mapped))
    taken = [1 if k in collapsed else r.randint(1, n) for k, n in enumerate(dims)]
    taken[0] += r.random() < 0.1
    window = rank - len(collapsed)
    op = (
        f"gather(%), offset_dims={braces(sorted(r.sample(range(batch + window), window)))}, "
        f"collapsed_slice_dims={braces(collapsed)}, start_index_map={braces(mapped)}, "
        f"index_vector_dim={vector_dim}, slice_sizes={braces(taken)}"
    )
    return (shape(r, dims), shape(r, indices, "s32")), op, ""


def _scatter(r: random.Random) -> Case:
    """Return a scatter that inverts a gather: the updates have the shape of the gather's result."""
    (operand, indices), op, _ = _gather(r)

    def numbers(name: str) -> list[int]:
        found = re.search(name + r"=\{?([\d,]*)", op)
        return [int(n) for n in (found.group(1) if found is not None else "").split(",") if n]

    window_dims, collapsed = numbers("offset_dims"), numbers("collapsed_slice_dims")
    (vector_dim,) = numbers("index_vector_dim")
    batch = [int(n) for k, n in enumerate(re.findall(r"\d+", indices[4:])) if k != vector_dim]
    window = [n for k, n in enumerate(numbers("slice_sizes")) if k not in collapsed]
    from_batch, from_window = iter(batch), iter(window)
    updates = [next(from_window) if k in window_dims else next(from_batch) for k in range(len(batch) + len(window))]
    updates = [off(r, n, 0.05) for n in updates]
    scattered = (
        f"scatter(%), update_window_dims={braces(window_dims)}, inserted_window_dims={braces(collapsed)}, "
        f"scatter_dims_to_operand_dims={braces(numbers('start_index_map'))}, index_vector_dim={vector_dim}, "
        "to_apply=add"
    )
    return (operand, indices, shape(r, updates)), scattered, REDUCER


def _fft(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    length = dims[-r.randint(1, len(dims)) :]
    kind = r.choice(["FFT", "IFFT", "RFFT", "IRFFT"])
    if kind == "IRFFT":
        length[-1] = r.choice([(length[-1] - 1) * 2, length[-1] * 2 - 1, length[-1]])
    length[0] += r.random() < 0.1
    element_type = r.choice(["c64", "c64", "f32", "f64", "c128"])
    return (shape(r, dims, element_type),), f"fft(%), fft_type={kind}, fft_length={braces(length)}", ""


def _cholesky(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    if len(dims) > 1 and r.random() < 0.8:
        dims[-1] = dims[-2]
    return (shape(r, dims, r.choice(["f32", "c64", "s32"])),), "cholesky(%), lower=true", ""


def _triangular_solve(r: random.Random) -> Case:
    n, m = sizes(r, 2)
    batch, left = sizes(r, r.randint(0, 2)), r.random() < 0.5
    b = [*(off(r, d, 0.05) for d in batch), *([n, m] if left else [m, n])]
    op = f"triangular-solve(%), left_side={str(left).lower()}, lower=true, transpose_a=NO_TRANSPOSE"
    return (shape(r, [*batch, n, off(r, n)]), shape(r, b)), op, ""


def _sort(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    return (shape(r, dims),), f"sort(%), dimensions={{{r.randrange(len(dims))}}}, to_apply=less", LESS


def _topk(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    return (shape(r, dims),), f"topk(%), k={r.randint(1, dims[-1] + 1)}, largest=true", ""


def _batch_norm(r: random.Random) -> Case:
    dims = sizes(r, r.randint(1, 3))
    feature = r.randrange(len(dims))
    x, v = shape(r, dims), shape(r, [off(r, dims[feature])], dynamic=0.1)
    name, operands = r.choice([("training", (x, v, v)), ("inference", (x, v, v, v, v)), ("grad", (x, v, v, v, x))])
    return operands, f"batch-norm-{name}(%), epsilon=0.1, feature_index={feature}", ""


GENERATORS: dict[str, Generator] = {
    "transpose": _transpose,
    "concatenate": _concatenate,
    "pad": _pad,
    "reverse": _reverse,
    "get-dimension-size": _dimension_size,
    "set-dimension-size": _set_dimension_size,
    "select": _select,
    "clamp": _clamp,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "sort": _sort,
    "topk": _topk,
    "batch-norm": _batch_norm,
}
"""Generators, by what they draw."""
