"""Rows that go wrong, for tests: what the table says of each must be true."""

import os
import time


class Planted:
    def load(self):
        pass

    def run(self, side):
        side.emit(kind="start", start_ms=1.0, first_ms=1.0, both_ms=2.0)
        side.meet()
        self.go_wrong(side)


class Fail(Planted):
    def go_wrong(self, side):
        if side.rank == 0:
            raise ValueError("planted")


class Hang(Planted):
    def go_wrong(self, side):
        time.sleep(3600)


class Crash(Planted):
    def go_wrong(self, side):
        if side.rank == 0:
            os.abort()


class Orphan(Planted):
    """The peer ends, and the first waits for it."""

    def go_wrong(self, side):
        if side.rank == 1:
            os._exit(7)
        side.pipe.recv()


class Environment(Planted):
    """Says what of multicast it would run with."""

    def go_wrong(self, side):
        if side.rank == 1:
            raise ValueError(" ".join(f"{name}={os.environ.get(name)}" for name in (
                "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")))
        side.pipe.recv()


class Missing(Planted):
    def load(self):
        import a_library_that_nobody_has  # noqa: F401


class Slow(Planted):
    """Never has its libraries."""

    def load(self):
        time.sleep(3600)
