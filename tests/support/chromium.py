"""Chromium without a window, driven over a pipe: pages are opened, asked, pointed at and photographed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.deadlines import scaled

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_DEADLINE_SECONDS = 60


@cache
def chromium() -> str:
    """Return the program, installed from Debian if possible. Without it the test is skipped, or fails in CI."""
    path = _on_path()
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        subprocess.run(command, capture_output=True, check=False, timeout=600)
        path = _on_path()
    if path is None:
        missing = "no Chromium: install it (Debian: apt-get install chromium)"
        pytest.fail(missing) if "CI" in os.environ else pytest.skip(missing)
    return path


def _on_path() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A running Chromium, whose profile is in `folder`."""

    def __init__(self, folder: Path) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4: the pipes must have other numbers before they are copied.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        silence = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        self._pid = os.posix_spawn(
            chromium(),
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
            ],
            os.environ,
            file_actions=[
                *silence,
                *((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends, start=3)),
            ],
            setpgroup=0,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._unread = b""
        self._sent = 0
        self._pages: dict[str, Page] = {}

    def close(self) -> None:
        """Kill the browser and all its processes."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for end in (self._to, self._from):
            os.close(end)

    def open(self, path: Path, *, size: tuple[int, int] = (1400, 1000), dark: bool = False) -> Page:
        """Open a file in a new page with a window of that size; all its network requests fail."""
        return self._opened(path.resolve().as_uri(), size=size, dark=dark, is_offline=True)

    def visit(self, url: str, *, size: tuple[int, int] = (1400, 1000), dark: bool = False) -> Page:
        """Open an address in a new page with a window of that size."""
        return self._opened(url, size=size, dark=dark, is_offline=False)

    def _opened(self, url: str, *, size: tuple[int, int], dark: bool, is_offline: bool) -> Page:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        width, height = size
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.show_scheme("dark" if dark else "light")
        if is_offline:
            page.send(
                "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
            )
        page.send("Page.navigate", url=url)
        # The page before answers until the new one has begun.
        page.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")
        page.drawn()
        return page

    def ask(self, method: str, session: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its answer."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params, **(session or {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._sent:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            if answer.get("sessionId") in self._pages:
                self._pages[answer["sessionId"]].note(answer)

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + scaled(_DEADLINE_SECONDS)
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            assert part, "Chromium ended, or does not answer"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(text))


class Page:
    """An open page. `messages` are its console output and uncaught errors."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.messages: list[str] = []
        self._browser = browser
        self._session = {"sessionId": session}
        self._target = target

    def close(self) -> None:
        """Close the page, but not the browser."""
        self._browser.ask("Target.closeTarget", targetId=self._target)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the page and return its answer."""
        return self._browser.ask(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """Evaluate an expression in the page and return its value; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + scaled(_DEADLINE_SECONDS)
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def show_scheme(self, scheme: str) -> None:
        """Show the page in a colour scheme: light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.drawn()

    def drawn(self) -> None:
        """Wait until pending drawing is done."""
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def mouse(self, type_: str, x: float, y: float, **more: Any) -> None:
        """Send mousePressed, mouseMoved, mouseReleased or mouseWheel at a point of the window."""
        self.send("Input.dispatchMouseEvent", type=type_, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, modifiers: int = 0) -> None:
        """Press the left button at one point and release it at another; at the same point it is a click."""
        button = {"button": "left", "clickCount": 1, "modifiers": modifiers}
        self.mouse("mousePressed", *start, **button)
        if start != end:
            self.mouse("mouseMoved", *end, button="left", modifiers=modifiers)
        self.mouse("mouseReleased", *end, **button)
        self.drawn()

    def press(self, key: str) -> None:
        """Press a key by its name, such as ArrowLeft."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def screenshot(self, name: str, *, whole: bool = False) -> Path:
        """Save a screenshot of the window, or of the whole page, in artifacts/."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        screenshot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(screenshot["data"]))
        return path

    def note(self, event: dict[str, Any]) -> None:
        """Collect console messages and errors from an event of the page."""
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(params["args"]))
        elif event["method"] == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
