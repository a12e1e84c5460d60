"""Options of the whole test suite."""

import signal

import pytest
from hypothesis import settings

# Use the same examples in each run, so that failures are reproducible; --hypothesis-profile=default samples new ones.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected parts of golden files; review the diff"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten instead of compared."""
    return bool(request.config.getoption("--update-golden"))


def pytest_configure() -> None:
    """Take SIGINT and SIGHUP as usual: shells and nohup ignore them in the background, and processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
