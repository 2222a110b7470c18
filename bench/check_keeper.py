"""Runs bench_keeper on a keeper that runs already, and looks at what it leaves there.

    check_keeper.py PROGRAM TOOL

Nothing, whether it measured, failed or was asked to end. By itself it takes at most half
of what is free.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid


def check(holds, what):
    if not holds:
        sys.exit(f"check_keeper.py: {what}")


def kept(tool, address):
    """What the keeper keeps; nothing is ""."""
    listed = subprocess.run([tool, "keep", "--list", f"--address={address}"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    return "" if listed.startswith("nothing is kept\n") else listed


def nothing_is_kept(tool, address):
    listed = kept(tool, address)
    check(not listed, f"it left in the keeper: {listed}")


def main(program, tool):
    # Devices of its own: what runs beside this takes memory too.
    os.environ["VMMSHARE_HOST_INSTANCE"] = f"bench-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="vmmshare-bench-") as folder:
        address = str(pathlib.Path(folder) / "keeper")
        command = [program, "--driver=host", f"--address={address}"]
        # Not a service, should this be part of one.
        env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")}
        with subprocess.Popen([tool, "keep", f"--address={address}"], stdout=subprocess.PIPE,
                              text=True, env=env) as keeper:
            try:
                check(keeper.stdout.readline() == address + "\n", "the keeper does not run")
                run = subprocess.run([*command, "--rounds=2"], check=False)
                check(run.returncode == 0, f"it ended with {run.returncode}")
                nothing_is_kept(tool, address)

                # Of the third round.
                env = {**os.environ, "VMMSHARE_HOST_FAIL": "cuMemcpyDtoH:3:LAUNCH_FAILED"}
                run = subprocess.run([*command, "--rounds=5"], check=False, env=env)
                check(run.returncode == 1, f"it failed, and ended with {run.returncode}")
                nothing_is_kept(tool, address)

                with subprocess.Popen([*command, "--rounds=1000000000"], stdout=subprocess.PIPE,
                                      text=True) as run:
                    try:
                        while not kept(tool, address):
                            check(run.poll() is None, f"it ended with {run.returncode}")
                        run.send_signal(signal.SIGTERM)
                        run.communicate(timeout=60)
                    finally:
                        run.kill()
                check(run.returncode == 1, f"asked to end, it ended with {run.returncode}")
                nothing_is_kept(tool, address)
            finally:
                keeper.kill()

    env = {**os.environ, "VMMSHARE_HOST_MEMORY": "50M", "VMMSHARE_HOST_INSTANCE": f"bench-{uuid.uuid4().hex[:12]}"}
    run = subprocess.run([program, "--driver=host", "--rounds=2"], check=False, env=env, capture_output=True, text=True)
    check("attach to 16.0 MiB kept in 8 chunks" in run.stdout, f"of 50 MiB it kept: {run.stdout}{run.stderr}")


if __name__ == "__main__":
    main(*sys.argv[1:])
