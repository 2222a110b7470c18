#!/usr/bin/env python3
"""Each function of the C interface refuses nothing at all, and handles of another type.

usage: handles_test.py LIBRARY HEADERS_FOLDER HOST_DRIVER

The functions and what they take are read out of the headers, so that none is left out.
"""

import ctypes
import pathlib
import re
import sys
import unittest

LIBRARY, HEADERS, HOST_DRIVER = ctypes.CDLL(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
OK, INVALID_ARGUMENT = 0, 3

# What these return for nothing: their comments say what it means to them.
TAKE_NOTHING = {
    "vmmshare_main": 2,  # The exit status of a command line without a word.
    "vmmshare_error_status": OK,
    "vmmshare_fence_meet": OK,
    "vmmshare_torch_set_pool": OK,
    "vmmshare_torch_set_region": OK,
}


# What has no 0 after a failure: lists of the caller's, and what its comment says.
NO_OUTPUTS = {"addresses", "return_in_ns", "seen"}


class Function:
    def __init__(self, returned, name, parameters):
        self.name, self.returned = name, returned.strip()
        self.parameters = [" ".join(each.split()) for each in parameters.split(",")]
        if self.parameters == ["void"]:
            self.parameters = []
        self.call = getattr(LIBRARY, name)
        self.call.argtypes = [self.type_of(each) for each in self.parameters]
        self.call.restype = (None if self.returned == "void" else
                             ctypes.c_char_p if self.returned == "const char*" else
                             self.type_of(self.returned))

    @staticmethod
    def type_of(text):
        if "*" in text or "[" in text or re.search(r"\b(vmmshare_\w+_(fn|function))\b", text):
            return ctypes.c_void_p
        for name in "uint64_t", "int64_t", "uint32_t", "int32_t", "uint16_t", "uint8_t", "size_t":
            if re.search(rf"\b{name}\b", text):
                return getattr(ctypes, f"c_{name.removesuffix('_t')}"
                               if name != "size_t" else "c_size_t")
        if re.search(r"\bintptr_t\b", text):
            return ctypes.c_ssize_t
        assert re.search(r"\b(int|vmmshare_status|CUdeviceptr)\b", text), text
        return ctypes.c_uint64 if "CUdeviceptr" in text else ctypes.c_int

    def takes_error(self):
        return bool(self.parameters) and self.parameters[-1].startswith("vmmshare_error**")

    def handle(self):
        """The type of the handle that comes first, without its prefix."""
        found = self.parameters and re.fullmatch(r"(?:const )?vmmshare_(\w+)\* ?\w+",
                                                 self.parameters[0])
        return found.group(1) if found else None

    def outputs(self):
        """Which of its parameters what it makes is put into: pointers to handles and numbers,
        and tickets."""
        return [i for i, each in enumerate(self.parameters)
                if re.match(r"(vmmshare_(?!error)\w+\*|u?int\d*(_t)?|size_t)\* \w+$"
                            r"|uint8_t ticket\[", each)
                and each.split()[-1] not in NO_OUTPUTS]

    def with_first(self, first, others=None, given=None):
        """Calls it with `first`, `given` by its place, and zeros and `others` for pointers; returns
        what it returned, and the error's message."""
        values = [others if kind is ctypes.c_void_p else 0 for kind in self.call.argtypes]
        for place, value in (given or {}).items():
            values[place] = value
        if values:
            values[0] = first
        error = ctypes.c_void_p()
        if self.takes_error():
            values[-1] = ctypes.addressof(error)
        result, message = self.call(*values), None
        if error.value is not None:
            message = LIBRARY.vmmshare_error_message(error).decode()
            LIBRARY.vmmshare_error_free(error)
        return result, message


def functions():
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(HEADERS.glob("*.h")))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    return [Function(*found) for found in
            re.findall(r"VMMSHARE_API\s+([^;(]*?)\b(vmmshare_\w+)\(([^;]*?)\)\s*;", text)]


class Handles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.functions = functions()
        cls.types = {each.name[len("vmmshare_"):-len("_close")] for each in cls.functions
                     if each.name.endswith("_close")}
        # A handle of `driver`, and one that is none.
        load = next(each for each in cls.functions if each.name == "vmmshare_driver_load")
        device = next(each for each in cls.functions if each.name == "vmmshare_device_open")
        cls.driver, cls.device = ctypes.c_void_p(), ctypes.c_void_p()
        assert load.call(HOST_DRIVER.encode(), ctypes.addressof(cls.driver), None) == OK
        assert device.call(cls.driver, 0, ctypes.addressof(cls.device), None) == OK

    def test_all_functions_are_here(self):
        self.assertGreater(len(self.functions), 180)
        self.assertGreater(len(self.types), 20)
        self.assertEqual(self.types - {each.handle() for each in self.functions}, set())

    def test_nothing_at_all_is_refused_or_is_nothing(self):
        for function in self.functions:
            with self.subTest(function.name):
                result, message = function.with_first(
                    0 if function.parameters and function.call.argtypes[0] is not ctypes.c_void_p
                    else None)
                if function.name in TAKE_NOTHING:
                    self.assertEqual((result, message), (TAKE_NOTHING[function.name], None))
                elif function.returned == "vmmshare_status":
                    self.assertEqual(result, INVALID_ARGUMENT, message)
                    if function.takes_error():
                        self.assertIn("NULL", message)

    def test_a_handle_of_another_type_is_refused_by_name(self):
        named = set()
        for function in self.functions:
            handle = function.handle()
            if handle not in self.types or function.returned != "vmmshare_status":
                continue
            with self.subTest(function.name):
                other = self.device if handle == "driver" else self.driver
                empty = ctypes.create_string_buffer(1 << 16)
                result, message = function.with_first(other, ctypes.addressof(empty))
                if function.name in TAKE_NOTHING:
                    continue
                self.assertEqual(result, INVALID_ARGUMENT, message)
                if function.takes_error() and f"is no vmmshare_{handle}." in message:
                    named.add(handle)
        # Of a share one only asks; where a ring's home is taken a channel is looked at first.
        self.assertEqual(named, self.types - {"share", "ring_home"})

    def test_a_handle_of_another_type_is_not_closed(self):
        by_name = {each.name: each for each in self.functions}
        ordinal = ctypes.c_int32(-1)
        count = by_name["vmmshare_device_count"]
        closed = 0
        for name, function in by_name.items():
            if not name.endswith("_close"):
                continue
            for other in self.driver, self.device:
                if function.handle() == ("driver" if other is self.driver else "device"):
                    continue
                with self.subTest(name):
                    function.call(other)
                    self.assertEqual(by_name["vmmshare_device_ordinal"].call(self.device), 0)
                    self.assertEqual(count.call(self.driver, ctypes.addressof(ordinal), None), OK)
                    self.assertGreater(ordinal.value, 0)
                    closed += 1
        self.assertEqual(closed, 2 * len(self.types) - 2)

    def test_what_it_would_have_made_is_nothing_after_a_failure(self):
        outputs = 0
        for function in self.functions:
            handle = function.handle()
            if handle not in self.types or function.returned != "vmmshare_status":
                continue
            for first in None, self.device if handle == "driver" else self.driver:
                room = {i: ctypes.create_string_buffer(b"\xaa" * 4096, 4096)
                        for i in function.outputs()}
                given = {i: ctypes.addressof(each) for i, each in room.items()}
                # One, where as many are made as are asked for.
                given |= {i: 1 for i, each in enumerate(function.parameters)
                          if each in ("uint32_t count", "size_t count")}
                with self.subTest(function.name, first=first):
                    result, message = function.with_first(first, given=given)
                    self.assertEqual(result, INVALID_ARGUMENT, message)
                    for i, each in room.items():
                        size = 4 if re.match("u?int(32_t)?[*]", function.parameters[i]) else 8
                        self.assertEqual(each.raw[:size], bytes(size), function.parameters[i])
                        outputs += 1
        self.assertGreater(outputs, 120)

    def test_what_asks_returns_the_same_for_nothing_and_for_another_type(self):
        for function in self.functions:
            handle = function.handle()
            if (handle not in self.types or len(function.parameters) != 1
                    or function.returned in ("vmmshare_status", "void")):
                continue
            with self.subTest(function.name):
                nothing, _ = function.with_first(None)
                other, _ = function.with_first(self.device if handle == "driver" else self.driver)
                if function.returned == "const char*":
                    self.assertEqual(nothing, b"")
                self.assertEqual(nothing, other)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
