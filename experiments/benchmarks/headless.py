"""A headless Chromium that opens pages, evaluates JavaScript and takes pictures, driven through a pipe."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from compiler.errors import BackendError

__all__ = ["Chromium", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome on the PATH, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class Chromium:
    """A headless browser with one page; use it as a context manager.

    Args:
        width: of the window in pixels.
        height: of the window in pixels.

    Raises:
        BackendError: there is no browser.
    """

    def __init__(self, width: int = 1500, height: int = 950) -> None:
        path = find_chromium()
        if path is None:
            raise BackendError("there is no Chromium on the PATH; install the package chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="hlogym-browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip

        # The browser reads commands from descriptor 3 and writes answers to 4. A process with threads must not fork,
        # so these are arranged by posix_spawn; copies above 4 cannot be overwritten before they are used.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in (to_read, to_write)]
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        moves = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        self._process = os.posix_spawn(path, command, os.environ, file_actions=[*quiet, *moves])
        for fd in high:
            os.close(fd)
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self.messages: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})
        attached = self._call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while os.waitpid(self._process, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
                break
            time.sleep(0.02)
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open(self, path: Path, fragment: str = "", timeout: float = 60.0) -> float:
        """Open a graph page and return the seconds until it is drawn.

        Raises:
            TimeoutError: it is not drawn in time.
        """
        self._call("Page.navigate", {"url": "about:blank"})
        start = time.perf_counter()
        self._call("Page.navigate", {"url": path.resolve().as_uri() + (f"#{fragment}" if fragment else "")})
        while time.perf_counter() - start < timeout:
            if self.evaluate("document.documentElement ? document.documentElement.dataset.ready || '' : ''"):
                return time.perf_counter() - start
            time.sleep(0.01)
        raise TimeoutError(f"{path} is not drawn after {timeout:.0f} s")

    def evaluate(self, code: str) -> Any:
        """Return the JSON value of an expression in the page; a promise is awaited."""
        reply = self._call("Runtime.evaluate", {"expression": code, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"].get("exception", {}).get("description", reply)))
        return reply["result"].get("value")

    def prefer(self, scheme: str) -> None:
        """Let pages see that the user prefers a color scheme, `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, path: Path) -> None:
        """Write a picture of the page (PNG)."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", {"format": "png"})["data"]))

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                found: dict[str, Any] = reply["result"]
                return found
            if reply.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(reply["params"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], 120)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise BackendError("the browser ended; see whether chromium --headless works here")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found
