"""The command `vmmshare`, as `vmmshare keep` and `vmmshare doctor`."""

import signal
import sys

from . import _core


def main() -> int:
    # The keeper ends itself cleanly; Python's handler would wait for it to return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
