"""A child process that answers JSON lines, and is restarted if it dies or hangs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from compiler.errors import HlogymError
from env.isolated import NEUTRAL_FOLDER, child_environment, python_command
from env.process_watch import SLICE, STOPPED_SECONDS, ProcessWatch, kill_session, lost_are_killed

__all__ = ["WorkerCrashedError", "WorkerLostError", "WorkerProcess", "WorkerStartError", "WorkerTimeoutError"]

START_SECONDS = 120.0  # for the imports; NumPy and SciPy from a cold network disk take their time
START_PAUSES = (0.2, 1.0, 3.0)  # seconds before each further try to start
EXIT_SECONDS = 5.0  # from a closed pipe to the end of the process
LONGEST_REPLY = 1 << 28  # bytes; anything longer is no reply of a worker
KEPT_ERRORS = 1 << 14  # bytes kept from the end of stderr

# Signals that a program causes itself. Others come from an operator, a batch system or the kernel's OOM killer.
_OWN_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
)


class WorkerCrashedError(Exception):
    """The worker ended during a request through a fault of its own; the message says how."""


class WorkerTimeoutError(Exception):
    """The worker did not answer in time and was killed."""


class WorkerLostError(Exception):
    """The worker was killed or stopped from outside during a request, which may be repeated.

    Attributes:
        killed: whether the signal was SIGKILL, which a process also gets if memory runs out.
    """

    def __init__(self, message: str, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class WorkerStartError(HlogymError, RuntimeError):
    """No worker process can be started; the message has the reason given by the system or the process."""


class WorkerProcess:
    """A worker process that is started at the first request, and again after a crash or a timeout.

    Args:
        command: the program and its arguments; None: `env.worker` in this Python. Its first request is always
            `{"op": "ping"}`, whose reply shows that it has started.
        environment: environment variables of the process in addition to those of this one.
    """

    def __init__(self, command: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._command = None if command is None else tuple(command)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._pending = b""
        self._errors = b""
        self.restarts = -1

    @property
    def running(self) -> bool:
        """Whether there is a process now."""
        process = self._process
        # This does not reap it: until `kill`, no other process can get its id.
        return process is not None and process.returncode is None and not _has_ended(process.pid)

    @property
    def pid(self) -> int | None:
        """Process id, if there is a process now."""
        return self._process.pid if self._process is not None else None

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and return the worker's reply.

        Args:
            request: JSON.
            timeout: seconds until the reply; see `ProcessWatch` for time that does not count.

        Raises:
            WorkerCrashedError: the worker died instead of answering, or wrote something that is not a reply.
            WorkerTimeoutError: the worker did not answer in time and was killed.
            WorkerLostError: the worker was killed or stopped from outside.
            WorkerStartError: there is no worker, and none can be started.
        """
        return self._exchange(self._running_process(), request, timeout)

    # ---- starting

    def _running_process(self) -> subprocess.Popen[bytes]:
        self._disown_in_a_fork()
        if self._process is not None and self.running and not self._has_written():
            return self._process
        reason = advice = ""
        check = f"to find the cause, run `{shlex.quote(sys.executable)} -X faulthandler -c 'import env.worker'`"
        check += ", which should print nothing"
        for pause in (0.0, *START_PAUSES):
            time.sleep(pause)
            self.kill()
            try:
                process = self._start()
                self._exchange(process, {"op": "ping"}, START_SECONDS)
            except OSError as error:
                reason, advice = error.strerror or str(error), check
            except WorkerLostError as error:
                reason, advice = str(error), "memory may have run out; use fewer workers"
            except WorkerCrashedError as error:
                reason, advice = str(error), check
            except WorkerTimeoutError:
                raise WorkerStartError(f"the worker process did not start within {START_SECONDS:g} s") from None
            else:
                self.restarts += 1
                return process
        raise WorkerStartError(
            f"cannot start a worker process on {platform.node()}, tried {1 + len(START_PAUSES)} times: "
            f"{reason}; {advice}"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a process and return it.

        Raises:
            OSError: the system cannot start one now.
        """
        process = _StartedProcess(
            self._command or python_command("from env.worker import main; main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # so that a kill reaches the C compiler it may be running
            cwd=NEUTRAL_FOLDER,
            env={**child_environment(), **self._environment},
        )
        self._process, self._owner = process, os.getpid()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    def _disown_in_a_fork(self) -> None:
        """Leave the worker to its owner if this is a fork of the process that started it."""
        if self._owner == os.getpid():
            return
        process, self._process, self._owner = self._process, None, os.getpid()
        self._pending = self._errors = b""
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # otherwise Popen would wait for a process that is no child of this one

    def _has_written(self) -> bool:
        """Check whether the idle process has written to its pipe without a request."""
        self._read_pending()
        return bool(self._pending)

    # ---- asking

    def _exchange(self, process: subprocess.Popen[bytes], request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Write a request and read its reply, in one loop, because a stopped process does not read either."""
        unsent = memoryview(json.dumps(request).encode() + b"\n")
        watch, last_look = ProcessWatch(process.pid), time.monotonic()
        try:
            with selectors.DefaultSelector() as selector:
                _register(selector, process)
                while b"\n" not in self._pending:
                    for key, _ in selector.select(SLICE):
                        match key.data:
                            case "stdin":
                                unsent = _write(selector, key.fd, unsent)
                            case "stderr":
                                self._read_errors(selector, key.fd)
                            case _ if not self._read_pending():
                                self._raise_ended(process)
                    if time.monotonic() - last_look >= SLICE:
                        watch.tick()
                        last_look = time.monotonic()
                        self._check(process, watch, timeout)
            return self._reply()
        except BaseException:
            self.kill()  # whatever it still writes would be read as the next reply
            raise

    def _check(self, process: subprocess.Popen[bytes], watch: ProcessWatch, timeout: float) -> None:
        """Raise an error if the process is late, stopped or gone, unless it has replied in the meantime."""
        late, stopped, ended = watch.counted >= timeout, watch.stopped >= STOPPED_SECONDS, not self.running
        if late or stopped or ended:
            self._read_pending()
        if b"\n" in self._pending:
            return
        if ended:
            self._raise_ended(process)
        if stopped:
            raise WorkerLostError("stopped by a signal from outside")
        if late:
            raise WorkerTimeoutError("no answer in time")
        if len(self._pending) > LONGEST_REPLY:
            raise WorkerCrashedError(f"it wrote more than {LONGEST_REPLY} bytes without a newline")

    def _read_pending(self) -> bool:
        """Read what the process has written so far; return False at the end of its pipe."""
        process = self._process
        assert process is not None  # noqa: S101 - only called while there is one
        assert process.stdout is not None  # noqa: S101 - said by Popen's arguments, not by its type
        while True:
            try:
                chunk = os.read(process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._pending += chunk
            if b"\n" in chunk or len(self._pending) > LONGEST_REPLY:
                return True

    def _read_errors(self, selector: selectors.BaseSelector | None, descriptor: int) -> None:
        """Keep the end of what the process writes to stderr."""
        while True:
            try:
                chunk = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                if selector is not None:
                    selector.unregister(descriptor)
                return
            self._errors = (self._errors + chunk)[-KEPT_ERRORS:]

    def _reply(self) -> dict[str, Any]:
        line, _, rest = self._pending.partition(b"\n")
        self._pending = b""
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or rest:
            raise WorkerCrashedError(f"it wrote something that is not a reply: {(rest or line)[:80]!r}")
        return reply

    # ---- ending

    def _raise_ended(self, process: subprocess.Popen[bytes]) -> None:
        """Clean up, and raise an error that says how the process ended, with the last line of its stderr.

        Raises:
            WorkerCrashedError, WorkerLostError: always one of them.
        """
        if process.stderr is not None:
            self._read_errors(None, process.stderr.fileno())
        lines = self._errors.decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        end = time.monotonic() + EXIT_SECONDS
        # Checked, but not reaped: until then no other process can get its id, which `kill` is about to use.
        while not _has_ended(process.pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.kill()
        code = process.returncode
        if code is None or code >= 0:
            raise WorkerCrashedError(f"exit status {code}{said}")
        name = _signal_name(-code)
        if -code in _OWN_SIGNALS:
            raise WorkerCrashedError(f"signal {name}{said}")
        raise WorkerLostError(f"killed by signal {name} from outside", killed=-code == signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process and its children; harmless if there is none."""
        self._disown_in_a_fork()
        process, self._process = self._process, None
        self._pending = self._errors = b""
        if process is None:
            return
        if process.returncode is None:
            kill_session(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk, and ends when the disk answers
            process.wait(EXIT_SECONDS)
        _close_pipes(process)


class _StartedProcess(subprocess.Popen[bytes]):
    """A process whose start is not waited for without end if a signal stops it before it runs its program."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.pid = 0
        # Setting the group, to what it is, keeps subprocess from calling vfork, in which this process would stop, too.
        with lost_are_killed(lambda: {self.pid: math.inf}):
            super().__init__(command, group=os.getegid(), **options)


def _register(selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
    for name, events in (
        ("stdin", selectors.EVENT_WRITE), ("stdout", selectors.EVENT_READ), ("stderr", selectors.EVENT_READ),
    ):  # fmt: skip
        selector.register(getattr(process, name), events, name)


def _write(selector: selectors.BaseSelector, descriptor: int, unsent: memoryview) -> memoryview:
    """Write what fits and return the rest; nothing if the pipe is closed, because the end of stdout is seen later."""
    try:
        left = unsent[os.write(descriptor, unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        left = unsent[:0]
    if not left:
        selector.unregister(descriptor)
    return left


def _has_ended(pid: int) -> bool:
    """Check whether a child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
