"""Checks the model of leases with Spin: as it is, or with a step taken away.

usage: lease_model_test.py MODEL [BUG]

Without BUG every state is visited and none may be wrong. With one, Spin must
find a wrong state: if it does not, the model would not see that mistake.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# So that ctest says "skipped", not "passed".
SKIPPED = 77
DEEPEST = 1_000_000
MEGABYTES = 4096


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def must(folder, *command):
    code, output = run(folder, *command)
    if code != 0:
        sys.exit(f"{' '.join(command)}: exit status {code}\n{output}")


def main(model, bug=None):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if shutil.which("spin") is None or compiler is None:
        print("skipped: Spin and a C compiler are needed (package spin)")
        return SKIPPED
    text = pathlib.Path(model).read_text(encoding="utf-8")
    if bug is not None and not re.search(rf"#ifn?def {bug}\b", text):
        sys.exit(f"{model} knows no {bug}")
    with tempfile.TemporaryDirectory() as folder:
        # One use each keeps it to some ten million states.
        defines = ["-DUSES=1"] + ([f"-D{bug}"] if bug else [])
        must(folder, "spin", "-a", *defines, str(pathlib.Path(model).resolve()))
        must(folder, compiler, "-w", "-O2", "-DSAFETY", "-DCOLLAPSE",
             f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c")
        _, output = run(folder, "./pan", f"-m{DEEPEST}")
    print(output)
    found = re.search(r"errors: (\d+)", output)
    if found is None:
        sys.exit("the search did not end")
    if bug is not None:
        if int(found.group(1)) == 0:
            sys.exit(f"{bug} was not found")
        return 0
    for sign in ("Search not completed", "search depth too small"):
        if sign in output:
            sys.exit(f"not all states were visited: {sign}")
    if int(found.group(1)) != 0:
        sys.exit("the protocol is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
