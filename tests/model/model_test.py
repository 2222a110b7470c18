"""Checks a model of a protocol with Spin: as it is, or with a step taken away.

usage: model_test.py MODEL [--last-first] [BUG] [NAME=VALUE ...]

Without BUG every state is visited and none may be wrong. With one, Spin must
find a wrong state: if it does not, the model would not see that mistake. With
--last-first it tries of each choice the last one first, which leads to a wrong
state sooner in some models; all states are the same in any order.
NAME=VALUE is a bound of the model's, such as ITEMS=4. So is each word of
VMMSHARE_MODEL_BOUNDS in the environment. VMMSHARE_MODEL_MEGABYTES is how much
memory a search may take.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# So that ctest says "skipped", not "passed".
SKIPPED = 77
DEEPEST = 1_000_000
MEGABYTES = int(os.environ.get("VMMSHARE_MODEL_MEGABYTES", "2000"))


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def must(folder, *command):
    code, output = run(folder, *command)
    if code != 0:
        sys.exit(f"{' '.join(command)}: exit status {code}\n{output}")


def main(model, *arguments):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if shutil.which("spin") is None or compiler is None:
        print("skipped: Spin and a C compiler are needed (package spin)")
        return SKIPPED
    bounds = os.environ.get("VMMSHARE_MODEL_BOUNDS", "").split()
    last_first = "--last-first" in arguments
    arguments = [argument for argument in arguments if argument != "--last-first"]
    bounds += [argument for argument in arguments if "=" in argument]
    bugs = [argument for argument in arguments if "=" not in argument]
    text = pathlib.Path(model).read_text(encoding="utf-8")
    for name in bugs + [bound.partition("=")[0] for bound in bounds]:
        if not re.search(rf"#ifn?def {name}\b", text):
            sys.exit(f"{model} knows no {name}")
    with tempfile.TemporaryDirectory() as folder:
        defines = [f"-D{name}" for name in bounds + bugs]
        must(folder, "spin", "-a", *defines, str(pathlib.Path(model).resolve()))
        # What is wrong is found sooner than an optimized search is compiled.
        search = ["-O0", *(["-DT_REVERSE"] if last_first else [])] if bugs else ["-O2"]
        must(folder, compiler, "-w", *search, "-DSAFETY", "-DCOLLAPSE",
             f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c")
        _, output = run(folder, "./pan", f"-m{DEEPEST}")
    print(output)
    found = re.search(r"errors: (\d+)", output)
    if found is None:
        sys.exit("the search did not end")
    if bugs:
        if int(found.group(1)) == 0:
            sys.exit(f"{bugs[0]} was not found")
        return 0
    if int(found.group(1)) != 0:
        sys.exit("the protocol is wrong")
    for sign in ("Search not completed", "search depth too small"):
        if sign in output:
            sys.exit(f"not all states were visited: {sign}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
