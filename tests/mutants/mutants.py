#!/usr/bin/env python3
"""Spoils sources in small ways, one at a time, and runs the tests that must notice.

usage: mutants.py BUILD [--sample N] [--seed N] [--only WORD] [--seconds N] [--report FILE] [--goal N]

BUILD is a build folder of this repository with the programs of FILES in it. Nothing in it and no
source is changed: a spoilt copy is compiled as the original is, and linked before the libraries.
A mutant is killed when a program that must notice ends with a failure or not in time. What
explained.txt says of a survivor makes it equivalent: it does what the original does. The exit
status is 1 when fewer than --goal of 100 were killed.
"""

import argparse
import difflib
import json
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

VALUES = "tests/unit/vmm_values_test"
PROTOCOL = "tests/unit/vmm_protocol_test"
MANIFEST = "tests/unit/vmm_weights_manifest_test"
TABLE = "tests/unit/vmm_share_table_test"


def fuzzed(what):
    return "tests/fuzz/fuzz_corpus_test", f"FuzzCorpus.{what}"


# What is spoilt, and what must notice: programs with a filter for their tests.
FILES = {
    "platform/ipc/frame.cc": [("tests/unit/platform_frame_test", "*"), fuzzed("Messages*")],
    "vmm/share/ticket.cc": [(VALUES, "*"), fuzzed("Tickets*"),
                            ("tests/gpu/vmm_gpu_test", "ImportTest.*:TicketWithout*:ManyChunks*"),
                            ("tests/ipc/fabric_nodes_test", "*")],
    "vmm/share/internal/addressed_string.cc": [(VALUES, "*"), fuzzed("*Strings*"),
                                               ("tests/death/vmm_death_test", "*ATicketString*")],
    "vmm/share/fabric_ticket.cc": [(VALUES, "*"), fuzzed("FabricTickets*"),
                                   ("tests/gpu/vmm_gpu_test", "ImportTest.*Fabric*"),
                                   ("tests/ipc/fabric_nodes_test", "*")],
    "vmm/share/internal/protocol.cc": [(PROTOCOL, "*"), fuzzed("Messages*"),
                                       ("tests/death/vmm_death_test", "*Return*:*ARequest*")],
    "vmm/pool/pool_ticket.cc": [(VALUES, "*"), fuzzed("PoolTickets*")],
    "vmm/pool/internal/share_protocol.cc": [(PROTOCOL, "*"), fuzzed("PoolMessages*")],
    "vmm/sync/fence_ticket.cc": [(VALUES, "*"), fuzzed("FenceTickets*")],
    "vmm/sync/internal/fence_words.cc": [(VALUES, "*")],
    "vmm/queue/internal/ring_item.cc": [(VALUES, "*"), fuzzed("RingItems*")],
    "vmm/weights/manifest.cc": [(MANIFEST, "*"), fuzzed("Manifests*")],
    "vmm/weights/dtype.cc": [(MANIFEST, "*"), fuzzed("Manifests*")],
    "vmm/weights/internal/extent.cc": [(MANIFEST, "*"), fuzzed("Manifests*")],
    "vmm/weights/manifest_check.cc": [(MANIFEST, "*"), fuzzed("Manifests*")],
    "vmm/weights/safetensors.cc": [(MANIFEST, "*"), fuzzed("HeadersOf*")],
    "vmm/weights/internal/safetensors_json.cc": [(MANIFEST, "*"), fuzzed("HeadersOf*")],
    "vmm/pool/internal/offset_heap.cc": [("tests/unit/offset_heap_test", "*"),
                                         ("tests/death/offset_heap_death_test", "*"),
                                         fuzzed("TheOffsetHeap*"),
                                         ("tests/unit/stream_heap_test", "*")],
    "vmm/pool/internal/share_table.cc": [(TABLE, "-*Race*"), (TABLE, "*Race*"),
                                         fuzzed("ShareTables*:*ByPoolTicket*")],
    "vmm/pool/internal/shared_table_view.cc": [(TABLE, "-*Race*"), (TABLE, "*Race*"),
                                               fuzzed("ShareTables*:*ByPoolTicket*"),
                                               ("tests/sweep/pool_sweep_test", "*ServeAndSubscribe")],
    "vmm/share/internal/lease_book.cc": [
        ("tests/ipc/vmm_ipc_test", "LeaseBookTest.*"),
        ("tests/ipc/vmm_ipc_test", "EndpointLeases.*")],
}
# Enough to see a mistake, and few enough for many mutants.
FEW = {"VMMSHARE_MODEL_OPERATIONS": "20000", "VMMSHARE_STALE_TICKETS": "20000",
       "VMMSHARE_SWEEP_PAIRS": "0"}

SWAPS = [(" == ", " != "), (" != ", " == "), (" < ", " <= "), (" <= ", " < "), (" > ", " >= "),
         (" >= ", " > "), (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "),
         (" += ", " -= "), (" -= ", " += "), (" << ", " >> "), (" >> ", " << "), (" & ", " | "),
         ("return true;", "return false;"), ("return false;", "return true;")]
NUMBER = re.compile(r"(?<![\w.'])(0x[0-9a-f]+|\d+)(?=u?[\s;,)\]}])")
STATEMENT = re.compile(r"(?:\+\+|--|\*)?[\w.:>\[\]-]+(?:\(.*\)(?:\.\w+\(.*\))*| [-+|&^]?= .+)?;")
NO_STATEMENT = re.compile(r"(return|break|continue|using|default|public|private|goto|else)\b")
FUNCTION = re.compile(r"\s*(?:static )?(void|bool|absl::Status) [\w:]+\(.*\)(?: const)?"
                      r"(?: noexcept)? \{")
EARLY = {"void": ["return;"], "bool": ["return true;", "return false;"],
         "absl::Status": ["return absl::OkStatus();"]}


def masked(text):
    """The same text with its comments and literals blanked, character for character."""
    pattern = r'//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, lambda found: "~" * len(found[0]), text)


def condition_of(code):
    """Begin and end of what stands between the brackets of an if or a while on one line."""
    found = re.match(r"\s*(?:\} else )?(?:if|while) \(", code)
    if found is None:
        return None
    depth = 1
    for at in range(found.end(), len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return None if ";" in code[found.end():at] else (found.end(), at)
    return None


def mutants_of(text):
    """(line from 0, what it becomes) for each way to spoil `text`."""
    before = ";"
    for number, (line, code) in enumerate(zip(text.split("\n"), masked(text).split("\n"))):
        if re.match(r"\s*(#|static_assert|$)", code) or not code.strip("~ "):
            continue
        for old, new in SWAPS:
            at = code.find(old)
            while at >= 0:
                yield number, line[:at] + new + line[at + len(old):]
                at = code.find(old, at + 1)
        for found in NUMBER.finditer(code):
            more = str(int(found[1], 0) + 1)
            yield number, line[:found.start(1)] + more + line[found.end(1):]
        if (span := condition_of(code)) is not None:
            first, last = span
            if re.search(" (&&|[|]{2}) ", code) or not re.search(" [=!]= ", code):
                yield number, f"{line[:first]}!({line[first:last]}){line[last:]}"
            yield number, f"{line[:first]}false && ({line[first:last]}){line[last:]}"
        starts = before.rstrip("~ ")[-1:] in ";{}:" and code.startswith("  ")
        if starts and STATEMENT.fullmatch(code.strip()) and not NO_STATEMENT.match(code.strip()):
            yield number, ""
        if (found := FUNCTION.fullmatch(code)) is not None:
            for statement in EARLY[found[1]]:
                yield number, f"{line} if (true) {statement}"
        before = code


class Build:
    """How one source is compiled, and a program linked with it in front."""

    def __init__(self, folder, source, folder_for_results):
        self.folder, self.source = folder, source
        self.object = folder_for_results / "spoilt.o"
        self.copy = folder_for_results / pathlib.Path(source).name
        commands = json.loads((folder / "compile_commands.json").read_text())
        command = next(shlex.split(one["command"]) for one in commands
                       if pathlib.Path(one["file"]) == ROOT / source)
        command = [word for word in command if word not in ("-g", "ccache", "/usr/bin/ccache")]
        command[command.index("-o") + 1] = str(self.object)
        command[command.index("-c") + 1] = str(self.copy)
        self.compiling = [*command, "-w", "-g0", f"-I{(ROOT / source).parent}"]

    def compile(self, text):
        self.copy.write_text(text)
        return subprocess.run(self.compiling, cwd=self.folder, capture_output=True, timeout=300,
                              check=False).returncode == 0

    def link(self, program, to):
        every = subprocess.run(["ninja", "-t", "commands", program], cwd=self.folder, text=True,
                               capture_output=True, check=True).stdout.splitlines()
        words = shlex.split(next(line for line in reversed(every) if f" -o {program} " in line))
        words = words[words.index("&&") + 1:]
        words = words[:words.index("&&")] if "&&" in words else words
        words[words.index("-o") + 1] = str(to)
        words.insert(next(i for i, word in enumerate(words) if word.endswith(".o")), str(self.object))
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)


def passes(program, tests, seconds):
    """Whether all tests pass, in time."""
    process = subprocess.Popen(
        [program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={tests}"],
        env={**os.environ, **FEW}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        # With the children that it may have left behind.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def survives(build, programs, seconds, folder):
    for number, (program, tests) in enumerate(programs):
        spoilt = folder / f"program{number}"
        build.link(program, spoilt)
        if not passes(spoilt, tests, seconds[number]):
            return False
    return True


def explanations():
    """(file, old line, new line) of each survivor that changes nothing, and why."""
    found = {}
    for block in (HERE / "explained.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            name, old, new, why = lines
            found[name, old[1:].strip(), new[1:].strip()] = why
    return found


def try_file(source, arguments, say):
    """[killed, equivalent, survived, not compiled] of a file."""
    text = (ROOT / source).read_text()
    lines, known, counts = text.split("\n"), explanations(), [0, 0, 0, 0]
    every = list(dict.fromkeys(mutants_of(text)))
    chosen = every
    if arguments.sample and arguments.sample < len(every):
        chosen = random.Random(f"{arguments.seed} {source}").sample(every, arguments.sample)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        build, seconds = Build(arguments.build, source, folder), []
        if not build.compile(text):
            sys.exit(f"{source} itself does not compile")
        for program, tests in FILES[source]:
            build.link(program, folder / "sound")
            started = time.monotonic()
            if not passes(folder / "sound", tests, 600):
                sys.exit(f"{program} does not pass with {source} as it is")
            seconds.append(20 + 5 * (time.monotonic() - started))
        for number, line in sorted(chosen):
            if time.monotonic() > arguments.until:
                say(f"{source}: stopped by --seconds")
                break
            if not build.compile("\n".join([*lines[:number], line, *lines[number + 1:]])):
                counts[3] += 1
            elif not survives(build, FILES[source], seconds, folder):
                counts[0] += 1
            elif (source, lines[number].strip(), line.strip()) in known:
                counts[1] += 1
            else:
                counts[2] += 1
                say("\n".join([f"SURVIVED {source}:{number + 1}", *difflib.ndiff(
                    [lines[number].strip()], [line.strip()])]))
    say(f"{source}: {len(every)} mutants, tried {sum(counts)}: killed {counts[0]}, equivalent "
        f"{counts[1]}, survived {counts[2]}, not compiled {counts[3]}")
    return counts


def main():
    # So that a program under way ends with it: a spoilt one may spin for ever.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=lambda name: pathlib.Path(name).resolve())
    parser.add_argument("--sample", type=int, default=0, help="so many of a file; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("--seconds", type=float, default=1e9, help="after these no other is tried")
    parser.add_argument("--report", type=pathlib.Path, help="a file for what is printed")
    parser.add_argument("--goal", type=float, default=95, help="of 100 that are no equivalents")
    arguments = parser.parse_args()
    arguments.until = time.monotonic() + arguments.seconds
    if arguments.report:
        arguments.report.write_text("")

    def say(text):
        print(text, flush=True)
        if arguments.report:
            with arguments.report.open("a") as report:
                report.write(f"{text}\n")

    all_counts = [0, 0, 0, 0]
    for source in FILES:
        if arguments.only in source and time.monotonic() < arguments.until:
            counts = try_file(source, arguments, say)
            all_counts = [a + b for a, b in zip(all_counts, counts)]
    killed, equivalent, survived, broken = all_counts
    if killed + survived == 0:
        sys.exit("no mutant was tried")
    rate = 100 * killed / (killed + survived)
    say(f"in all: killed {killed} of {killed + survived} ({rate:.1f} %), equivalent {equivalent}, "
        f"not compiled {broken}, seed {arguments.seed}")
    return 0 if rate >= arguments.goal else 1


if __name__ == "__main__":
    sys.exit(main())
