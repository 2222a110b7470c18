"""`vmmshare weights put`: safetensors files into shared memory."""

from __future__ import annotations

import argparse
import sys
import time
import typing

from . import Driver, set_driver, weights
from .errors import VmmshareError


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {2**31 - 1}")
    return int(text)


def _device(text: str) -> "int | str":
    return _number(text) if text.isdecimal() else text


def _rank_of(text: str) -> "tuple[int, int]":
    rank, _, count = text.partition("/")
    if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no rank; expected as 0/2 or 1/2")
    return int(rank), int(count)


def _cut(text: str) -> "tuple[str, weights.Cut]":
    pattern, equals, how = text.rpartition("=")
    dim, colon, lengths = how.partition(":")
    if how == "whole" and pattern:
        return pattern, None
    parts = lengths.split("+")
    if (not pattern or not equals or not dim.isdecimal()
            or colon and not all(part.isdecimal() for part in parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected PATTERN=0, PATTERN=0:4096+1024 or "
                                         "PATTERN=whole")
    if not colon:
        return pattern, int(dim)
    return pattern, weights.Fused(int(dim), tuple(int(part) for part in parts))


class _Once(argparse.Action):
    """Stores what an option is given; twice is an error, as the tool of C++ has it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 values: typing.Any, option_string: "str | None" = None) -> None:
        given: "set[str]" = vars(namespace).setdefault("given", set())
        if self.dest in given:
            raise argparse.ArgumentError(self, "is given twice; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vmmshare weights put", allow_abbrev=False,
        description="Reads safetensors files straight into shared memory, and has the keeper hold "
                    "that under NAME, in place of the set that is there. The process ends, the "
                    "memory stays.")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("files", metavar="FILE", nargs="+",
                        help="or one folder, or index of files: see load() of vmmshare.weights")
    parser.add_argument("--device", action=_Once, type=_device, default="0", metavar="GPU",
                        help="its ordinal or UUID (0)")
    parser.add_argument("--host-node", action=_Once, type=_number, metavar="NODE",
                        help="memory of this NUMA node of the host instead of a GPU's")
    parser.add_argument("--fingerprint", action=_Once, default="", metavar="TEXT",
                        help="what the model is called; who opens it may ask for it")
    parser.add_argument("--shard", action=_Once, type=_rank_of, metavar="RANK/COUNT",
                        help="only what this rank of so many takes of each tensor, by --cut")
    parser.add_argument("--cut", type=_cut, action="append", default=[], metavar="PATTERN=HOW",
                        help="how tensors of such names are cut: HOW is the dimension, as 0; for "
                             "several tensors in one with the length of each, as "
                             "0:4096+1024+1024; or whole. The first that fits counts, what fits "
                             "none is whole")
    parser.add_argument("--threads", action=_Once, type=_number, metavar="N",
                        help="that read at once (as many as processors, at most 8)")
    parser.add_argument("--address", action=_Once, default="",
                        help="the keeper's; by default this user's own")
    parser.add_argument("--driver", action=_Once, default="system", metavar="PATH",
                        help="the driver in this file, or host, which needs no GPU")
    parser.add_argument("--timeout", action=_Once, type=float, default=60.0, metavar="SECONDS",
                        help="for all that the keeper is asked (60)")
    return parser


class _Bar:
    """Progress on a terminal, at most ten times a second."""

    def __init__(self, to: typing.TextIO):
        self._to, self._next, self.began = to, 0.0, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and done < total:
            return
        self._next = now + 0.1
        full = 40 * done // max(total, 1)
        rate = done / max(now - self.began, 1e-9) / 1e9
        self._to.write(f"\r[{'#' * full}{'.' * (40 - full)}] {done / 1e9:.2f} of "
                       f"{total / 1e9:.2f} GB, {rate:.2f} GB/s")
        if done == total:
            self._to.write("\n")
        self._to.flush()


def main(words: "list[str]") -> int:
    options = _parser().parse_args(words)
    if options.threads is not None and options.threads < 1:
        _parser().error("--threads: expected a number from 1 on")
    if options.cut and options.shard is None:
        _parser().error("--cut: expected --shard RANK/COUNT beside it")
    if len(dict(options.cut)) < len(options.cut):
        _parser().error("--cut: a pattern stands there twice")
    shard = options.shard and weights.Shard(*options.shard, dict(options.cut))
    try:
        if options.driver == "host":
            from . import testing
            set_driver(Driver(testing.host_driver()))
        elif options.driver != "system":
            set_driver(Driver(options.driver))
        files = options.files[0] if len(options.files) == 1 else options.files
        generation = weights.load(
            options.name, files, shard=shard, fingerprint=options.fingerprint,
            device=options.device, host_node=options.host_node, threads=options.threads,
            address=options.address, timeout=options.timeout,
            progress=_Bar(sys.stderr) if sys.stderr.isatty() else None)
        print(f"{options.name}: generation {generation}", flush=True)
    except (VmmshareError, ValueError, OSError) as why:
        print(f"vmmshare: error: {why}", file=sys.stderr)
        return 1
    return 0
