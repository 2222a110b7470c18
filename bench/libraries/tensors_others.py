"""Handing over tensors as people do without vmmshare."""

import multiprocessing.reduction
import os

from tensors import Tensors

GIB = 1 << 30


class TorchMultiprocessing(Tensors):
    """PyTorch's own allocator, and pickling as torch.multiprocessing's queues and pipes do it: a
    legacy IPC handle of the segment and an offset for each tensor, opened segments cached."""

    def load(self):
        import torch
        import torch.multiprocessing  # Registers how tensors are pickled.
        self.torch = torch

    def start(self, side):
        self.torch.cuda.set_device(side.device)

    def connect(self, side, greeting):
        self.torch.cuda.set_device(side.device)
        self.torch.zeros(1, device="cuda")

    def make(self, side, count, nbytes):
        self.tensors = [self.torch.full((nbytes // 4,), i, dtype=self.torch.int32, device="cuda")
                        for i in range(count)]
        self.torch.cuda.synchronize()

    def address_of_last(self):
        return self.tensors[-1].data_ptr()

    def share(self, side):
        return self.tensors

    def open(self, side, data):
        return list(data)  # They were opened as they were received.

    def word(self, side, opened, number):
        return int(opened[number][0])

    def reserved(self, side):
        return self.torch.cuda.memory_reserved()

    def drop(self, side):
        self.tensors = None
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


class CudaCore(Tensors):
    """cuda.core's memory pool with IPC: the pool's descriptor once, a descriptor for each buffer,
    each made a tensor by DLPack."""

    def load(self):
        import torch
        from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions
        self.torch, self.Buffer, self.Device = torch, Buffer, Device
        self.Resource, self.Options = DeviceMemoryResource, DeviceMemoryResourceOptions

    def _use(self, side):
        device = self.Device(side.device)
        device.set_current()
        self.torch.cuda.set_device(side.device)
        self.torch.zeros(1, device="cuda")
        self.stream = device.create_stream()
        return device

    def start(self, side):
        device = self._use(side)
        self.pool = self.Resource(device, self.Options(ipc_enabled=True, max_size=8 * GIB))
        side.pipe.send(os.getpid())
        other = side.pipe.recv()
        multiprocessing.reduction.send_handle(side.pipe, int(self.pool.allocation_handle), other)

    def connect(self, side, greeting):
        device = self._use(side)
        # The greeting is the owner's process id, and comes before the pool itself.
        side.pipe.send(os.getpid())
        descriptor = multiprocessing.reduction.recv_handle(side.pipe)
        self.pool = self.Resource.from_allocation_handle(device, descriptor)
        os.close(descriptor)
        assert side.pipe.recv() is None

    def make(self, side, count, nbytes):
        self.buffers = [self.pool.allocate(nbytes, stream=self.stream) for _ in range(count)]
        self.stream.sync()
        for number, buffer in enumerate(self.buffers):
            side.cuda.fill(int(buffer.handle), number, nbytes)
        side.cuda.synchronize()

    def address_of_last(self):
        return int(self.buffers[-1].handle)

    def share(self, side):
        return [buffer.ipc_descriptor for buffer in self.buffers]

    def open(self, side, data):
        return [self.torch.from_dlpack(
            self.Buffer.from_ipc_descriptor(self.pool, one, stream=self.stream)) for one in data]

    def word(self, side, opened, number):
        return int(opened[number][:4].view(self.torch.int32)[0])

    def forget(self, side):
        self.stream.sync()
        side.cuda.synchronize()

    def reserved(self, side):
        return self.pool.attributes.reserved_mem_current

    def drop(self, side):
        for buffer in self.buffers:
            buffer.close(self.stream)
        self.buffers = None
        self.stream.sync()


class Arena(Tensors):
    """One cudaMalloc, its legacy IPC handle sent and opened once, then offsets; written by hand.
    The receiver has addresses, and makes no tensors."""

    def load(self):
        self.opened = {}

    def make(self, side, count, nbytes):
        self.size = count * nbytes
        self.base = side.cuda.allocate(self.size)
        self.addresses = [self.base + i * nbytes for i in range(count)]
        self.nbytes = nbytes
        self.filled(side)

    def filled(self, side):
        for number, address in enumerate(self.addresses):
            side.cuda.fill(address, number, self.nbytes)
        side.cuda.synchronize()
        self.chunks = {}
        first = size = 0
        self.places = []
        for address in self.addresses:
            if not first <= address < first + size:
                first, size = side.cuda.allocation_of(address)
                self.chunks.setdefault(first, (len(self.chunks), size,
                                               side.cuda.ipc_handle(first)))
            self.places.append((self.chunks[first][0], address - first))

    def address_of_last(self):
        return self.addresses[-1]

    def share(self, side):
        return list(self.chunks.values()), self.places, self.nbytes

    def open(self, side, data):
        chunks, places, nbytes = data
        bases = {number: self._base(side, handle, size) for number, size, handle in chunks}
        return [self.view(bases[number], offset, nbytes) for number, offset in places]

    def _base(self, side, handle, size):
        if handle not in self.opened:
            address = side.cuda.open_ipc_handle(handle)
            self.opened[handle] = address, self.whole(side, address, size)
        return self.opened[handle][1]

    def whole(self, side, address, size):
        return address

    def view(self, base, offset, nbytes):
        return base + offset

    def word(self, side, opened, number):
        return side.cuda.word(opened[number])

    def reserved(self, side):
        return sum(size for _, size, _ in self.chunks.values())

    def drop(self, side):
        # The receiver keeps what it opened: by hand, nobody tells it. So the memory stays too.
        self.addresses = self.places = None


class _Interface:
    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size // 4,), "typestr": "<i4",
                                         "data": (address, False), "version": 3}


class TensorArena(Arena):
    """The same, and the receiver has tensors: slices of one that is the whole arena."""

    def load(self):
        super().load()
        import torch
        self.torch = torch

    def connect(self, side, greeting):
        self.torch.cuda.set_device(side.device)
        self.torch.zeros(1, device="cuda")

    def whole(self, side, address, size):
        return self.torch.as_tensor(_Interface(address, size), device="cuda")

    def view(self, base, offset, nbytes):
        return base.narrow(0, offset // 4, nbytes // 4)

    def word(self, side, opened, number):
        return int(opened[number][0])


class RmmPool(TensorArena):
    """RMM's pool over cudaMalloc. RMM has no IPC: legacy IPC handles of the pool's chunks, and
    offsets, as above."""

    def load(self):
        super().load()
        import rmm
        self.rmm = rmm

    def start(self, side):
        self.pool = self.rmm.mr.PoolMemoryResource(self.rmm.mr.CudaMemoryResource(),
                                                   initial_pool_size=3 * GIB)
        self.rmm.mr.set_current_device_resource(self.pool)

    def make(self, side, count, nbytes):
        self.buffers = [self.rmm.DeviceBuffer(size=nbytes) for _ in range(count)]
        self.addresses, self.nbytes = [int(one.ptr) for one in self.buffers], nbytes
        side.cuda.synchronize()
        self.filled(side)

    def drop(self, side):
        super().drop(side)
        self.buffers = None
        side.cuda.synchronize()
