"""Concatenations whose operands are computed from the same arrays: loop nests are shared, results are the same."""

from __future__ import annotations

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

PLAIN = Schedule(threads=0, tile=0, stages=0)


def test_pieces_of_one_shape_that_read_the_same_arrays_share_a_nest() -> None:
    text = """
    a = f32[20,16] parameter(0)
    b = f32[20,16] parameter(1)
    s = f32[20,16] add(a, b)
    d = f32[20,16] subtract(a, b)
    ROOT r = f32[20,32] concatenate(s, d), dimensions={1}
    """
    assert checked(text, PLAIN).count("#pragma omp simd") == 1


def test_long_pieces_of_other_arrays_or_shapes_have_nests_of_their_own() -> None:
    text = """
    a = f32[20,1600] parameter(0)
    b = f32[20,1600] parameter(1)
    c = f32[20,800] parameter(2)
    n = f32[20,1600] negate(a)
    m = f32[20,1600] multiply(b, b)
    t = f32[20,1600] multiply(a, a)
    k = f32[20,800] slice(a), slice={[0:20], [4:804]}
    l = f32[20,800] add(k, c)
    ROOT r = f32[20,7200] concatenate(n, m, l, t, n), dimensions={1}
    """
    assert checked(text, PLAIN).count("#pragma omp simd") == 3  # n and t; m; l


def test_short_pieces_of_one_shape_share_a_nest() -> None:
    text = """
    a = f32[20,16] parameter(0)
    b = f32[20,16] parameter(1)
    n = f32[20,16] negate(a)
    m = f32[20,16] multiply(b, b)
    ROOT r = f32[20,32] concatenate(n, m), dimensions={1}
    """
    assert checked(text, PLAIN).count("#pragma omp simd") == 1


def test_pieces_that_alternate_share_a_nest() -> None:
    text = """
    a = f32[20,30,1] parameter(0)
    b = f32[20,30,1] parameter(1)
    n = f32[20,30,1] negate(b)
    ROOT r = f32[20,30,2] concatenate(a, n), dimensions={2}
    """
    assert checked(text, PLAIN).count("#pragma omp simd") == 1


def test_many_pieces_are_divided() -> None:
    pieces = "\n".join(
        f"k{n} = f32[6] constant({{{', '.join([str(n)] * 6)}}})\n    p{n} = f32[6] add(a, k{n})" for n in range(6)
    )
    text = f"""
    a = f32[6] parameter(0)
    {pieces}
    ROOT r = f32[36] concatenate(p0, p1, p2, p3, p4, p5), dimensions={{0}}
    """
    assert checked(text, PLAIN).count("#pragma omp simd") == 2
