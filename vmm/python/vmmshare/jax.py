"""JAX arrays of vmmshare's memory."""

from __future__ import annotations

from ._core import Array

__all__ = ["array"]


def _library():
    try:
        import jax.dlpack
    except ImportError as error:
        raise ImportError("vmmshare.jax needs jax: pip install 'jax[cuda12]'") from error
    return jax


class _ReadOnly:
    """An Array for a consumer that never writes, which need not be told so."""

    def __init__(self, of: Array):
        self._of = of

    def __dlpack__(self, *, stream=None, **_):
        return self._of._dlpack_unflagged(stream)

    def __dlpack_device__(self):
        return self._of.__dlpack_device__()


def array(of: Array):
    """The jax.Array of an Array, which it keeps. JAX arrays do not change: nobody may write
    the memory while it exists.

    Donate it to no computation: JAX writes the result into its memory. JAX 0.11.2 lets go of it
    when the work that reads it has ended; docs/python.md says what of other versions.
    """
    return _library().dlpack.from_dlpack(_ReadOnly(of))
