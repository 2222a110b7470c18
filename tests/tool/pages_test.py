#!/usr/bin/env python3
"""Manual pages and completions say what `vmmshare --help` says.

usage: pages_test.py TOOL PAGES_FOLDER [UNITTEST ARGUMENTS]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL, PAGES = sys.argv[1], pathlib.Path(sys.argv[2])
COMMANDS = {"": "vmmshare.1", "doctor": "vmmshare-doctor.1", "keep": "vmmshare-keep.1",
            "weights": "vmmshare-weights.1"}


def run(*words, **more):
    return subprocess.run(words, text=True, capture_output=True, timeout=60, check=False, **more)


def help_of(command):
    return run(TOOL, *([command] if command else []), "--help").stdout


def options_of(command):
    return {line.split()[0].split("=")[0] for line in help_of(command).splitlines()
            if line.startswith("  --")}


def in_bash(*words):
    """What bash offers for the last word."""
    script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _vmmshare 2>/dev/null;'
              ' printf "%s\\n" "${COMPREPLY[@]}"')
    done = run("bash", "-c", script, "bash", str(PAGES / "vmmshare.bash"), "vmmshare", *words)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")) - {""}


class Pages(unittest.TestCase):
    def test_each_command_of_the_help_has_a_page(self):
        listed = re.findall(r"^  ([a-z]+) ", help_of(""), re.M)
        self.assertEqual(sorted(COMMANDS), sorted(["", *listed]))
        for page in COMMANDS.values():
            self.assertTrue((PAGES / page).stat().st_size > 0, page)

    def test_the_program_of_the_build_prints_each_and_no_other(self):
        for page in [*COMMANDS.values(), "vmmshare.bash", "_vmmshare", "vmmshare.fish"]:
            printed = run(str(PAGES / "vmmshare_pages"), page)
            self.assertEqual((printed.returncode, printed.stderr), (0, ""), page)
            self.assertEqual(printed.stdout, (PAGES / page).read_text(encoding="utf-8"), page)
        for words in [], ["vmmshare-nothing.1"]:
            printed = run(str(PAGES / "vmmshare_pages"), *words)
            self.assertEqual((printed.returncode, printed.stdout), (2, ""))
            self.assertIn("no page is called so", printed.stderr)

    def test_the_help_fits_into_80_columns(self):
        for command in COMMANDS:
            for line in help_of(command).splitlines():
                self.assertLessEqual(len(line), 80, line)

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"),
                         "needs man and groff (apt-get install man-db groff)")
    def test_manual_pages_are_right_and_say_what_the_help_says(self):
        for command, page in COMMANDS.items():
            shown = run("man", "--warnings", "-l", str(PAGES / page),
                        env={**os.environ, "MANWIDTH": "2000", "LC_ALL": "C.UTF-8",
                             "MAN_KEEP_FORMATTING": "", "MANPAGER": "cat"})
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), page)
            words = set(re.split(r"[\s=]+", shown.stdout))
            for option in options_of(command):
                self.assertIn(option, words, page)
            # Of the help each word stands there, in the order of the help.
            told = iter(re.sub(r"\s+", " ", shown.stdout).split(" "))
            body = help_of(command).split("\n\n", 1)[1].replace("Exit status:", "EXIT STATUS")
            if command:
                for word in body.split():
                    self.assertIn(word, told, f"{page} lacks {word!r} or has it elsewhere")

    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(in_bash(""), set(COMMANDS) - {""} | {"--version", "--help"})
        self.assertEqual(in_bash("do"), {"doctor"})
        for command in COMMANDS:
            if not command:
                continue
            offered = {word.rstrip("=") for word in in_bash(command, "--address=x", "--")}
            self.assertEqual(offered, options_of(command))
        self.assertEqual(in_bash("doctor", "--require", "=", "f"), {"fd", "fabric"})
        self.assertEqual(in_bash("doctor", "--require", "="), {"fd", "nt", "fabric"})
        self.assertIn("host", in_bash("doctor", "--driver", ""))
        self.assertEqual(in_bash("weights", "s"), {"show"})
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "file").touch()
            (pathlib.Path(folder) / "folder").mkdir()
            self.assertEqual(in_bash("doctor", "--root", "=", folder + "/f"), {folder + "/folder"})
            self.assertEqual(in_bash("doctor", "--driver", "=", folder + "/f"),
                             {folder + "/folder", folder + "/file"})

    @unittest.skipUnless(shutil.which("fish"), "needs fish")
    def test_fish_completes_commands_options_and_values(self):
        def offered(line):
            with tempfile.TemporaryDirectory() as home:
                done = run("fish", "-c", f'source "{PAGES / "vmmshare.fish"}"; complete -C "{line}"',
                           env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return {one.split("\t")[0].rstrip("=") for one in done.stdout.splitlines()}
        self.assertEqual(offered("vmmshare "), set(COMMANDS) - {""})
        for command in set(COMMANDS) - {""}:
            self.assertEqual(offered(f"vmmshare {command} --"), options_of(command))
        self.assertEqual(offered("vmmshare doctor --require=f"),
                         {"--require=fd", "--require=fabric"})
        self.assertEqual(offered("vmmshare weights s"), {"show"})

    @unittest.skipUnless(shutil.which("zsh"), "needs zsh")
    def test_zsh_reads_its_completion_which_has_each_option(self):
        done = run("zsh", "-n", str(PAGES / "_vmmshare"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = (PAGES / "_vmmshare").read_text()
        for command in set(COMMANDS) - {""}:
            part = re.search(rf"\n    {command}\)\n(.*?);;", text, re.S).group(1)
            self.assertEqual(set(re.findall(r"'\*(--[a-z-]+)", part)), options_of(command))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
