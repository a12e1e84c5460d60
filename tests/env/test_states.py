"""Tests of the states that environments remember, against episodes that compile everything."""

from pathlib import Path

import numpy as np
import pytest

from compiler.plan import CompilationPlan
from env.environments import CompileEnv, FusionEnv
from env.episode import Episode
from env.observations import observe
from env.states import DecisionMemory, DecisionStates
from tests.env.small_programs import suite_folder as make_suite


@pytest.fixture(name="suite")
def _suite(tmp_path: Path) -> Path:
    return make_suite(tmp_path)
