"""What a command says before it has something to show."""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from twin_graph_cli import waiting as module
from twin_graph_cli.waiting import waiting

from twin_graph.base import doing


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """While it lasts, stdout and stderr are a terminal; what it yields returns what was written since the last call."""
    ours, theirs = os.openpty()
    with pytest.MonkeyPatch.context() as patched, os.fdopen(os.dup(theirs), "w") as out, os.fdopen(theirs, "w") as err:
        patched.setenv("TERM", "xterm")
        patched.setenv("COLUMNS", "40")
        patched.setattr(sys, "stdout", out)
        patched.setattr(sys, "stderr", err)

        def written() -> str:
            out.flush()
            err.flush()
            found = b""
            while select.select([ours], [], [], 0.05)[0]:
                found += os.read(ours, 65536)
            return found.decode()

        yield written
    os.close(ours)


def test_a_line_says_what_is_done_until_something_is_printed() -> None:
    erased = "\r\x1b[K"
    with terminal() as written:
        with waiting():
            doing.now("loading TensorFlow")
            assert written() == "loading TensorFlow ..."
            doing.now("measuring (1 of 6)")
            assert written() == f"{erased}measuring (1 of 6) ..."
            print("a result")
            assert written() == f"{erased}a result\r\n"
            print("a notice", file=sys.stderr)
            assert written() == "a notice\r\n"
            doing.now("x" * 100)
            assert written() == "x" * 39
        assert written() == erased
        doing.now("nobody waits any more")
        assert written() == ""


def test_a_command_that_says_nothing_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    with terminal() as written, waiting():
        deadline = time.monotonic() + 10
        while not (said := written()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said == "starting ..."


def test_one_that_is_quick_has_no_such_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    with terminal() as written:
        with waiting():
            print("done")
        time.sleep(0.1)
        assert written() == "done\r\n"


def test_what_is_shown_otherwise_is_not_said() -> None:
    with terminal() as written, waiting(), doing.heard_by(lambda what: None):
        doing.now("loading TensorFlow")
        assert written() == ""


def test_nobody_has_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doing, "LINE_SECONDS", 0.0)
    full = open("/dev/full", "w")  # noqa: SIM115, PTH123 - what is left in its buffer cannot be written either
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        with waiting():
            doing.now("loading TensorFlow")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    stream = os.fdopen(theirs, "w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        with waiting():
            os.close(ours)
            doing.now("loading TensorFlow")
    with contextlib.suppress(OSError):  # what is left in its buffer
        stream.close()


def test_elsewhere_a_line_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with waiting():
        for part in range(1, 41):
            doing.now(f"measuring ({part} of 40)")
            now += 1.0
        print(json.dumps({}))
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("{}\n", ["measuring (16 of 40)", "measuring (31 of 40)"])
