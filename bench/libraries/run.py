#!/usr/bin/env python3
"""Measures what people use today against vmmshare's Python package, in one run.

Tensors handed from process to process, symmetric memory of a job of two ranks, and order between
their streams: by vmmshare, torch.multiprocessing, cuda.core, RMM, PyTorch's symmetric memory,
NVSHMEM, NCCL and legacy IPC by hand. Each row has two processes of its own and a deadline: one
that hangs, crashes or is not installed leaves the others' rows, and the table says why.

exit code 0: every row whose libraries are there was measured whole; 1: one was not
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import signal
import sys
import time
import uuid

import report as reports
import ways
from driver import Driver
from row import Row

PACKAGES = ["vmmshare", "torch", "cuda-core", "cuda-bindings", "nvidia-nccl-cu13",
            "nvidia-nvshmem-cu13", "rmm-cu13"]
# Seconds: for all rows to have their libraries; to end in.
LOADING, SPARE = 60, 3


class Interrupted(Exception):
    pass


def words(text):
    return [word for word in text.split(",") if word]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", type=words, default=list(ways.SECTIONS),
                        help=f"of {','.join(ways.SECTIONS)}")
    parser.add_argument("--only", type=words, default=[], action="extend", metavar="NAME,...",
                        help="rows by name")
    parser.add_argument("--quick", action="store_true", help="a moment of each, and fewer rows")
    parser.add_argument("--driver", choices=["system", "host"], default="system",
                        help="host: the host-memory driver that comes with vmmshare")
    parser.add_argument("--devices", default=None, metavar="A,B",
                        help="of rank 0 and rank 1; tensors are on A alone (default: 0,1 where "
                             "there are two, else 0,0)")
    parser.add_argument("--seconds", type=float, default=None,
                        help=f"for all of it (default {ways.ALL[0]}, with --quick {ways.ALL[1]})")
    parser.add_argument("--commit", default="", help="what was measured")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--corrupt", action="store_true",
                        help="spoils contents: then every row of tensors and jobs must fail")
    parser.add_argument("--plant", type=words, default=[],
                        help=f"rows that go wrong, for tests: {','.join(ways.PLANTED)}")
    asked = parser.parse_args()
    check_known(parser, "--sections", asked.sections, ways.SECTIONS)
    check_known(parser, "--only", asked.only, [way["name"] for way in ways.WAYS])
    check_known(parser, "--plant", asked.plant, ways.PLANTED)
    return parser, asked


def check_known(parser, option, asked, known):
    for name in asked:
        if name not in known:
            parser.error(f"{option}: there is no {name!r}; there are {', '.join(known)}")


def load_driver(kind):
    if kind == "system":
        return Driver()
    import vmmshare.testing
    os.environ.setdefault(vmmshare.testing.INSTANCE, "bench-" + uuid.uuid4().hex[:12])
    return Driver(vmmshare.testing.host_driver())


def devices_of(parser, text, count):
    chosen = [int(word) for word in words(text)] if text else [0, 1] if count > 1 else [0, 0]
    if len(chosen) != 2 or not all(0 <= one < count for one in chosen):
        parser.error(f"--devices={text}: expected two of 0 to {count - 1}, as 0,1")
    return chosen


def versions():
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def driver_version(driver, kind):
    if kind == "host":
        return "host-memory driver"
    try:
        first = open("/proc/driver/nvidia/version", encoding="utf-8").readline()
        release = next(word for word in first.split() if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        release = "of unknown release"
    return f"{release}, CUDA {driver.version()}"


def cannot_run(way, asked, devices):
    """Why, or nothing."""
    if asked.driver == "host" and not way["host"]:
        return "needs a GPU"
    if way["gpus"] > len(set(devices)):
        return "needs two GPUs"
    return ""


def write(asked, report, rows, partial):
    report["rows"] = [row if isinstance(row, dict) else row.record() for row in rows]
    behind = [f"{row['section']}/{row['name']}" for row in report["rows"]
              if row["status"] != "whole"]
    report["partial"] = partial or (f"{', '.join(behind)} incomplete or missing" if behind else "")
    text = reports.markdown(report)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if asked.markdown:
        asked.markdown.write_text(text, encoding="utf-8")
    return text


def not_run(way, why):
    return {"section": way["section"], "name": way["name"], "note": way["note"],
            "status": "missing", "why": why, "seconds": 0, "figures": []}


def measure(asked, report, devices, rows, until):
    """Fills `rows`. All load their libraries at once; then they take turns."""
    options = {"devices": devices, "driver": asked.driver, "quick": asked.quick,
               "corrupt": asked.corrupt}
    chosen = ways.chosen(asked.sections, asked.only, asked.quick, asked.plant)
    for way in chosen:
        why = cannot_run(way, asked, devices)
        rows.append(not_run(way, why) if why else Row(way, options))
    now = time.monotonic()
    loading = now + min(LOADING, (until - now) / 2)
    ready = [row for row in rows if isinstance(row, Row) and row.load(loading)]
    print(f"{len(ready)} of {len(rows)} rows have their libraries", file=sys.stderr, flush=True)
    for row in rows:
        if isinstance(row, Row) and row not in ready:
            tell(row)
    for row in ready:
        left = until - time.monotonic() - SPARE
        if left < 1:
            row.skip("no time was left")
        else:
            row.run(min(left, ways.deadline(row.entry, asked.quick, asked.seconds)))
        tell(row)
        write(asked, report, rows, "the run goes on")


def tell(row):
    print(f"{row.status}: {row.entry['section']}/{row.entry['name']}, {row.seconds:.1f} s"
          f"{': ' + row.why if row.why else ''}", file=sys.stderr, flush=True)


def interrupt(*_):
    raise Interrupted()


def main():
    until = time.monotonic()
    parser, asked = arguments()
    asked.seconds = asked.seconds or ways.ALL[asked.quick]
    until += asked.seconds
    try:
        driver = load_driver(asked.driver)
    except (OSError, RuntimeError, ImportError) as error:
        parser.error(f"--driver={asked.driver}: {error}; --driver=host needs no GPU")
    names = driver.device_names()
    devices = devices_of(parser, asked.devices, len(names))
    report = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "commit": asked.commit, "quick": asked.quick, "driver": asked.driver,
              "devices": [names[one] for one in dict.fromkeys(devices)],
              "driver_version": driver_version(driver, asked.driver), "versions": versions()}
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    rows, partial = [], ""
    try:
        measure(asked, report, devices, rows, until)
    except Interrupted:
        partial = "the run was interrupted"
    finally:
        for row in rows:
            if isinstance(row, Row):
                row.kill()
    print(write(asked, report, rows, partial), end="")
    return 1 if partial or any(row["status"] in ("failed", "late")
                               for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
