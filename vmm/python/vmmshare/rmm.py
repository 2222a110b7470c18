"""RMM on vmmshare's memory: cuDF, cuML and whatever else of RAPIDS.

    rmm.mr.set_current_device_resource(vmmshare.rmm.memory_resource(pool))
"""

from __future__ import annotations

from ._core import Pool

__all__ = ["memory_resource"]


_ALIGNMENT = 256  # Bytes.


def _library():
    try:
        import rmm
    except ImportError as error:
        raise ImportError("vmmshare.rmm needs rmm: pip install rmm-cu12") from error
    return rmm


def _handle(stream) -> int:
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    return 0  # RMM said none, or one that does not say its handle.


def memory_resource(pool: Pool):
    """An rmm.mr.CallbackMemoryResource that takes from `pool`, in the order of streams.

    Where RMM says of no stream, or of the default one, memory goes back after the work that is on
    all streams which synchronise with the legacy default stream: synchronise others first. That is
    so of every stream before RMM 25.12, whose streams do not say their handles. Each call goes
    through Python: put RMM's own pool above it for many small pieces.
    """
    make = _library().mr.CallbackMemoryResource
    pool = pool._kept()  # close() is of the program's own handle.

    # RMM calls both with (size, stream) and (pointer, size, stream), before it knew of streams
    # without them, and newer ones as (stream, size, alignment), (stream, pointer, size, alignment).
    def allocate(*given):
        if isinstance(given[0], int):
            return pool._allocate(given[0], _handle(*given[1:] or (None,)))
        stream, size, alignment = given
        if alignment > _ALIGNMENT:
            raise ValueError(f"RMM asked for {size} bytes at a multiple of {alignment}; a pool's "
                             f"blocks are at multiples of {_ALIGNMENT}")
        return pool._allocate(size, _handle(stream))

    def deallocate(*given):
        if isinstance(given[0], int):
            pool._free(given[0], _handle(*given[2:] or (None,)))
        else:
            pool._free(given[1], _handle(given[0]))

    return make(allocate, deallocate)
