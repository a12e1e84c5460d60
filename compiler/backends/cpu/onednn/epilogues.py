"""Fusions around a product or a convolution as one oneDNN primitive with post-operations."""

from __future__ import annotations

from dataclasses import replace

from compiler.analysis.post_operations import Epilogue, Post, epilogue_of
from compiler.backends.cpu.onednn.convolution import describe_convolution
from compiler.backends.cpu.onednn.description import MAX_POSTS, MAX_TENSORS, Description, PostOp, Tensor, row_major
from compiler.backends.cpu.onednn.products import describe_product
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


def product_of(fusion: HloInstruction) -> HloInstruction | None:
    """Return the first product or convolution of a fusion, or None."""
    inside = fusion.attributes["calls"].instructions
    return next((i for i in inside if i.opcode in (Opcode.DOT, Opcode.CONVOLUTION)), None)


def epilogue_in(fusion: HloInstruction) -> Epilogue:
    """Return the product or convolution of a fusion with its post-operations; raise UnsupportedError if it has none."""
    body = fusion.attributes["calls"]
    inside = [i for i in body.post_order() if i.opcode is not Opcode.PARAMETER]
    return epilogue_of(inside, body.root)


def describe_epilogue(fusion: HloInstruction) -> tuple[Description, tuple[int, ...]]:
    """Return the primitive that computes a fusion, and the operands of the fusion that are its inputs, in order.

    Raises:
        UnsupportedError: no primitive computes exactly this; the message says why.
    """
    found = epilogue_in(fusion)
    hero, root = found.hero, fusion.attributes["calls"].root
    is_product = hero.opcode is Opcode.DOT
    alone = describe_product(hero) if is_product else describe_convolution(hero)
    if alone.operation == "weights-gradient":
        raise UnsupportedError("oneDNN has no operations after a gradient of weights")
    if hero.shape.element_type is T.S32:
        raise UnsupportedError("oneDNN has operations after products of floats here")
    source, weights, result = alone.tensors
    inputs = [*found.inputs]
    tensors = [source, weights]
    posts: list[PostOp] = []
    has_bias = _is_bias(found)
    for number, p in enumerate(found.posts):
        operand = -1
        if p.operand is not None:
            operand = len(tensors)
            inputs.append(p.operand)
            tensors.append(_operand(p, is_product, result))
        if has_bias and number == 0:
            tensors[-1] = _bias(p.operand.shape.num_elements if p.operand else 0, is_product, result)
        else:
            posts.append(PostOp(p.kind, operand, p.alpha, p.beta))
    if len(tensors) >= MAX_TENSORS or len(posts) > MAX_POSTS:
        raise UnsupportedError("a call of oneDNN has fewer operands and operations here")
    result = replace(result, element_type=root.shape.element_type)
    description = replace(alone, tensors=(*tensors, result), has_bias=has_bias, posts=tuple(posts))
    return description, tuple(i.parameter_number or 0 for i in inputs)


def _is_bias(found: Epilogue) -> bool:
    """Check whether the first operation adds one number of f32 per feature."""
    first = found.posts[0] if found.posts else None
    if first is None or first.kind != "add" or first.spread != "features" or first.operand is None:
        return False
    return first.operand.shape.element_type is T.F32 is found.hero.operands[0].shape.element_type


def _bias(features: int, is_product: bool, result: Tensor) -> Tensor:
    """Return a bias as oneDNN has it: a vector for convolutions, and as many dimensions as the result for products."""
    if not is_product:
        return Tensor(T.F32, (features,), (1,))
    dims = (*[1] * (len(result.dims) - 1), features)
    return Tensor(T.F32, dims, row_major(dims))


def _operand(p: Post, is_product: bool, result: Tensor) -> Tensor:
    """Return the second operand of an operation, which has one element in dimensions along which it does not change."""
    if p.operand is None:
        raise ValueError(f"{p.kind} has no operand")
    element_type, rank = p.operand.shape.element_type, len(result.dims)
    if p.spread == "all":
        return replace(result, element_type=element_type)
    dims = [1] * rank
    if p.spread == "features":
        at = rank - 1 if is_product else 1
        dims[at] = result.dims[at]
    return Tensor(element_type, tuple(dims), row_major(dims))
