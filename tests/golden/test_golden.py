"""Golden tests of passes: input and expected output in one file `tests/golden/<pass>/<case>.hlo`.

The file contains the input, the line `// ---- after`, and the expected output. Its first line, `// shows: ...`, says
what the case shows; the pass catalogue of the documentation prints it. The pass is the one named by the folder, or by a
second line `// pass: name{option=value}`; `// pass: default` is the default pipeline.
`python -m pytest tests/golden --update-golden` rewrites the expected output and keeps what is before it.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir.verifier import check_module
from compiler.passes import HloPass, make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from tests.golden.inputs import random_arguments
from tests.passes.programs import difference, reference

FOLDER = Path(__file__).parent
CASES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("*/*.hlo") if p.parent.name != "programs")
MARK = "// ---- after\n"


def pass_of(case: str, text: str) -> HloPass:
    named = re.search(r"^// pass: (\S+)\n", text, re.MULTILINE)
    name = named.group(1) if named else case.split("/")[0]
    return default_pipeline() if name == "default" else make_pass(name)


@pytest.mark.parametrize("case", CASES)
def test_first_line_says_what_the_case_shows(case: str) -> None:
    with (FOLDER / case).open(encoding="utf-8") as file:
        assert re.fullmatch(r"// shows: [A-Z0-9(\w].{10,}\.\n", file.readline())


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, update_golden: bool) -> None:
    path = FOLDER / case
    before, _, after = path.read_text(encoding="utf-8").partition(MARK)
    module = parse(before)
    assert check_module(module) == []
    arguments = [random_arguments(module, seed) for seed in range(2)]
    with np.errstate(all="ignore"):
        expected = [reference(module, a) for a in arguments]
    hlo_pass = pass_of(case, before)

    text = str(module)
    changed = hlo_pass.run(module)

    got = str(module)
    assert check_module(module) == []
    assert changed == (got != text)
    with np.errstate(all="ignore"):
        for a, want in zip(arguments, expected, strict=True):
            assert difference(evaluate(module, a), want) is None
    if update_golden:
        path.write_text(before + MARK + got.rstrip("\n") + "\n", encoding="utf-8")
    else:
        assert got.rstrip("\n") == after.rstrip("\n")
    assert not hlo_pass.run(module), "a second run changed the module again"
