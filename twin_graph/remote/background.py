"""Sends each resume point of a run that trains to its remote, in a thread of its own: training waits for nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from twin_graph.errors import TwinGraphError
from twin_graph.remote import owners
from twin_graph.remote.heads import TakenOverError
from twin_graph.remote.sending import Sender

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from twin_graph.remote.owners import Owner
    from twin_graph.remote.places import Place
    from twin_graph.snapshots.run import Run
    from twin_graph.training.progress import Progress

#: Seconds between looks for new parts of the replay.
_LOOK_SECONDS = 2.0
#: Seconds that an end waits at most where nothing can be sent.
_TROUBLE_SECONDS = 60.0
#: Seconds until it is tried again after an error: doubled each time, up to the second.
_AGAIN_SECONDS, _AGAIN_AT_MOST = 5.0, 300.0


class Background:
    """Sends a run's states while it trains; ended by `close`.

    Args:
      run: which, and by whom it is trained.
      place: of the remote.
      owner: what the run here is there.
      take_over: whether to replace what another copy has sent.

    Attributes:
      url: of the remote.
      taken_over: set when another machine has continued the run: this one has to stop.
      trouble: why nothing can be sent at present; empty if nothing is wrong.
    """

    def __init__(self, run: Run, place: Place, owner: Owner, *, take_over: bool = False) -> None:
        self._run, self._owner, self.url, self._take_over = run, owner, place.url, take_over
        # One file at a time: what is sent fast would take the cores from the training.
        self._sender = Sender(run, place, owner.owner, at_once=1)
        self._newest, self._sent, self._begun = -1, -1, False
        self._changed, self._closing, self._ends = threading.Condition(), False, False
        self.taken_over: TakenOverError | None = None
        self.trouble = ""
        self._moved = 0.0  # when something was sent last
        self._thread = threading.Thread(target=self._work, name="remote", daemon=True)

    def begin(self) -> None:
        """Looks at what is there, before time is lost; see `Sender.begin`. After an error `start` tries it again."""
        self._sender.begin(take_over=self._take_over)
        self._begun = True

    def start(self) -> None:
        """From here on, it works."""
        self._thread.start()

    def follow(self, progresses: Iterable[Progress]) -> Iterator[Progress]:
        """The same, sending resume points as they come; ends the training where another machine has continued it."""
        told = ""
        for progress in progresses:
            if self.trouble and self.trouble != told:
                told = self.trouble
                progress.notices.append(f"nothing can be sent to {self.url} at present: {told}")
            point = progress.live.resume_points.newest
            if point and point.number > self._newest:
                self._tell(point.number)
            if self.taken_over and not progress.stop.is_set():
                progress.stop.set()
            yield progress

    @property
    def all_sent(self) -> bool:
        """Whether the newest resume point is there."""
        newest = self._run.points().newest()
        return newest is None or self._sent >= newest.number

    def close(self, seconds: float) -> bool:
        """Sends what is left, for so many seconds, or fewer if nothing can be sent. Returns whether all is there."""
        newest = self._run.points().newest()
        if newest:
            self._tell(newest.number)
        with self._changed:
            self._closing = True  # whoever waits to try again does not wait long
            self._changed.notify_all()
            ends, self._moved = time.monotonic() + seconds, time.monotonic()
            while (left := ends - time.monotonic()) > 0 and self._sent < self._newest and self.taken_over is None:
                if self.trouble and time.monotonic() - self._moved > _TROUBLE_SECONDS:
                    break
                self._changed.wait(min(left, 1.0))
            self._ends = True
            self._changed.notify_all()
        self._thread.join(timeout=_LOOK_SECONDS)
        return self._sent >= self._newest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def _tell(self, number: int) -> None:
        with self._changed:
            self._newest = max(self._newest, number)
            self._changed.notify_all()

    def _work(self) -> None:
        pause = _AGAIN_SECONDS
        while not self._ends and self.taken_over is None:
            try:
                if not self._begun:
                    self.begin()
                self._send()
                self.trouble, pause = "", _AGAIN_SECONDS
                self._wait(_LOOK_SECONDS)
            except TakenOverError as error:
                self.taken_over = error
            except Exception as error:  # whatever a library below raises, training goes on
                self.trouble = str(error) if isinstance(error, OSError | TwinGraphError) else repr(error)
                self._note()
                self._wait(_AGAIN_SECONDS if self._closing else pause)
                pause = min(2 * pause, _AGAIN_AT_MOST)
        with self._changed:
            self._changed.notify_all()

    def _send(self) -> None:
        newest = self._newest
        if newest > self._sent:
            head = self._sender.send(self._has_moved)
            with self._changed:
                self._sent = newest
                self._changed.notify_all()
            self._owner = self._owner.of(head)
            self._note()
        else:
            self._sender.send_segments()

    def _has_moved(self, done: int, total: int) -> None:  # noqa: ARG002 - as `Sender.send` calls it
        self._moved = time.monotonic()

    def _note(self) -> None:
        """For `status`: what there is to say of the remote."""
        if self.trouble != self._owner.trouble:
            self._owner = self._owner.model_copy(update={"trouble": self.trouble})
        with contextlib.suppress(TwinGraphError):  # it is for people alone
            owners.keep(self._run, self._owner)

    def _wait(self, seconds: float) -> None:
        """Until something new is to be sent, or so long."""
        was_closing = self._closing

        def changed() -> bool:
            return self._ends or self._closing != was_closing or (not self.trouble and self._newest > self._sent)

        with self._changed:
            self._changed.wait_for(changed, seconds)
