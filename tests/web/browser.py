"""A real Chromium without a window, told what to do by its DevTools protocol over a pipe. Skips where there is none."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here (Debian: apt install chromium)")
_PATIENCE_S = 60.0


class Chromium:
    """The process, at the other end of two pipes. Events go to the page that they are of."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._number = 0
        self._left = b""
        self._pages: dict[str, Browser] = {}

    @contextmanager
    def page(self) -> Iterator[Browser]:
        """A page that knows nothing of the others, with a store of its own."""
        context = self.call("Target.createBrowserContext", {})["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = found = Browser(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            found.call(f"{domain}.enable")
        try:
            yield found
        finally:
            del self._pages[session]
            self.call("Target.disposeBrowserContext", {"browserContextId": context})

    def call(self, method: str, parameters: dict[str, object], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for found in self._received(deadline):
                if found.get("id") == self._number:
                    assert "error" not in found, f"{method}: {found}"
                    result: dict[str, Any] = found["result"]
                    return result
        raise TimeoutError(method)

    def _received(self, deadline: float) -> Iterator[dict[str, Any]]:
        if not select.select([self._reading], [], [], max(deadline - time.monotonic(), 0))[0]:
            return
        self._left += os.read(self._reading, 1 << 20)
        *whole, self._left = self._left.split(b"\0")
        for each in whole:
            found = json.loads(each)
            if (page := self._pages.get(found.get("sessionId"))) is not None:
                page.note(found)
            yield found


class Browser:
    """One page. What it logs and what it asks for is kept."""

    def __init__(self, process: Chromium, session: str) -> None:
        self._process, self._session = process, session
        self.logged: list[str] = []
        self.asked_for: list[str] = []

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._process.call(method, parameters, self._session)

    def note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.logged.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.logged.append(json.dumps(event["params"]["args"]))
            case "Log.entryAdded":
                self.logged.append(event["params"]["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.logged.append(f"dialog: {event['params']['message']}")
            case "Network.requestWillBeSent":
                self.asked_for.append(event["params"]["request"]["url"])

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, timeout_s: float = _PATIENCE_S) -> Any:
        """The value of an expression, once it has one that is true; of an element, that there is one."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.run(f"(found => found instanceof Node || found)({script})")):
            assert time.monotonic() < deadline, f"{script}\n{self.text}\n{self.logged}"
            time.sleep(0.05)
        return value

    @property
    def text(self) -> str:
        """What a reader sees."""
        return str(self.run("document.body.innerText"))

    def shape(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, file: Path, **options: object) -> None:
        found = self.call("Page.captureScreenshot", **{"format": "png", **options})
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium() -> Iterator[Chromium]:
    """With a fresh profile, which is gone afterwards."""
    assert PROGRAM is not None
    to_it, from_us = os.pipe()
    from_it, to_us = os.pipe()

    def place() -> None:
        """The pipe is where Chromium looks for it: 3 to read, 4 to write."""
        os.dup2(to_it, 30)
        os.dup2(to_us, 31)
        os.dup2(30, 3)
        os.dup2(31, 4)

    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [
                PROGRAM,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
                *("--remote-debugging-pipe", f"--user-data-dir={home}", "about:blank"),
            ],
            env={**os.environ, "HOME": home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=place,
            start_new_session=True,
        )
        os.close(to_it)
        os.close(to_us)
        try:
            yield Chromium(from_it, from_us)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
            os.close(from_it)
            os.close(from_us)
