"""One call on a group at a time, with Ctrl-C asking for a stop meanwhile.

A class and not a generator, because every call enters it.
"""

import signal
import threading
from _signal import signal as set_handler  # type: ignore[import-not-found]  # signal.signal takes 6 us more, for enums
from types import FrameType, TracebackType
from typing import Any

from kit.ranks.errors import RanksError
from kit.ranks.state import GroupState


class Turn:
    """The block of one call. Raises KeyboardInterrupt at its end when a stop was asked for and nobody took it."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._before: Any = None  # the handler of SIGINT that was there; None: nothing was armed
        self._pressed = False

    def __enter__(self) -> None:
        state = self._state
        me = threading.get_ident()
        if state.caller == me:
            raise RanksError(
                "a call on these ranks is under way in this thread (an output sink or a progress listener calls back); "
                "expected one call at a time. Return from it first."
            )
        while True:
            self._arm()  # first: a Ctrl-C between lock and block would leave it locked for ever
            if state.lock.acquire(blocking=False):
                break
            self._disarm()
            if self._pressed:  # meant for this call, not for the other thread's
                raise KeyboardInterrupt
            with state.lock:  # another thread's call; a Ctrl-C raises here
                pass
        state.stop_requested = False
        state.caller = me
        if self._pressed:  # before the turn began
            state.request_stop()
        try:
            state.require_open()
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._before is not None and kind is None and self._state.take_stop():
            raise KeyboardInterrupt

    def _arm(self) -> None:
        """From now on Ctrl-C asks for a stop instead of raising anywhere, in the middle of a message say."""
        if threading.get_ident() == threading.main_thread().ident:
            before = set_handler(signal.SIGINT, self._on_sigint)
            self._before = signal.SIG_DFL if before is None else before

    def _disarm(self) -> None:
        if self._before is not None:
            set_handler(signal.SIGINT, self._before)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        self._pressed = True
        if self._state.caller == threading.get_ident():
            self._state.request_stop()

    def _leave(self) -> None:
        try:
            self._disarm()
        finally:
            self._state.output.someone_waits = False
            self._state.caller = self._state.call = None
            self._state.lock.release()
