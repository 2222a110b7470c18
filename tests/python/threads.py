"""Work on other threads, as ranks of a job that are threads."""

import threading


def on_a_thread(cuda, work):
    """Runs work() on a thread with the same context; join() gives what it returned."""
    result = []

    def run():
        assert cuda.cuCtxSetCurrent(cuda.context) == 0
        result.append(work())

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(60)
        assert result, "the thread failed"
        return result[0]
    return join
