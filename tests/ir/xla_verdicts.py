"""What XLA:CPU says of texts: read, verified and compiled in a process of its own, as XLA aborts on some it refuses.

    python -m tests.ir.xla_verdicts < texts.json

reads a JSON list of texts and prints one JSON line for each: null when XLA takes it, else its error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

CRASH = "XLA aborts"
_NOT_ON_CPU = ("UNIMPLEMENTED", "is not supported by XLA:CPU", "No registered implementation for")
"""In errors that come after the verifier: the program is sound, but this backend cannot run it."""


def verdicts(texts: Sequence[str]) -> list[str | None]:
    """None for each text that XLA takes for sound, its error for each that it refuses."""
    found: list[str | None] = []
    while len(found) < len(texts):
        rest = json.dumps(texts[len(found) :])
        done = subprocess.run(
            [sys.executable, "-m", "tests.ir.xla_verdicts"], input=rest, capture_output=True, text=True, check=False
        )
        found += [json.loads(line) for line in done.stdout.splitlines()]
        if len(found) < len(texts):
            if done.returncode >= 0:
                raise RuntimeError(f"the process that asks XLA failed:\n{done.stderr[-2000:]}")
            found.append(CRASH)
    return found


def _verdict(text: str) -> str | None:
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

    from tests.oracle import compile_xla

    try:
        hlo.hlo_module_from_text(text)
        compile_xla(text)
    except Exception as e:
        message = str(e)
        return None if any(known in message for known in _NOT_ON_CPU) else message
    return None


if __name__ == "__main__":
    for given in json.loads(sys.stdin.read()):
        print(json.dumps(_verdict(given)), flush=True)
