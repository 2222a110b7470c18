"""vmmshare.doctor()."""

from __future__ import annotations

import typing

from . import _core
from ._paths import Path


class DoctorReport(typing.Dict[str, typing.Any]):
    """What `vmmshare doctor --json` prints, as a dict; str() of it is what `vmmshare doctor` does."""

    def __init__(self, fields: dict[str, typing.Any], text: str):
        super().__init__(fields)
        self._text = text

    def __str__(self) -> str:
        return self._text


def doctor(driver: Path = "") -> DoctorReport:
    """What can be shared on this machine, and why the rest cannot: print() it to read it.

    driver: the path of one; the system's if empty. One that does not load is in the report,
    and raises nothing.
    """
    import json

    fields, text = _core._doctor(driver)
    return DoctorReport(json.loads(fields), text)
