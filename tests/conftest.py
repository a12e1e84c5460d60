"""Options of the whole test suite."""

import pytest
from hypothesis import settings

# The same examples each time, so that a run fails for what was changed; --hypothesis-profile=default draws others.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the expected parts of golden files anew; read the diff"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
