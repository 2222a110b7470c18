"""What vmmshare raises. docs/errors.md has the codes and what to do about each."""

from __future__ import annotations


class VmmshareError(Exception):
    """Base of all.

    code: "NOT_FOUND" and so on. remedy: what to do. cuda_result: the CUresult of the
    driver call that failed, or None.
    """

    code = "UNKNOWN"
    remedy: str
    cuda_result: int | None

    def __init__(self, message: str, remedy: str = "", cuda_result: int | None = None):
        super().__init__(message)
        self.remedy = remedy
        self.cuda_result = cuda_result

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        return message if self.remedy in message else f"{message}. {self.remedy}"

    def __reduce__(self):
        return (type(self), (self.args[0], self.remedy, self.cuda_result))


class Cancelled(VmmshareError):
    code = "CANCELLED"


class InvalidArgument(VmmshareError, ValueError):
    code = "INVALID_ARGUMENT"


class DeadlineExceeded(VmmshareError, TimeoutError):
    code = "DEADLINE_EXCEEDED"


class NotFound(VmmshareError, LookupError):
    code = "NOT_FOUND"


class AlreadyExists(VmmshareError):
    code = "ALREADY_EXISTS"


class PermissionDenied(VmmshareError, PermissionError):
    code = "PERMISSION_DENIED"


class ResourceExhausted(VmmshareError, MemoryError):
    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(VmmshareError, RuntimeError):
    code = "FAILED_PRECONDITION"


class Aborted(VmmshareError):
    code = "ABORTED"


class OutOfRange(VmmshareError, IndexError):
    code = "OUT_OF_RANGE"


class Unimplemented(VmmshareError, NotImplementedError):
    code = "UNIMPLEMENTED"


class Internal(VmmshareError):
    code = "INTERNAL"


class Unavailable(VmmshareError, ConnectionError):
    code = "UNAVAILABLE"


class DataLoss(VmmshareError):
    code = "DATA_LOSS"


_BY_CODE = {kind.code: kind for kind in VmmshareError.__subclasses__()}


def _from_status(code: str, message: str, remedy: str,
                 cuda_result: int | None) -> VmmshareError:
    return _BY_CODE.get(code, VmmshareError)(message, remedy, cuda_result)
