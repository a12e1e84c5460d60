import gc
import weakref

from compiler.text import parse

TEXT = """HloModule m
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[4] parameter(0)
  zero = f32[] constant(0)
  ROOT s = f32[] reduce(x, zero), dimensions={0}, to_apply=sum
}
"""


def test_a_dismantled_module_is_freed_without_a_garbage_collection() -> None:
    module = parse(TEXT)
    copy = module.clone()
    computations = [weakref.ref(c) for c in module.computations]
    gc.disable()
    try:
        module.dismantle()
        del module
        assert all(reference() is None for reference in computations)
    finally:
        gc.enable()
    assert copy.fingerprint() == parse(TEXT).fingerprint()
