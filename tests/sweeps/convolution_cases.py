"""Cases of convolution: layouts, padding, strides, dilations, reversal, groups."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sweeps.case import FLOATS, Case, Tolerance, quarters, shape, simple, type_class, values

_NHWC = "b01f_01io->b01f"
FORMS = {
    # name: input, kernel, result, window, dim_labels, other attributes
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), (2, 4, 5, 5), "size=3x2", "bf01_oi01->bf01", ""),
    "same-strided": ((2, 7, 6, 3), (3, 3, 3, 4), (2, 4, 3, 4), "size=3x3 stride=2x2 pad=1_1x1_1", _NHWC, ""),
    "pad-uneven": ((1, 5, 4, 2), (2, 3, 2, 3), (1, 6, 4, 3), "size=2x3 pad=2_0x0_2", _NHWC, ""),
    "pad-negative": ((1, 6, 7, 2), (2, 2, 2, 3), (1, 4, 5, 3), "size=2x2 pad=-1_0x0_-1", _NHWC, ""),
    "lhs-dilated": ((2, 4, 3, 2), (2, 3, 2, 3), (2, 8, 8, 3), "size=2x3 pad=1_1x1_2 lhs_dilate=2x3", _NHWC, ""),
    "rhs-dilated": ((2, 7, 8, 2), (2, 3, 2, 3), (2, 5, 2, 3), "size=2x3 rhs_dilate=2x3", _NHWC, ""),
    "everything": (
        (1, 5, 6, 2), (3, 2, 2, 3), (1, 4, 11, 3),
        "size=3x2 stride=2x1 pad=1_2x1_1 lhs_dilate=2x2 rhs_dilate=2x2 rhs_reversal=1x0", _NHWC, "",
    ),
    "reversed": ((1, 5, 6, 2), (3, 2, 2, 3), (1, 3, 5, 3), "size=3x2 rhs_reversal=1x1", _NHWC, ""),
    "feature-groups": ((2, 5, 5, 6), (3, 3, 2, 9), (2, 3, 3, 9), "size=3x3", _NHWC, ", feature_group_count=3"),
    "depthwise": ((1, 6, 6, 4), (3, 3, 1, 8), (1, 4, 4, 8), "size=3x3", _NHWC, ", feature_group_count=4"),
    "batch-groups": ((4, 5, 5, 3), (2, 2, 3, 6), (2, 4, 4, 6), "size=2x2", _NHWC, ", batch_group_count=2"),
    "one-dimension": ((2, 9, 3), (3, 3, 4), (2, 4, 4), "size=3 stride=2", "b0f_0io->b0f", ""),
    "three-dimensions": ((1, 4, 4, 4, 2), (2, 2, 2, 2, 3), (1, 3, 3, 3, 3), "size=2x2x2", "b012f_012io->b012f", ""),
    "no-space": ((3, 4), (4, 5), (3, 5), "", "bf_io->bf", ""),
    "odd-layout": ((5, 3, 2, 6), (2, 3, 4, 2), (4, 4, 2, 5), "size=2x2", "0fb1_0io1->0fb1", ""),
    "backward-filter": ((2, 7, 7, 3), (5, 5, 2, 4), (4, 3, 3, 3), "size=5x5", "f01b_01io->f01b", ""),
    "nothing-fits": ((1, 2, 2, 1), (3, 3, 1, 1), (1, 0, 0, 1), "size=3x3", _NHWC, ""),
    "empty-batch": ((0, 4, 4, 2), (3, 3, 2, 3), (0, 2, 2, 3), "size=3x3", _NHWC, ""),
    "size-1": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), "size=1x1", _NHWC, ""),
}  # fmt: skip


def cases() -> Iterator[Case]:
    for name, (x, kernel, to, window, labels, more) in FORMS.items():
        attributes = (f"window={{{window}}}, " if window else "") + f"dim_labels={labels}{more}"
        types = (
            (*FLOATS, "s32", "u8", "s8", "c64", "c128") if name in ("plain", "everything") else ("f32", "bf16", "s32")
        )
        for t in types:
            text = simple("convolution", shape(t, to), [shape(t, x), shape(t, kernel)], attributes)
            kind = type_class(t)
            tolerance = None if kind.is_integer else Tolerance(24 if kind.bits >= 32 else 4, 3)
            yield Case("convolution", t, name, text, (values(t, x, 1), values(t, kernel, 2)), tolerance, t == "f32")
    text = simple(
        "convolution",
        "f32[2,4,5,5]",
        ["bf16[2,3,7,6]", "bf16[4,3,3,2]"],
        "window={size=3x2}, dim_labels=bf01_oi01->bf01",
    )
    args = (values("bf16", (2, 3, 7, 6), 1), values("bf16", (4, 3, 3, 2), 2))
    yield Case("convolution", "bf16", "to-f32", text, args, Tolerance(32, 3))
    text = simple(
        "convolution", "s32[2,4,5,5]", ["s8[2,3,7,6]", "s8[4,3,3,2]"], "window={size=3x2}, dim_labels=bf01_oi01->bf01"
    )
    one = "window={size=3x2}, dim_labels=bf01_oi01->bf01"
    for made in ("s32", "u8", "pred"):
        mixed = simple("convolution", f"{made}[2,4,5,5]", ["f32[2,3,7,6]", "f32[4,3,3,2]"], one)
        given = (quarters("f32", (2, 3, 7, 6), 1), quarters("f32", (4, 3, 3, 2), 2))
        yield Case("convolution", "f32", f"summed-before-it-is-{made}", mixed, given, None, made == "s32")
    yield Case("convolution", "s8", "to-s32", text, (values("s8", (2, 3, 7, 6), 1), values("s8", (4, 3, 3, 2), 2)))
