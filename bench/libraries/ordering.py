"""Ordering: a barrier of two ranks on streams, and a signal from one to the other.

A batch is put on the stream behind a gate, so that what is timed is the GPU's and not the host's.
"""

import contextlib
import time

from driver import Gate
from times import summary

BATCH, BATCHES, CALLS, SECONDS = 50, 40, 200, 3.0
QUICK = (10, 3, 10, 1.0)


class Ordering:
    """A way to order streams: load(), prepare(), and what it has of barrier(), signal() and
    wait(), which put it on self.stream. Whoever signals counts from 1, and so does who waits."""

    has_barrier, round_trips, gated = True, True, True

    def load(self):
        raise NotImplementedError

    def prepare(self, side):
        side.use_device(side.device)
        self.stream = side.cuda.new_stream()

    def on_stream(self):
        """The library's stream is self.stream within."""
        return contextlib.nullcontext()

    def signal_once(self, side):
        """One way: rank 0 signals, rank 1 waits."""
        if side.rank == 0:
            self.signal(side)
        else:
            self.wait(side)

    def there_and_back(self, side):
        for sender in (0, 1):
            if side.rank == sender:
                self.signal(side)
            else:
                self.wait(side)

    # --- timing -----------------------------------------------------------------------------

    def run(self, side):
        self.prepare(side)
        side.meet()
        with self.on_stream():
            self._clock(side)
            if self.has_barrier:
                self._measure(side, "barrier", self.barrier)
                self._measure_calls(side, "barrier_call", self.barrier)
            self._measure(side, "one_way", self.signal_once)
            if self.round_trips:
                self._measure(side, "round_trip", self.there_and_back)
                self._measure_calls(side, "round_trip_call", self.there_and_back)
            self.finish(side)
            side.meet()

    def finish(self, side):
        side.cuda.finish(self.stream)

    def _clock(self, side):
        self.gate = Gate(side.cuda)
        # The host-memory driver has no times of events.
        self.by_events = side.cuda.has("cuEventElapsedTime")
        self.events = [side.cuda.new_event(), side.cuda.new_event()] if self.by_events else None

    def _warm(self, side, operation):
        for _ in range(5):
            operation(side)
        self.finish(side)
        side.meet()

    def _measure(self, side, kind, operation):
        """Seconds an operation, of each batch, on the slower rank."""
        batch, batches, _, seconds = (QUICK if side.quick
                                      else (BATCH, BATCHES, CALLS, SECONDS))
        self._warm(side, operation)
        times, until = [], time.monotonic() + seconds
        while side.agree(len(times) < batches and (not times or time.monotonic() < until)):
            times.append(self._batch(side, operation, batch) / batch)
        self._say(side, kind, times, "events" if self.by_events else "host")

    def _batch(self, side, operation, batch):
        if self.gated:
            self.gate.close(self.stream)
        operation(side)  # After which both are let go together.
        if self.by_events:
            side.cuda.record(self.events[0], self.stream)
        began = time.perf_counter()
        for _ in range(batch):
            operation(side)
        if self.by_events:
            side.cuda.record(self.events[1], self.stream)
        side.meet()
        if self.gated:
            began = time.perf_counter()
            self.gate.open()
        self.finish(side)
        took = time.perf_counter() - began
        return side.cuda.milliseconds(*self.events) / 1e3 if self.by_events else took

    def _measure_calls(self, side, kind, operation):
        """Seconds from the call until the stream has passed it, one at a time."""
        _, _, calls, seconds = QUICK if side.quick else (BATCH, BATCHES, CALLS, SECONDS)
        times, until = [], time.monotonic() + seconds
        while side.agree(len(times) < calls and (not times or time.monotonic() < until)):
            side.meet()
            began = time.perf_counter()
            operation(side)
            side.cuda.finish(self.stream)
            times.append(time.perf_counter() - began)
        self._say(side, kind, times, "host")

    @staticmethod
    def _say(side, kind, times, clock):
        side.emit(kind=kind, us=summary(side.slower(times), 1e-6), clock=clock)
