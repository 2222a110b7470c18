"""Handing over tensors: from those that lie there until the other process has read a word of the
first and of the last. Both processes are on one GPU. This file has vmmshare's ways."""

import time

from times import summary

KIB, MIB = 1 << 10, 1 << 20
# Tensors, bytes of each, rounds.
SIZES = [(200, 64 * KIB, 60), (2_000, 64 * KIB, 20), (20_000, 64 * KIB, 6), (2_000, MIB, 12)]
QUICK = [(200, 64 * KIB, 5), (2_000, 64 * KIB, 3)]


class Tensors:
    """A way of handing over. The owner's part: start(), make(), share(), drop(), reserved(); the
    receiver's: connect(), open(), word(), forget()."""

    def load(self):
        raise NotImplementedError

    def start(self, side):
        """What the receiver needs beforehand, once."""

    def connect(self, side, greeting):
        """Takes that."""

    def make(self, side, count, nbytes):
        """Makes tensors; every word of number i is i."""
        raise NotImplementedError

    def spoil(self, side, nbytes):
        """Overwrites the last tensor: --corrupt, which every row must notice."""
        side.cuda.fill(self.address_of_last(), 0xBAD, nbytes)
        side.cuda.synchronize()

    def forget(self, side):
        """Waits for what the GPU still does to opened tensors, which are gone."""
        side.cuda.synchronize()

    def reserved(self, side):
        """Bytes that the owner's allocator holds, or None."""

    # --- both ends --------------------------------------------------------------------------

    def run(self, side):
        side.use_device(side.options["devices"][0])
        sizes = QUICK if side.quick else SIZES
        if side.rank == 1:
            return self._receive(side, sizes)
        side.pipe.send(self.start(side))
        side.meet()
        for count, nbytes, rounds in sizes:
            self.make(side, count, nbytes)
            if side.options["corrupt"]:
                self.spoil(side, nbytes)
            times = [self._send(side, count) for _ in range(rounds + 1)]
            whole, opened = zip(*times)
            side.emit(count=count, nbytes=nbytes, first_ms=whole[0] * 1e3,
                      ms=summary(whole[1:], 1e-3), open_ms=summary(opened[1:], 1e-3),
                      reserved=self.reserved(side))
            self.drop(side)

    def _send(self, side, count):
        assert side.pipe.recv() == "ready"
        began = time.perf_counter()
        side.pipe.send(self.share(side))
        first, last, opening = side.pipe.recv()
        took = time.perf_counter() - began
        if (first, last) != (0, count - 1):
            raise ValueError(f"the receiver read {first} and {last} in the first and the last of "
                             f"{count} tensors; expected 0 and {count - 1}")
        side.pipe.send("seen")
        return took, opening

    def _receive(self, side, sizes):
        self.connect(side, side.pipe.recv())
        side.meet()
        for count, _, rounds in sizes:
            for _ in range(rounds + 1):
                side.pipe.send("ready")
                data = side.pipe.recv()
                began = time.perf_counter()
                opened = self.open(side, data)
                opening = time.perf_counter() - began
                side.pipe.send((self.word(side, opened, 0), self.word(side, opened, count - 1),
                                opening))
                assert side.pipe.recv() == "seen"
                del data, opened
                self.forget(side)


class Arrays(Tensors):
    """vmmshare's own arrays, without another library."""

    def load(self):
        import vmmshare
        self.vs = vmmshare

    def start(self, side):
        self.pool = self.vs.Pool(side.device)
        self.share_of_pool = self.vs.serve(self.pool)
        return str(self.share_of_pool)

    def connect(self, side, greeting):
        self.remote = self.vs.connect(greeting, timeout=20)

    def make(self, side, count, nbytes):
        self.arrays = {str(i): self.pool.empty(nbytes // 4, "int32") for i in range(count)}
        for number, array in enumerate(self.arrays.values()):
            side.cuda.fill(array.ptr, number, nbytes)
        side.cuda.synchronize()

    def address_of_last(self):
        return list(self.arrays.values())[-1].ptr

    def share(self, side):
        return self.vs.share_all(self.arrays)

    def open(self, side, data):
        return self.remote.open_all(data)

    def word(self, side, opened, number):
        return side.cuda.word(opened[number][1].ptr)

    def reserved(self, side):
        return self.pool.statistics()["reserved"]

    def drop(self, side):
        self.arrays = None
        self.pool.wait_returned(timeout=20)


class TorchTensors(Tensors):
    """PyTorch's tensors in a pool of vmmshare's."""

    def load(self):
        import torch
        import vmmshare
        import vmmshare.torch
        self.torch, self.vs, self.ours = torch, vmmshare, vmmshare.torch

    def start(self, side):
        self.torch.cuda.set_device(side.device)
        self.pool = self.vs.Pool(side.device)
        self.share_of_pool = self.vs.serve(self.pool)
        return str(self.share_of_pool)

    def connect(self, side, greeting):
        self.torch.cuda.set_device(side.device)
        self.torch.zeros(1, device="cuda")
        self.remote = self.vs.connect(greeting, timeout=20)

    def make(self, side, count, nbytes):
        with self.ours.use_pool(self.pool):
            self.tensors = {str(i): self.torch.full((nbytes // 4,), i, dtype=self.torch.int32,
                                                    device="cuda") for i in range(count)}
        self.torch.cuda.synchronize()

    def address_of_last(self):
        return list(self.tensors.values())[-1].data_ptr()

    def share(self, side):
        return self.ours.share_all(self.tensors)

    def open(self, side, data):
        return list(self.ours.open_all(self.remote, data).values())

    def word(self, side, opened, number):
        return int(opened[number][0])

    def reserved(self, side):
        return self.pool.statistics()["reserved"]

    def drop(self, side):
        self.tensors = None
        self.torch.cuda.synchronize()
