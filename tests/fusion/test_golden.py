"""Golden tests of the rules of fusion policies: `tests/fusion/golden/<policy>/<rule>.hlo`.

A file is laid out as those of passes (see `tests/golden/test_golden.py`): what it shows, the program, the line
`// ---- after`, and the program with its fusions. The policy is the one named by the folder, or by a second line
`// policy: name{option=value}`. `python -m pytest tests/fusion/test_golden.py --update-golden` rewrites the last part.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.interpreter import evaluate
from compiler.ir.verifier import check_module
from compiler.text import parse
from tests.golden.inputs import random_arguments
from tests.passes.programs import difference, reference

FOLDER = Path(__file__).parent / "golden"
CASES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("*/*.hlo"))
MARK = "// ---- after\n"


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, update_golden: bool) -> None:
    path = FOLDER / case
    before, _, after = path.read_text(encoding="utf-8").partition(MARK)
    assert re.match(r"// shows: [A-Z].{10,}\.\n", before)
    named = re.search(r"^// policy: (\S+)\n", before, re.MULTILINE)
    module = parse(before)
    assert check_module(module) == []
    arguments = random_arguments(module, 0)
    with np.errstate(all="ignore"):
        expected = reference(module, arguments)

    run_policy(FusionState(module), make_policy(named.group(1) if named else case.split("/")[0]))

    got = str(module)
    assert check_module(module) == []
    with np.errstate(all="ignore"):
        assert difference(evaluate(module, arguments), expected) is None
    if update_golden:
        path.write_text(before + MARK + got.rstrip("\n") + "\n", encoding="utf-8")
    else:
        assert got.rstrip("\n") == after.rstrip("\n")
