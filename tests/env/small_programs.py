"""Programs that are small enough to be compiled and measured in a test."""

from pathlib import Path

CHAIN = """HloModule chain
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[64,48] parameter(0)
  y = f32[64,48] parameter(1)
  m = f32[64,48] multiply(x, y)
  t = f32[64,48] tanh(m)
  a = f32[64,48] add(t, x)
  z = f32[] constant(0)
  s = f32[64] reduce(a, z), dimensions={1}, to_apply=sum
  b = f32[64,48] broadcast(s), dimensions={0}
  ROOT d = f32[64,48] divide(a, b)
}
"""

LOOP = """HloModule loop
body {
  p = (s32[], f32[256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[256] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  half = f32[] constant(0.5)
  h = f32[256] broadcast(half), dimensions={}
  c = f32[256] cosine(x)
  y = f32[256] multiply(c, h)
  ROOT t = (s32[], f32[256]) tuple(next, y)
}
condition {
  p = (s32[], f32[256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(100)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[256] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[256]) tuple(zero, x)
  w = (s32[], f32[256]) while(start), condition=condition, body=body
  ROOT r = f32[256] get-tuple-element(w), index=1
}
"""


def write_suite(folder: Path) -> Path:
    """Write both programs to a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chain.hlo").write_text(CHAIN)
    (folder / "loop.hlo").write_text(LOOP)
    return folder
