"""What the checks for a GPU print: one JSON object, and a line a check while they run."""

import json
import sys
import time
import traceback

import vmmshare as vs


def run_checks(checks, asked, after=lambda: None):
    """Runs those of `checks` that are `asked` for, all if none is, and after() behind each; returns
    the exit code. An ImportError means that a check is skipped for want of a library."""
    report = {"version": vs.__version__, "devices": [repr(d) for d in vs.devices()], "checks": {}}
    good = set(asked) <= set(checks)
    for name, check in checks.items():
        if asked and name not in asked:
            continue
        began = time.perf_counter()
        try:
            found = {"result": "passed", "figures": check()}
        except ImportError as missing:
            found = {"result": "skipped", "why": str(missing)}
        except Exception:
            good = False
            found = {"result": "FAILED", "why": traceback.format_exc()}
        report["checks"][name] = found
        print(f"{found['result']}: {name} ({time.perf_counter() - began:.1f} s)", file=sys.stderr,
              flush=True)
        after()
    print(json.dumps(report, indent=1))
    return 0 if good else 1
