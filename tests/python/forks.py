"""Work in forked children."""

import os
import signal
import time


def in_a_child(work):
    """Its exit code; one that hangs is killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.0005)
    return os.waitstatus_to_exitcode(ended[1])
