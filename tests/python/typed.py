"""What a type checker must understand of the package: checked, never run."""

import vmmshare as vs


def own() -> bytes:
    with vs.Pool(device=0, host_node=None) as pool, pool.empty((3, 4), "float16") as array:
        share: vs.Share = vs.serve(pool)
        text: str = str(share)
        address: int = array.view(3, "int8", offset=1).ptr
        print(text, address, pool.statistics())
        return array.ticket()


def theirs(text: str, ticket: bytes) -> float | None:
    remote = vs.connect(text, timeout=None, writable=True)
    if isinstance(remote, vs.RemotePool):
        fence = vs.connect_fences(text, 0, timeout=1.5).open(ticket)
        fence.wait(0, 1)
        fence.wait(1, timeout=None)
        array: vs.Array = remote.open(ticket, fence=fence, value=1)
        names: list[tuple[str, vs.Array]] = remote.open_all(ticket)
        print(array.shape, names, remote.recalled()[0] + 1)
        return None
    return remote.recalled_in


def kept() -> vs.Allocation:
    with vs.Keeper(timeout=1) as keeper:
        print(vs.keeper.list(timeout=3)[0]["name"], vs.doctor()["driver"])
        return keeper.attach("weights", writable=False)
