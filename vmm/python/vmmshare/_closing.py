"""`with`, for what is closed."""

from __future__ import annotations

import typing

_Self = typing.TypeVar("_Self", bound="Closing")


class Closing:
    """A class that has close(), for who leaves a `with` block of it."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
