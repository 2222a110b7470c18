"""Runs lines of Python from standard input, and answers each in one line."""

import sys

import numpy as np

import vmmshare as vs
import vmmshare.testing

vmmshare.testing.use_host_driver()
names = {"vs": vs, "np": np}
for line in sys.stdin:
    try:
        try:
            value = eval(line, names)
        except SyntaxError:
            exec(line, names)
            value = None
        print("value", repr(value), flush=True)
    except Exception as error:
        print("raised", type(error).__name__, str(error).replace("\n", " "), flush=True)
