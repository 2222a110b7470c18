"""RMM on vmmshare's memory: cuDF, cuML and whatever else of RAPIDS.

    rmm.mr.set_current_device_resource(vmmshare.rmm.memory_resource(pool))
"""

from __future__ import annotations

from ._core import Pool

__all__ = ["memory_resource"]


def _library():
    try:
        import rmm
    except ImportError as error:
        raise ImportError("vmmshare.rmm needs rmm: pip install rmm-cu12") from error
    return rmm


def _handle(stream) -> int:
    if stream and hasattr(stream[0], "__cuda_stream__"):
        return stream[0].__cuda_stream__()[1]
    return 0  # Before RMM said which.


def memory_resource(pool: Pool):
    """An rmm.mr.CallbackMemoryResource that takes from `pool`, in the order of streams.

    Where RMM says of no stream, or of the default one, memory goes back after the work that is on
    all streams which synchronise with the legacy default stream: synchronise others first. Each call goes through Python: put RMM's own pool above it for many small pieces.
    """
    make = _library().mr.CallbackMemoryResource
    pool = pool._kept()  # close() is of the program's own handle.
    return make(
        lambda size, *stream: pool._allocate(size, _handle(stream)),
        lambda pointer, size, *stream: pool._free(pointer, _handle(stream)))
