"""Output of the running demo: a live view in a terminal, plain lines elsewhere, never silent for long."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

SILENT_SECONDS = 4.5
_EVENTS, _BATCHES = 9, 5
_NAME_WIDTH = 14


class Screen:
    """Accepts lines from any thread. `step` stays on screen; `status` and `totals` are overwritten."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._lock = threading.RLock()
        self._started = self._said = time.monotonic()
        self._status = self._totals = self._expected = ""
        self._until: float | None = None
        self._events: deque[Text] = deque(maxlen=_EVENTS)
        self._batches: deque[Text] = deque(maxlen=_BATCHES)
        self._live = Live(
            get_renderable=self._frame, console=self._console, refresh_per_second=4, transient=True, auto_refresh=True
        )
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        else:
            threading.Thread(target=self._never_silent, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the live view; later lines are printed directly."""
        with self._lock:
            self._closed.set()
            self._live.stop()
            self._is_live = False

    def step(self, text: str) -> None:
        """Print a step, which is also the status until the next one."""
        with self._lock:
            self._until = None
            self._status = text
            self._print(Text.assemble((self._clock(), "dim"), text))

    def status(self, text: str, *, seconds: float | None = None) -> None:
        """Set the status and its expected duration."""
        with self._lock:
            self._status = text
            self._until = None if seconds is None else time.monotonic() + seconds

    def event(self, actor: str, line: str) -> None:
        """Show an action of a workload client."""
        self._add(self._events, actor, line, "cyan")

    def batch(self, line: str) -> None:
        """Show a micro-batch that the pipeline has written."""
        self._add(self._batches, "batch", line, "green")

    def expect(self, text: str) -> None:
        """Set the text shown until the first batch has been written."""
        with self._lock:
            self._expected = text

    def totals(self, text: str) -> None:
        """Show the totals of the tables."""
        with self._lock:
            self._totals = text

    def _add(self, lines: deque[Text], name: str, text: str, style: str) -> None:
        line = Text.assemble((self._clock(), "dim"), (f"{name:<{_NAME_WIDTH}} ", style), text)
        line.no_wrap, line.overflow = True, "ellipsis"
        with self._lock:
            lines.append(line)
            if not self._is_live:
                self._print(line)

    def _print(self, line: Text) -> None:
        self._said = time.monotonic()
        self._console.print(line.plain if not self._console.is_terminal else line, soft_wrap=True, markup=False)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:5.0f} s  "

    def _now(self) -> str:
        left = "" if self._until is None else f": {max(self._until - time.monotonic(), 0):.0f} s to go"
        return f"{self._status}{left}"

    def _frame(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = []
            if self._events:
                parts += [Rule("what the groups do", align="left", style="dim"), *self._events]
            if self._batches or self._expected:
                parts.append(Rule("what lands in the tables", align="left", style="dim"))
                parts += self._batches or [Text(f"         {self._expected} ...", style="dim")]
            if self._totals:
                parts.append(Text(f"in all: {self._totals}", style="green", no_wrap=True, overflow="ellipsis"))
            if parts:
                parts.append(Rule(style="dim"))
            now = Text.assemble((self._clock(), "dim"), (f"{self._now()} ...", "bold"))
            now.no_wrap, now.overflow = True, "ellipsis"
            return Group(*parts, now)

    def _never_silent(self) -> None:
        while not self._closed.wait(0.25):
            with self._lock:
                if time.monotonic() - self._said > SILENT_SECONDS:
                    self._print(Text(f"{self._clock()}{self._now()} ..."))
