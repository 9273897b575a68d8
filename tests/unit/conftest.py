"""These tests need no TensorFlow, and must not begin to: they are what one runs while editing."""

import gc
import sys

import pytest


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look at it again, nor a fork have a copy of it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a session of these tests alone that has imported TensorFlow."""
    here = {item.path.parent.name for item in session.items} == {"unit"}
    if here and exitstatus == pytest.ExitCode.OK and "tensorflow" in sys.modules:
        sys.stderr.write("tests/unit has imported TensorFlow: move what needs it to tests/runs\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
