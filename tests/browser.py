"""Headless Chromium, driven through a pipe: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Browser:
    """One tab; ``problems`` collects console errors, exceptions and requests that left the page."""

    def __init__(self, out: BinaryIO, answers: BinaryIO) -> None:
        self._out, self._in = out, answers
        self._rest = b""
        self._number = 0
        self.problems: list[str] = []
        self._events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)
        attached = self._call(
            "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}, session=None
        )
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        return self._call(method, parameters, session=self._session)

    def _call(self, method: str, parameters: Any, session: str | None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in.fileno(), 1 << 20)
            assert data, "the browser went away"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._notice(message)
        return message

    def _notice(self, message: dict[str, Any]) -> None:
        method, values = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.problems.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = values["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"asked for {url}")
        if method is not None:
            self._events.append(message)

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, scale: float = 1) -> None:
        """Show a page of this machine at a width, and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._read()

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def save(self, expression: str, folder: Path) -> None:
        """Run an expression that makes the page save a file in a folder; wait until it is there."""
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._events.clear()
        self.run(expression)
        done = ("Page.downloadProgress", "completed")
        while not any((e["method"], e["params"].get("state")) == done for e in self._events):
            self._read()

    def press(self, key: str) -> None:
        """Press and release a key, such as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=codes[key],
                **text,
            )

    def screenshot(self, target: Path, *, top: float = 0, height: float | None = None) -> None:
        """Save a picture of the page, or of a part of it, as PNG."""
        width = self.run("document.documentElement.clientWidth")
        whole = self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole - top, "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        target.write_bytes(base64.b64decode(answer["data"]))


# chromium speaks the protocol on the descriptors 3 and 4, which may be taken by either of its pipes
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser with a folder of its own; it ends with the block."""
    assert CHROMIUM is not None
    to_browser, own_write = os.pipe()
    own_read, from_browser = os.pipe()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        out = stack.enter_context(os.fdopen(own_write, "wb"))
        answers = stack.enter_context(os.fdopen(own_read, "rb", buffering=0))
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"]
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        yield Browser(out, answers)
