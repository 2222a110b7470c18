#!/usr/bin/env python3
"""The files of docs/examples/containers keep the rules of container_files.py, and each rule
catches a spoilt one.

usage: container_files_test.py SOURCE BUILD [UNITTEST ARGUMENTS]
"""

import pathlib
import re
import sys
import textwrap
import unittest

import container_files as rules

try:
    import yaml
except ImportError:
    yaml = None

# What is written instead of what, and what must be said of it.
SPOILT = {
    "Containerfile": [
        ("COPY bench bench", "COPY benches bench", "COPY benches: there is none"),
        ("--from=build /src/build/release/vmm", "--from=made /src/build/release/vmm", "from=made"),
        ("release/vmm/tool/vmmshare", "release/vmm/tool/vmmshar", "makes no such file"),
        ("FROM ${BASE}\nRUN", "FROM ${BASE} AS spare\nRUN true\nFROM ${BASE}\nRUN",
         "nothing uses the stage spare"),
        ("USER 1000:1000", "USER root", "is root"),
        ("-m 1777", "-m 0777", "mode 1777"),
        ("ENV ", "ENVIRONMENT ", "is no instruction")],
    "compose.yaml": [
        ("- share:/run/share", "- share:/run/shared", "must be /run/share"),
        ("- share:/run/share", "- share:/run/share:ro", "and writable"),
        ("- share:/run/share", "- other:/run/share", "no volume other"),
        ("LOCAL_IPC_DIR: /run/share", "LOCAL_IPC_DIR: /run/other", "is not the image's"),
        ('user: "1000:1000"', 'user: "1001:1001"', "its user is 1001"),
        ('device_ids: ["1"]', 'device_ids: ["0"]', "sees the owner's GPU"),
        ("    init: true", "    init: false", "ignores SIGTERM"),
        ("dockerfile: docs", "dockerfile: doc", "is built of"),
        ("context: ../../..", "context: ../..", "is built of"),
        ("    healthcheck:", "    healthchecks:", "no healthcheck"),
        ("[file_ticket, main", "[file_tickets, main", "no file_tickets"),
        ("main, /run/share/values", "main, /run/share/value", "files differ")],
    "kubernetes.yaml": [
        ("apiVersion: v1", "apiVersion: v2", "of v2 is none"),
        ("name: vmmshare-example\n", "name: Vmmshare_Example\n", "is no name"),
        ("- name: share\n      emptyDir", "- name: shared\n      emptyDir", "no volume share"),
        ("value: /run/share/sockets", "value: /run/share", "an emptyDir itself is refused"),
        ('"0700", /run', '"0777", /run', "mode 0700"),
        ("runAsUser: 1000", "runAsUser: 1001", "the pod's user"),
        ("  mountPath: /run/share", "  readOnly: true\n          mountPath: /run/share",
         "is read-only"),
        ("      env: *environment\n", "", "env of the containers differ"),
        ("restartPolicy", "restartPolice", "not a key"),
        ("main, /run/share/values", "main, /run/share/value", "files differ")],
    "kubernetes_dra.yaml": [
        ("resource.k8s.io/v1\n", "resource.k8s.io/v1beta1\n", "is none"),
        ("TemplateName: vmmshare-example", "TemplateName: other", "other asks for no folder"),
        ("enabled: true", "enabled: false", "asks for no folder"),
        ("claims:\n          - name: shared", "claims:\n          - name: one", "the pod's"),
        ("main, /run/nvidia-dra/local-ipc", "main, /run/share", "uses no file")],
}


def findings(name, text, image):
    """What the rules say of the example `name` if it were `text`."""
    if name == "Containerfile":
        return list(rules.containerfile(text, exists, lambda path: (BUILD / path).is_file()))
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        return [str(error)]
    if name == "compose.yaml":
        return list(rules.compose(documents[0], image, exists))
    return list(rules.kubernetes(documents, image))


def exists(path):
    return (SOURCE / path).exists()


class ContainerFiles(unittest.TestCase):
    def read(self, name):
        if yaml is None and name.endswith(".yaml"):
            self.skipTest("needs PyYAML")
        return (SOURCE / rules.PLACE / name).read_text()

    def test_the_rules_are_kept(self):
        found = {path.name for path in (SOURCE / rules.PLACE).iterdir()}
        self.assertEqual(found, set(SPOILT), "a file without rules, or rules without a file")
        for name in sorted(SPOILT):
            with self.subTest(name):
                self.assertEqual(findings(name, self.read(name), self.read("Containerfile")), [])

    def test_the_page_shows_what_is_in_them(self):
        page = (SOURCE / "docs/containers.md").read_text()
        texts = [path.read_text() for path in (SOURCE / rules.PLACE).iterdir()]
        shown = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page)
        self.assertEqual(len(shown), 3)
        for part in shown:
            ways = [textwrap.indent(part, " " * deep) for deep in range(0, 8, 2)]
            self.assertTrue(any(way in text for way in ways for text in texts), part)

    def test_each_rule_catches_a_spoilt_file(self):
        for name, changes in SPOILT.items():
            for old, new, said in changes:
                with self.subTest(name, new=new):
                    text = self.read(name)
                    self.assertIn(old, text)
                    found = findings(name, text.replace(old, new, 1), self.read("Containerfile"))
                    self.assertIn(said, "\n".join(found))


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(one).resolve() for one in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
