"""`with`, for what is closed."""

from __future__ import annotations

import typing

from .errors import FailedPrecondition

_Self = typing.TypeVar("_Self", bound="Closing")


def check_open(handle: typing.Any) -> None:
    if handle.closed:
        raise FailedPrecondition("the object was closed",
                                 "Use it before close(), or before its `with` block ends.")


class Closing:
    """A class that has close() and `closed`, for who leaves a `with` block of it."""

    def close(self) -> None:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        check_open(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
