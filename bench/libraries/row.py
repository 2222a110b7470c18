"""A row of a table: two processes that measure one way, with deadlines.

All rows are started at once and load their libraries, which takes seconds and is not timed. Then
they take turns.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# No NVLink multicast, one host, and nobody looks for network cards.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Row:
    """status: "whole", "missing" (a library is not there), "failed" or "late"; why: in words;
    figures: what it had measured by then."""

    def __init__(self, entry, options):
        self.entry, self.status, self.why, self.figures = entry, "late", "not run", []
        self.seconds = 0.0
        self._errors = tempfile.TemporaryFile("w+")
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "side.py"),
             json.dumps({key: entry[key] for key in ("module", "work")}), json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            start_new_session=True,
            env={**os.environ, **ENVIRONMENT, **entry.get("environment", {})})
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _next(self, until):
        """What the row says next; None at its end; queue.Empty at the deadline."""
        return self._lines.get(timeout=max(0.0, until - time.monotonic()))

    def load(self, until):
        """Whether it is ready to go."""
        try:
            said = self._next(until)
        except queue.Empty:
            return self._end("late", "its libraries were not loaded within the deadline")
        if said is not None and "loaded" in said:
            return True
        if said is not None and "missing" in said:
            return self._end("missing", said["missing"])
        return self._end("failed", "ended while it loaded its libraries" + self._last_words())

    def run(self, seconds):
        """Lets it measure, `seconds` at most."""
        began = time.monotonic()
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            while True:
                said = self._next(began + seconds)
                if said is None:
                    code = self._process.wait(timeout=10)
                    self._end("failed", f"ended with {code}" + self._last_words())
                elif "figures" in said:
                    self.figures.append(said["figures"])
                    continue
                elif "done" in said:
                    self._end("whole", "")
                elif "peer" in said:
                    self._end("failed", f"the peer ended with {said['peer']}"
                              + self._last_words())
                else:
                    self._end("failed", said["failed"])
                break
        except queue.Empty:
            self._end("late", f"stopped at its deadline of {seconds:.0f} s" + self._last_words())
        except BrokenPipeError:
            self._end("failed", "ended before it began" + self._last_words())
        self.seconds = time.monotonic() - began

    def skip(self, why):
        self._end("late", why)

    def _last_words(self):
        """The last line that is no traceback's of what it wrote to standard error."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return f": {lines[-1][:200]}" if lines else ""

    def _end(self, status, why):
        """Ends its processes, which are a session of their own."""
        self.status, self.why = status, why
        self.kill()
        return False

    def kill(self):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def record(self):
        return {"section": self.entry["section"], "name": self.entry["name"],
                "note": self.entry.get("note", ""), "status": self.status, "why": self.why,
                "seconds": round(self.seconds, 2), "figures": self.figures}
