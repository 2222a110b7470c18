"""Importing this is an ImportError in a sub-interpreter."""


def _number() -> int:
    """The interpreter's number: 0 for the main one, and where it cannot be asked for."""
    try:
        import ctypes
        # Prototypes of its own: the functions that pythonapi has are everybody's.
        current = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))
        number = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(
            ("PyInterpreterState_GetID", ctypes.pythonapi))
        return int(number(current()))
    except Exception:  # A Python without ctypes, say.
        return 0


# The extension module's types are those of the interpreter that loaded it last: in all others it
# makes no object any more.
if _number() != 0:
    raise ImportError("vmmshare can be used by a process's main interpreter alone; this is another "
                      "one. Use it in a process, or a thread, of the main one's.")
