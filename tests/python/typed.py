"""What a type checker must understand of the package: checked, never run."""

import pathlib
import socket

import numpy as np

import vmmshare as vs


def own() -> bytes:
    with vs.Pool(device=0, host_node=None) as pool, pool.empty((3, 4), "float16") as array:
        share: vs.Share = vs.serve(pool)
        text: str = str(share)
        address: int = array.view(3, "int8", offset=1).ptr
        print(text, address, pool.statistics())
        print(np.asarray(array).tolist(), np.sum(array))
        return array.ticket()


def theirs(text: str, ticket: bytes) -> float | None:
    remote = vs.connect(text, timeout=None, writable=True)
    if isinstance(remote, vs.RemotePool):
        fence = vs.connect_fences(text, 0, timeout=1.5).open(ticket)
        fence.wait(0, 1)
        fence.wait(1, timeout=None)
        array: vs.Array = remote.open(ticket, fence=fence, value=1)
        names: list[tuple[str, vs.Array]] = remote.open_all(memoryview(ticket))
        print(remote.open(bytearray(ticket)).shape, vs.open_array(memoryview(ticket)).shape)
        print(array.shape, names, remote.recalled()[0] + 1)
        return None
    memory: vs.Allocation = remote
    return memory.recalled_in


def first_lines(text: str, ticket: bytes) -> vs.Array:
    """What README and docs/python.md show first."""
    print(vs.connect(text, timeout=10).array((1024, 1024), "float16"))
    found = vs.connect(text, timeout=10).open(ticket)
    array = vs.Pool(device=0).empty((1024, 1024), "float16")
    print(np.from_dlpack(array).sum(), np.from_dlpack(found))
    return array


def in_a_ring(connection: socket.socket) -> int:
    with vs.RingHome(host_node=0).open(connection, nbytes=64) as writer:
        buffer = writer.acquire()
        buffer.wait(timeout=None)
        writer.publish(buffer)
        print(writer.closed)
    numbers = []
    with vs.open_ring(connection) as reader:
        for one in reader:
            numbers.append(one.number + 1)
            text: bytes = one  # type: ignore[assignment]
    return sum(numbers)


def sets(name: str) -> int:
    generation: int = vs.weights.put(name, {}, fingerprint="a", timeout=None)
    vs.weights.load(name, ["a.safetensors"], select=lambda one: one != "b", threads=2)
    half = vs.weights.Shard(0, 2, {"*.q_proj.*": 0, "*.bias": None,
                                   "*.qkv": vs.weights.Fused(0, (8, 4))})
    vs.weights.put(name, {}, shard=half)
    vs.weights.load(name, "a.safetensors", shard=half, timeout=None)
    print(half.dimension("b"), half.lengths("b", (2, 4))[0] + 1)
    with vs.weights.open(name, fingerprint="a") as weights:
        array: vs.Array = weights["b"]
        print(array.shape, weights.metadata["format"], weights.tensors()[0]["dtype"])
    print(vs.weights.list()[0], vs.weights.show(name)["tensors"])
    vs.weights.drop(name)
    return generation + vs.weights.verify(name)


def who_holds_it(pool: vs.Pool, memory: vs.Allocation, keeper: vs.Keeper) -> list[int]:
    processes = [lease["process"] for lease in pool.leases()]
    for lease in [*memory.leases(), *vs.Server().leases()]:
        processes.append(lease["process"])
    for kept in keeper.list():
        print(kept["name"], kept["bytes"])
    for kind in memory.passed_over:
        print(kind["kind"], kind["why"])
    for address, nbytes in memory.neighbours():
        print(address + nbytes)
    if memory.disclosed is not None:
        address, nbytes = memory.disclosed
        print(address + nbytes)
    print([device.uuid for device in vs.devices()], pool.statistics()["live"] + 1)
    return processes


def in_turn(memory: vs.SymmetricMemory) -> int:
    fences = vs.FenceArray(memory.array(0, 4 * vs.FENCE_BYTES, "uint8"))
    for fence in fences:
        fence.signal(1)
    return sum(fence.value for fence in fences)


def kept() -> vs.Allocation:
    with vs.Keeper(pathlib.Path("/run/keeper"), timeout=1) as keeper:
        vs.restorable(nbytes=4).restore(path=pathlib.Path("a"), offset=4, timeout=1)
        vs.Server(directory=pathlib.Path("/run"), max_sessions=8, max_leases=8)
        vs.Driver(b"/lib/libcuda.so.1")
        print(vs.broker.list(directory=pathlib.Path("/run")), vs.doctor(pathlib.Path("/a")))
        print(vs.weights.list(address=pathlib.Path("/run/keeper")))
        print(vs.keeper.list(timeout=3)[0]["name"], vs.doctor()["driver"])
        return keeper.attach("weights", writable=False)


def by_name(ptr: int) -> "int | bytes":
    with vs.broker.publish("kv/0", vs.adopt(ptr, 4096)) as published:
        published.recall(1.5)
        published.wait_returned(timeout=None)
        print(published.leases()[0]["process"], vs.broker.list()[0]["name"])
    with vs.broker.fetch(b"12", writable=True, timeout=None) as memory:
        array: vs.Array = memory.array((2, 3), "int8", 4)
        print(array.ptr - memory.ptr, memory.recalled_in)
    with vs.broker.fetch_handles("kv/0", directory="/run/a") as handles:
        handle, nbytes = handles.take()
        print(nbytes + handles.offset, handles.chunks)
        return handle
