# ruff: noqa: E501  # programs are easier to read on one line
"""Fuzz the parser and the verifier with mutated HLO text: they must accept it or raise their own errors, quickly.

python -m tests.fuzz.mutated_texts [--count 200000] [--seed 0] [--out results/fuzz/mutated_texts.md]
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from compiler.errors import HloSyntaxError, HloVerificationError
from compiler.ir.verifier import verify
from compiler.text import parse
from env.suites import QUICKSTART
from tests.fuzz.random_modules import random_module

LIMIT_SECONDS = 1.0
TOKENS = (
    "{", "}", "(", ")", "[", "]", ",", "=", "->", "%", "#0", "ROOT", "ENTRY", "f32[2]{0}", "f32[]", "s32[3,4]", "pred[]",
    "(f32[], s32[2])", "token[]", "opaque[]", "b(f32[4])", "<=8", "?", "-1", "0", "1e400", "nan(0x7f)", "-inf", "...",
    "{...}", "add(", "while(", "fusion(", "constant(", "parameter(0)", "/*", "*/", "//", '"', "'", "\\", "\n", "\t", "\0",
    "to_apply=", "calls=", "body=", "condition=", "dimensions={0}", "index=0", "metadata={", "backend_config={",
    "slice={[0:2:1]}", "window={size=2x2}", "padding=0_0_1", "dim_labels=bf01_oi01->bf01", "add-start(", "async-done(",
    "execution_thread=\"t\"", "FileNames", "HloModule m", "is_scheduled=true", "input_output_alias={ {0}: (0, {}) }",
    "é", "\U0001f600", "9" * 30, "a" * 200, "{" * 50, "(" * 200, "[" * 50,
)  # fmt: skip


def corpus(rng: np.random.Generator) -> list[str]:
    """Return programs to mutate: the quickstart suite, random modules, and programs with rare syntax."""
    programs = [p.read_text(encoding="utf-8") for p in sorted(QUICKSTART.glob("*.hlo"))]
    programs = [t for t in programs if len(t) < 20_000]
    programs += [str(random_module(rng, 12)) for _ in range(60)]
    return [*programs, *RARE]


RARE = (
    "HloModule m, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, input_output_alias={ {}: (0, {}, may-alias) }\n\n"
    'FileNames\n1 "a.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n1 {file_name_id=1 function_name_id=1 line=1 '
    "end_line=1 column=1 end_column=2}\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n"
    'ENTRY %e (p: f32[4]) -> f32[4] {\n  %p = f32[4]{0:T(128)S(1)} parameter(0), metadata={op_name="x"}\n'
    '  %s = ((f32[4]{0}), f32[4]{0}, u32[]) abs-start(%p), async_execution_thread="t"\n'
    "  ROOT %d = f32[4]{0} abs-done(%s)\n}\n",
    "f32[2,2] add(f32[2,2] %x, multiply(f32[2,2] %y, f32[2,2] %z))",
    "HloModule t\ne {\n  c = (f32[2,1], (s4[], c64[2])) constant(({{1},{-nan}}, (-8, {(1,2),(inf,nan(0x7f))})))\n"
    "  r = f32[<=3,2]{0,1} parameter(0)\n  ROOT g = c64[2] get-tuple-element(c#1), index=1\n}\n",
    "HloModule c\nENTRY e {\n  x = f32[1,8,8,3] parameter(0)\n  k = f32[3,3,3,4] parameter(1)\n  ROOT y = convolution(x, k), "
    "window={size=3x3 stride=2x2 pad=1_1x1_1 rhs_dilate=1x1}, dim_labels=b01f_01io->b01f, operand_precision={high,high}\n}\n",
    "HloModule r\nENTRY e {\n  x = f32[8] parameter(0)\n  ROOT y = f32[] reduce(x, constant(0)), dimensions={0}, to_apply="
    "{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n}\n",
)


def mutate(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Apply a few random edits: insert, delete, replace or duplicate characters and tokens, or insert other text."""
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 4]))):
        at = int(rng.integers(len(text) + 1))
        span = int(rng.integers(1, 40))
        kind = int(rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]))
        if kind == 0:
            text = text[:at] + text[at + span :]
        elif kind == 1:
            text = text[:at] + TOKENS[int(rng.integers(len(TOKENS)))] + text[at:]
        elif kind == 2:
            text = text[:at] + TOKENS[int(rng.integers(len(TOKENS)))] + text[at + span :]
        elif kind == 3:
            text = text[:at] + text[at : at + span] * 2 + text[at + span :]
        elif kind == 4:
            text = text[:at] + chr(int(rng.integers(1, 128))) + text[at + 1 :]
        elif kind == 5:
            other = others[int(rng.integers(len(others)))]
            start = int(rng.integers(len(other)))
            text = text[:at] + other[start : start + span * 4] + text[at:]
        elif kind == 6:
            text = text[:at]
        else:
            digit = next((i for i in range(at, min(at + 200, len(text))) if text[i].isdigit()), None)
            if digit is not None:
                text = text[:digit] + str(int(rng.integers(-3, 70))) + text[digit + 1 :]
    return text


def deep_nests() -> Iterator[str]:
    """Yield programs that are nested deeper than any stack."""
    for depth in (50, 200, 2_000, 50_000):
        yield "HloModule m\nENTRY e { ROOT x = " + "(" * depth + "f32[]" + ")" * depth + " parameter(0) }"
        yield (
            "HloModule m\nENTRY e { p = f32[] parameter(0) ROOT x = f32[] " + "abs(" * depth + "p" + ")" * depth + " }"
        )
        yield "HloModule m\nENTRY e { ROOT x = f32[] constant(" + "{" * depth + "1" + "}" * depth + ") }"
        yield (
            "HloModule m\nENTRY e { p = f32[] parameter(0) ROOT x = f32[] call(p), to_apply="
            + "{ a = f32[] parameter(0) b = f32[] call(a), to_apply=" * depth
        )
        yield "HloModule m\nENTRY e { ROOT x = f32[] parameter(0), metadata=" + "{a=" * depth + "1" + "}" * depth + " }"
        yield (
            "HloModule m\nENTRY e { x = f32[] parameter(0)\n"
            + "".join(f"x{i} = f32[] abs(x{i - 1 if i else ''})\n" for i in range(min(depth, 2_000)))
            + "}"
        )
        yield "HloModule m\nENTRY e { ROOT x = f32[" + ",".join(["1"] * depth) + "] constant(1) }"


def outcome(text: str) -> tuple[str, float]:
    """Parse and verify HLO text; return the outcome in one word and the seconds. Unexpected exceptions propagate."""
    start = time.perf_counter()
    try:
        verify(parse(text))
        word = "accepted"
    except HloSyntaxError as e:
        str(e)
        word = "HloSyntaxError"
    except HloVerificationError as e:
        str(e)
        word = "HloVerificationError"
    return word, time.perf_counter() - start


def fuzz(count: int, seed: int) -> tuple[Counter[str], float]:
    """Try `count` mutated programs; return the number of each outcome, and the seconds of the slowest program."""
    rng = np.random.default_rng(seed)
    programs = corpus(rng)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for text in deep_nests():
        word, seconds = outcome(text)
        outcomes[word] += 1
        slowest = max(slowest, seconds)
    for number in range(count):
        text = mutate(programs[int(rng.integers(len(programs)))], programs, rng)
        try:
            word, seconds = outcome(text)
            if seconds > LIMIT_SECONDS:
                # Measure again, because another process may have used the processor.
                seconds = min(seconds, outcome(text)[1])
        except Exception as e:
            raise AssertionError(f"mutated program {number} of seed {seed}: {type(e).__name__}: {e}\n{text}") from e
        if seconds > LIMIT_SECONDS:
            raise AssertionError(f"mutated program {number} of seed {seed} took {seconds:.1f} s:\n{text}")
        outcomes[word] += 1
        slowest = max(slowest, seconds)
    return outcomes, slowest


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200_000, help="number of programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/fuzz/mutated_texts.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    outcomes, slowest = fuzz(options.count, options.seed)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    rows = "\n".join(f"| {word} | {n:,} |" for word, n in outcomes.most_common())
    report = (
        "# Mutated programs\n\nEach program was parsed and verified within a second. All of them were either accepted or "
        f"rejected with one of the errors below.\n\n- command: `python -m tests.fuzz.mutated_texts --count {options.count} --seed {options.seed}`\n"
        f"- commit: {commit.stdout.strip() or 'unknown'}\n- date: {datetime.date.today().isoformat()}\n"
        f"- slowest program: {slowest:.2f} s\n\n| outcome | programs |\n|---|---:|\n{rows}\n"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report, encoding="utf-8")
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
