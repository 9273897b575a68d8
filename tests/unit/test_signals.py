"""Signals that ask a program to stop, while somebody wants to know of them."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from twin_graph.base.signals import on_signal

BOTH = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def before() -> Iterator[list[int]]:
    """The signals that came to the handlers of before."""
    came: list[int] = []
    restore = {number: signal.signal(number, lambda number, _: came.append(number)) for number in (*BOTH, *WARNINGS)}
    yield came
    for number, handler in restore.items():
        signal.signal(number, handler)


def test_each_signal_calls_the_handler_until_the_end(before: list[int]) -> None:
    seen: list[int] = []
    with on_signal(lambda number, _: seen.append(number)):
        for number in (*BOTH, *BOTH):
            signal.raise_signal(number)
    for number in BOTH:
        signal.raise_signal(number)
    assert seen == [*BOTH, *BOTH]
    assert before == [*BOTH]


def test_the_second_of_a_signal_does_what_it_did_before(before: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with on_signal(lambda number, _: seen.append(number), once=True):
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.05
        signal.raise_signal(signal.SIGINT)  # as `timeout` sends it to the child, and then to the group
        assert before == []
        now[0] += 0.5
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGINT, signal.SIGTERM]
    assert before == [signal.SIGINT]


def test_handlers_of_before_are_back_after_an_exception(before: list[int]) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), on_signal(interrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert before == [signal.SIGTERM]


def test_nothing_changes_in_another_thread(before: list[int]) -> None:
    handlers: list[object] = []

    def elsewhere() -> None:
        with on_signal(lambda number, _: None):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_asks_once_however_often_it_comes(before: list[int], number: int) -> None:
    """A closed terminal sends SIGHUP by the kernel and by the shell, and Slurm may warn several times."""
    for once in (False, True):
        seen: list[int] = []
        with on_signal(lambda number, _, seen=seen: seen.append(number), once=once):
            for _ in range(3):
                signal.raise_signal(number)
        assert seen == [number]
    assert before == []
    signal.raise_signal(number)
    assert before == [number]


@pytest.mark.parametrize("number", [signal.SIGTERM, *WARNINGS])
def test_what_is_ignored_stays_ignored(before: list[int], number: int) -> None:
    """As SIGHUP is by nohup. SIGINT is by shells, of what they begin in the background."""
    seen: list[int] = []
    for ignored in (number, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    with on_signal(lambda number, _: seen.append(number)):
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]
    assert signal.getsignal(number) is signal.SIG_IGN
