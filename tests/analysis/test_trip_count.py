"""Trip counts annotated in HLO text are used if they are integers and ignored otherwise."""

import pytest

from compiler.analysis.trip_count import annotate_trip_counts, trip_count_of
from compiler.ir import HloModule, Opcode
from compiler.passes import make_pass
from compiler.text import parse
from tests.env.small_programs import LOOP

ITERATIONS = 100  # of the program itself


def noting(config: str) -> HloModule:
    return parse(LOOP.replace("body=body", f"body=body, backend_config={config}"))


def count(module: HloModule) -> int | None:
    (loop,) = [i for i in module.entry.instructions if i.opcode is Opcode.WHILE]
    return trip_count_of(loop)


@pytest.mark.parametrize(
    "config",
    [
        '{"known_trip_count":{"n":"7"}}', '{"known_trip_count": {"n": "7"}}',
        '"{\\"known_trip_count\\":{\\"n\\":\\"7\\"}}"',
    ],
)  # fmt: skip
def test_a_noted_count_is_read(config: str) -> None:
    assert count(noting(config)) == 7


@pytest.mark.parametrize(
    "config",
    [
        '{"known_trip_count":{"n":-5}}', '{"known_trip_count":{"n":"-5"}}', '{"known_trip_count":{"n":1e999}}',
        '{"known_trip_count":{"n":1.5}}', '{"known_trip_count":{"n":"99999999999999999999999999"}}',
        '{"known_trip_count":{"n":true}}', '{"known_trip_count":{"n":"x"}}', '{"known_trip_count":[3]}',
        '{"known_trip_count":{"n":"' + "9" * 5000 + '"}}',
        '{"a":' * 20_000 + "1" + "}" * 20_000, '"' + "[" * 3000 + '"', "{" + '"a":' * 2 + "1}",
    ],
)  # fmt: skip
def test_what_is_no_count_is_passed_over(config: str) -> None:
    module = noting(config)
    assert count(module) == ITERATIONS
    annotate_trip_counts(module)
    make_pass("while-loop-trip-count-annotator").run(module)
    assert count(module) == ITERATIONS
