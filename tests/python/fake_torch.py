"""A module that looks like PyTorch, as far as vmmshare.torch looks, on NumPy.

Its tensors are of memory of the host. FastTensor has DLPack's exchange API, as PyTorch has from
2.10 on; Tensor has not, as before.
"""

import ctypes
import types

import numpy as np

# DLPack's code and bits.
_CODES = {"bool": (6, 8), "uint8": (1, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
          "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16), "float8_e4m3fn": (10, 8),
          "float8_e5m2": (12, 8), "float8_e8m0fnu": (14, 8), "float8_e4m3fnuz": (11, 8),
          "float8_e5m2fnuz": (13, 8)}
_CARRIED = {"bfloat16": "uint16", **{name: "uint8" for name in _CODES if "float8" in name}}


class DType(str):
    """Prints as PyTorch's do."""

    def __str__(self):
        return f"torch.{self[:]}"


def numpy_dtype(dtype):
    return np.dtype(_CARRIED.get(str.__str__(dtype), str.__str__(dtype)))


class Tensor:
    def __init__(self, array, dtype=None):
        self.array = array
        self.dtype = DType(str.__str__(dtype or array.dtype.name))
        self.device = types.SimpleNamespace(type="cuda" if array.size else "cpu")
        self.requires_grad, self.is_leaf = False, True
        self.lazy = ""  # "conj" or "neg": what it has is not what its memory holds.

    shape = property(lambda self: self.array.shape)
    is_cuda = property(lambda self: self.device.type == "cuda")

    def contiguous(self):
        return self.of_the_host(np.ascontiguousarray(self.array), self.dtype)

    @classmethod
    def of_the_host(cls, array, dtype=None):
        made = cls(array, dtype)
        made.device = types.SimpleNamespace(type="cpu", index=0)
        return made

    def __getitem__(self, index):
        return self.of_the_host(self.array[index], self.dtype)

    def get_device(self):
        return 0 if self.is_cuda else -1

    def data_ptr(self):
        return self.array.ctypes.data if self.array.size else 0

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def element_size(self):
        return self.array.itemsize

    is_meta = False

    def detach(self):
        return self

    def is_conj(self):
        return self.lazy == "conj"

    def is_neg(self):
        return self.lazy == "neg"

    def view(self, dtype):
        return type(self)(self.array.view(numpy_dtype(dtype)), dtype)


class HostTensor(Tensor):
    """Where all tensors are of the host, as of a PyTorch without a GPU."""

    def __init__(self, array, dtype=None):
        super().__init__(array, dtype)
        self.device = types.SimpleNamespace(type="cpu", index=0)

    def copy_(self, other):
        self.array[...] = other.array
        return self


class _Meta:
    type, index = "meta", None

    def __str__(self):
        return self.type


class MetaTensor(HostTensor):
    """One without memory, in a storage that may have others."""

    is_meta = True

    def __init__(self, shape, dtype, storage, offset=0):
        super().__init__(np.empty(shape, numpy_dtype(dtype)), dtype)
        self._storage, self._offset = storage, offset
        self.device = _Meta()

    def untyped_storage(self):
        return self._storage

    def storage_offset(self):
        return self._offset


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_TO = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Managed), ctypes.POINTER(ctypes.c_void_p))
_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))


class _Api(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("prev", ctypes.c_void_p),
                ("allocate", ctypes.c_void_p), ("managed_from", ctypes.c_void_p),
                ("to", _TO), ("dltensor_from", _FROM), ("stream", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_VERSIONED = ctypes.create_string_buffer(b"dltensor_versioned")
_EXCHANGE = ctypes.create_string_buffer(b"dlpack_exchange_api")


def _writable(array):
    """The same memory: PyTorch does not know of read-only memory."""
    if array.flags.writeable or array.size == 0:
        return array
    reach = sum((n - 1) * s for n, s in zip(array.shape, array.strides)) + array.itemsize
    memory = (ctypes.c_char * reach).from_address(array.ctypes.data)
    memory.kept = array
    return np.ndarray(array.shape, array.dtype, memory, strides=array.strides)


class _Holder:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0


@_TO
def _to(managed, out):
    tensor, dtype = managed[0].tensor, None
    if tensor.code == _CODES["bfloat16"][0]:
        tensor.code, dtype = 1, "bfloat16"
    array = np.from_dlpack(_Holder(_new_capsule(managed, _VERSIONED, None)))
    made = FastTensor(array, dtype)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    out[0] = id(made)
    FastTensor.conversions += 1
    return 0


@_FROM
def _from(tensor, out):
    if str.__str__(tensor.dtype) not in _CODES:
        return -1
    numbers = ctypes.c_int64 * len(tensor.shape)
    tensor.kept = numbers(*tensor.shape), numbers(*tensor.stride())
    out[0].data, out[0].ndim, out[0].lanes = tensor.data_ptr(), len(tensor.shape), 1
    out[0].code, out[0].bits = _CODES[str.__str__(tensor.dtype)]
    on_device = tensor.device.type == "cuda"
    out[0].device = (2, getattr(tensor.device, "index", 0)) if on_device else (1, 0)
    out[0].shape, out[0].strides = map(ctypes.addressof, tensor.kept)
    FastTensor.conversions += 1
    return 0


_api = _Api((1, 3), None, None, None, _to, _from, None)


class FastTensor(Tensor):
    conversions = 0
    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_api), _EXCHANGE, None)


class Stream:
    """The current one of a device, which notes in `waited` that the host waited for it."""

    cuda_stream = 1  # The legacy one.

    def __init__(self, device, waited):
        self.device, self.waited = device, waited

    def synchronize(self):
        self.waited.append(self.device)


class Parameter(FastTensor):
    def __init__(self, data, requires_grad=True):
        super().__init__(data.array, data.dtype)
        self.requires_grad = requires_grad


def modules(tensor):
    """The modules of `torch` by name; its tensors are of that class."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.__version__ = tensor, "2.8.0"
    # By which use_mem_pool() takes what one thread allocates: from PyTorch 2.8 on.
    torch._C = types.SimpleNamespace(_cuda_beginAllocateCurrentThreadToPool=None)
    waited: list = []  # The devices whose current stream the host waited for.
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, waited=waited,
                                       current_stream=lambda device: Stream(device, waited))
    torch.nn = types.SimpleNamespace(Parameter=Parameter)
    torch.from_dlpack = lambda given: tensor(
        np.from_dlpack(given) if hasattr(given, "__dlpack__")
        else _writable(np.from_dlpack(_Holder(given))))
    for name in _CODES:
        setattr(torch, name, DType(name))
    reductions = types.ModuleType("torch.multiprocessing.reductions")
    reductions.reduce_tensor = lambda tensor: (bytes.fromhex, (tensor.array.tobytes().hex(),))
    return {"torch": torch, "torch.multiprocessing": types.ModuleType("torch.multiprocessing"),
            reductions.__name__: reductions}
