"""Shape rules of calls, control flow, tuples, tokens, collectives, async ops and host transfers."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.shape import TOKEN_SHAPE, Shape, array_shape, tuple_shape
from compiler.ir.shape_query import (
    ShapeQuery,
    Signature,
    array,
    combined,
    declared,
    distinct_dims,
    is_prefix,
    need,
    same_but_precision,
)
from compiler.ir.shape_rules_reduce import check_reducer
from compiler.ir.types import PrimitiveType as T


def _check_call(f: Signature, operands: Sequence[Shape]) -> None:
    params = f.parameter_shapes
    need(len(params) == len(operands), f"{f.name} takes {len(params)} arguments, got {len(operands)}")
    for i, (p, o) in enumerate(zip(params, operands, strict=True)):
        need(p.compatible(o), "parameter {} of {} is {}, the operand is {}", i, f.name, p, o)


def call(q: ShapeQuery) -> Shape:
    """Return the result shape of the callee, whose parameters must fit the operands."""
    f: Signature = q.attr("to_apply")
    _check_call(f, q.operands)
    return f.result_shape


def fusion(q: ShapeQuery) -> Shape:
    """Return the result shape of the fused computation."""
    f: Signature = q.attr("calls")
    params = f.parameter_shapes
    # Operands beyond the parameters are only kept alive.
    _check_call(f, q.operands[: len(params)])
    return f.result_shape


def conditional(q: ShapeQuery) -> Shape:
    """Return the common result shape of all branches; the first operand selects the branch."""
    branches: tuple[Signature, ...]
    if "branch_computations" in q.attributes:
        branches = q.attributes["branch_computations"]
    else:
        branches = (q.attr("true_computation"), q.attr("false_computation"))
    chooser = array(q, 0)
    need(
        chooser.element_type is not T.PRED or "branch_computations" not in q.attributes or len(branches) != 2,
        "a pred selects true_computation or false_computation, not one of branch_computations",
    )
    need(chooser.is_scalar, f"the first operand must be a scalar, is {chooser}")
    need(chooser.element_type in (T.PRED, T.S32), f"the first operand must be pred[] or s32[], is {chooser}")
    need(len(branches) > 0, "conditional needs at least one branch")
    need(
        chooser.element_type is not T.PRED or len(branches) == 2,
        f"a pred selects one of 2 branches, not of {len(branches)}",
    )
    need(len(q.operands) == len(branches) + 1, f"{len(branches)} branches need {len(branches) + 1} operands")
    for f, operand in zip(branches, q.operands[1:], strict=True):
        _check_call(f, [operand])
        need(
            f.result_shape.compatible(branches[0].result_shape),
            f"branch {f.name} returns {f.result_shape}, {branches[0].name} returns {branches[0].result_shape}",
        )
    return branches[0].result_shape


def while_(q: ShapeQuery) -> Shape:
    """Return the shape of the state, which condition and body take and the body returns."""
    state = q.operands[0]
    condition: Signature = q.attr("condition")
    body: Signature = q.attr("body")
    _check_call(condition, [state])
    _check_call(body, [state])
    want = array_shape(T.PRED)
    need(condition.result_shape.compatible(want), f"condition must return pred[], returns {condition.result_shape}")
    need(body.result_shape.compatible(state), f"body returns {body.result_shape}, the loop carries {state}")
    return state


def tuple_(q: ShapeQuery) -> Shape:
    """Return the tuple of the operand shapes."""
    return tuple_shape(*q.operands)


def get_tuple_element(q: ShapeQuery) -> Shape:
    """Return the shape of the element."""
    s, i = q.operands[0], q.attr("index")
    need(s.is_tuple and 0 <= i < len(s.tuple_shapes), "no element {} in {}", i, s)
    element: Shape = s.tuple_shapes[i]
    return element


def after_all(q: ShapeQuery) -> Shape:
    """Return a token; the operands are only ordered before it."""
    return TOKEN_SHAPE


def add_dependency(q: ShapeQuery) -> Shape:
    """Return the shape of the first operand; the second is a token."""
    need(q.operands[1].is_token, f"operand 1 must be a token, is {q.operands[1]}")
    return q.operands[0]


# ---- collectives: the group size is not checked, so sizes that depend on it are taken from the declared result


def _arrays(q: ShapeQuery) -> tuple[Shape, ...]:
    return tuple(array(q, i) for i in range(len(q.operands)))


def all_reduce(q: ShapeQuery) -> Shape:
    """Return the shapes of the operands."""
    shapes = _arrays(q)
    f: Signature = q.attr("to_apply")
    if len(f.parameter_shapes) == 2:
        scalar = f.result_shape
        check_reducer(f, [shapes[0]], [scalar])
    want = combined(shapes)
    # XLA allows a declared result of another floating-point type.
    return q.declared if q.declared is not None and same_but_precision(want, q.declared) else want


def _scaled(q: ShapeQuery, out: Sequence[Shape], grows: bool) -> None:
    """Check that operands and results differ in one dimension only, by the same integer factor for all."""
    dims = q.ints("dimensions")
    need(len(dims) == 1, f"needs one dimension, got {list(dims)}")
    at, factors = dims[0], set()
    for s, d in zip(_arrays(q), out, strict=True):
        distinct_dims((at,), s.rank, "dimensions")
        rest = s.dimensions[:at] + s.dimensions[at + 1 :]
        ok = d.is_array and d.rank == s.rank and d.dimensions[:at] + d.dimensions[at + 1 :] == rest
        need(ok and d.element_type is s.element_type, f"result {d} may differ from {s} in dimension {at} only")
        small, large = (s, d) if grows else (d, s)
        n, m = small.dimensions[at], large.dimensions[at]
        need(m == n or (n > 0 and m % n == 0), f"dimension {at} of {large} must be a multiple of that of {small}")
        factors.add(m // n if n else 1)
    need(len(factors) == 1, "all operands must change by the same factor")


def _outputs(q: ShapeQuery, d: Shape) -> tuple[Shape, ...]:
    out = d.tuple_shapes if d.is_tuple else (d,)
    need(len(out) == len(q.operands), f"{len(q.operands)} operand(s) need as many results, {d} has {len(out)}")
    return out


def all_gather(q: ShapeQuery) -> Shape:
    """Return the declared shape: the operands, larger in one dimension."""
    d = declared(q)
    _scaled(q, _outputs(q, d), grows=True)
    return d


def all_gather_start(q: ShapeQuery) -> Shape:
    """Return the declared shape: (operands, results, ...)."""
    d = declared(q)
    need(d.is_tuple and len(d.tuple_shapes) >= 2, f"must yield (operands, results), is declared as {d}")
    need(d.tuple_shapes[0].compatible(combined(_arrays(q))), f"{d} must begin with the operands")
    _scaled(q, _outputs(q, d.tuple_shapes[1]), grows=True)
    return d


def reduce_scatter(q: ShapeQuery) -> Shape:
    """Return the declared shape: the operands, smaller in one dimension."""
    d = declared(q)
    _scaled(q, _outputs(q, d), grows=False)
    return d


def all_to_all(q: ShapeQuery) -> Shape:
    """Return the operand's shape if it is split along a dimension, else a tuple with one array per group member."""
    shapes = _arrays(q)
    if q.ints("dimensions"):
        need(len(shapes) == 1, f"takes one operand with dimensions, got {len(shapes)}")
        distinct_dims(q.ints("dimensions"), shapes[0].rank, "dimensions")
        return shapes[0]
    for s in shapes[1:]:
        need(s.compatible(shapes[0]), f"operands must have one shape, got {shapes[0]} and {s}")
    d = q.declared
    return tuple_shape(*shapes) if len(shapes) > 1 or (d is not None and d.is_tuple) else shapes[0]


def ragged_all_to_all(q: ShapeQuery) -> Shape:
    """Return the shape of the output operand; operands are input, output, then offsets and sizes of both sides."""
    for i in range(3, 6):
        need(
            q.operands[i].compatible(q.operands[2]) and q.operands[i].rank in (1, 2),
            f"offsets and sizes must have one shape of one or two dimensions, got {q.operands[2]} and {q.operands[i]}",
        )
    a, b = array(q, 0), array(q, 1)
    need(a.element_type is b.element_type and a.dimensions[1:] == b.dimensions[1:], f"cannot send {a} into {b}")
    return b


def collective_broadcast(q: ShapeQuery) -> Shape:
    """Return the shapes of the operands, without the dynamic root if it is one of them."""
    shapes = _arrays(q)
    return combined(shapes[:-1] if q.attributes.get("has_dynamic_root") else shapes)


def collective_permute(q: ShapeQuery) -> Shape:
    """Return the shapes of the operands; with slice_sizes, that of the second operand, which is updated in place."""
    if "slice_sizes" in q.attributes:
        need(len(q.operands) == 4, f"in place it takes input, output and their offsets; got {len(q.operands)} operands")
        return q.operands[1]
    return combined(_arrays(q))


def collective_permute_start(q: ShapeQuery) -> Shape:
    """Return the declared shape: (source, result, ...)."""
    d = declared(q)
    result = collective_permute(q)
    source = q.operands[0] if "slice_sizes" in q.attributes else result
    need(
        d.is_tuple
        and len(d.tuple_shapes) >= 2
        and tuple_shape(*d.tuple_shapes[:2]).compatible(tuple_shape(source, result)),
        f"must yield ({source}, {result}, ...), is declared as {d}",
    )
    return d


def second_of_pair(q: ShapeQuery) -> Shape:
    """Return the results of a done op: the second element of what its start op yields."""
    s = q.operands[0]
    need(s.is_tuple and len(s.tuple_shapes) >= 2, f"the operand must be (operands, results, ...), is {s}")
    element: Shape = s.tuple_shapes[1]
    return element


def device_number(q: ShapeQuery) -> Shape:
    """Return u32[]."""
    return array_shape(T.U32)


# ---- async ops and host transfers


def copy_start(q: ShapeQuery) -> Shape:
    """Return (destination, source, context)."""
    s = q.operands[0]
    return tuple_shape(s, s, array_shape(T.U32))


def copy_done(q: ShapeQuery) -> Shape:
    """Return the shape of the destination."""
    s = q.operands[0]
    ok = s.is_tuple and len(s.tuple_shapes) >= 2 and s.tuple_shapes[0].compatible(s.tuple_shapes[1])
    need(ok, f"the operand must be (destination, source, context), is {s}")
    element: Shape = s.tuple_shapes[0]
    return element


def _async_state(d: Shape) -> tuple[tuple[Shape, ...], Shape]:
    need(
        d.is_tuple and len(d.tuple_shapes) >= 2 and d.tuple_shapes[0].is_tuple,
        f"must have the shape ((operands...), result, ...), is declared as {d}",
    )
    return d.tuple_shapes[0].tuple_shapes, d.tuple_shapes[1]


def async_start(q: ShapeQuery) -> Shape:
    """Return the declared shape ((operands...), result, context...); updates may bind further operands and results."""
    d = declared(q)
    inputs, result = _async_state(d)
    f: Signature = q.attr("calls")
    need(len(q.operands) == len(inputs), f"got {len(q.operands)} operands, the shape has {len(inputs)}")
    _check_operands(q.operands, inputs, 0)
    params = f.parameter_shapes
    need(len(inputs) <= len(params), f"{f.name} takes {len(params)} arguments, the shape has {len(inputs)}")
    for i, (said, p) in enumerate(zip(inputs, params, strict=False)):
        need(is_prefix(said, p), f"parameter {i} of {f.name} is {p}, the shape has {said}")
    need(is_prefix(result, f.result_shape), f"{f.name} returns {f.result_shape}, the shape has {result}")
    return d


def _check_operands(operands: Sequence[Shape], said: Sequence[Shape], first: int) -> None:
    for i, (o, s) in enumerate(zip(operands, said, strict=True), first):
        need(o.compatible(s), f"operand {i} is {o}, the shape has {s}")


def async_update(q: ShapeQuery) -> Shape:
    """Return the declared state: that of the first operand, plus the operands and results that are bound here."""
    d = declared(q)
    before, now = _async_state(q.operands[0]), _async_state(d)
    bound = len(before[0])
    need(len(now[0]) >= bound, f"has {len(now[0])} operands, {bound} were bound before")
    for i, (a, b) in enumerate(zip(before[0], now[0], strict=False)):
        need(is_prefix(a, b), f"operand {i} is now {b}, it was bound as {a}")
    need(is_prefix(before[1], now[1]), f"the result is now {now[1]}, it was bound as {before[1]}")
    new = q.operands[1:]
    need(
        len(new) == len(now[0]) - bound,
        f"binds {len(new)} new operand(s), the shape has {len(now[0]) - bound}",
    )
    _check_operands(new, now[0][bound:], 1)
    return d


def async_done(q: ShapeQuery) -> Shape:
    """Return the result in the state, or the declared shape if the state holds a prefix of it."""
    result = _async_state(q.operands[0])[1]
    return q.declared if q.declared is not None and is_prefix(result, q.declared) else result


def infeed(q: ShapeQuery) -> Shape:
    """Return the declared shape (data, token)."""
    d = declared(q)
    need(q.operands[0].is_token, f"operand 0 must be a token, is {q.operands[0]}")
    need(
        d.is_tuple and len(d.tuple_shapes) == 2 and d.tuple_shapes[1].is_token,
        f"must yield (data, token), is declared as {d}",
    )
    return d


def outfeed(q: ShapeQuery) -> Shape:
    """Return a token."""
    need(q.operands[1].is_token, f"operand 1 must be a token, is {q.operands[1]}")
    said = q.attributes.get("outfeed_shape")
    need(said is None or said.compatible(q.operands[0]), f"outfeed_shape is {said}, the operand is {q.operands[0]}")
    return TOKEN_SHAPE


def send(q: ShapeQuery) -> Shape:
    """Return (data, context, token)."""
    need(q.operands[1].is_token, f"operand 1 must be a token, is {q.operands[1]}")
    return tuple_shape(q.operands[0], array_shape(T.U32), TOKEN_SHAPE)


def send_done(q: ShapeQuery) -> Shape:
    """Return a token."""
    return TOKEN_SHAPE


def recv(q: ShapeQuery) -> Shape:
    """Return (data, context, token)."""
    d = declared(q)
    need(q.operands[0].is_token, f"operand 0 must be a token, is {q.operands[0]}")
    need(d.is_tuple and len(d.tuple_shapes) > 0, f"must yield (data, u32[], token[]), is declared as {d}")
    return tuple_shape(d.tuple_shapes[0], array_shape(T.U32), TOKEN_SHAPE)


def recv_done(q: ShapeQuery) -> Shape:
    """Return (data, token)."""
    s = q.operands[0]
    need(s.is_tuple and len(s.tuple_shapes) == 3, f"the operand must be what recv yields, is {s}")
    return tuple_shape(s.tuple_shapes[0], TOKEN_SHAPE)
