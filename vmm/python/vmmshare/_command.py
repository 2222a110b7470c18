"""The command `vmmshare`, as `vmmshare keep` and `vmmshare doctor`.

All of it is the tool's of C++ but `vmmshare weights put`, which reads files here.
"""

import os
import pathlib
import signal
import sys

from . import _core


def main() -> int:
    if sys.argv[1:3] == ["weights", "put"]:
        from . import _weights_command
        return _weights_command.main(sys.argv[3:])
    # The keeper ends itself cleanly; Python's handler would wait for it to return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # For --driver=host the tool looks beside its own file, which is Python's here. A system's
    # package has the driver there.
    here = pathlib.Path(__file__).resolve().parent / "lib" / "libvmmshare_hostdriver.so"
    if not os.environ.get("VMMSHARE_HOSTDRIVER") and here.exists():
        os.environ["VMMSHARE_HOSTDRIVER"] = str(here)
    return _core.main([os.fsencode(word) for word in sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
