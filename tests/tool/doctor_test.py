#!/usr/bin/env python3
"""`vmmshare doctor`, run as people and programs run it.

usage: doctor_test.py TOOL SOURCES [UNITTEST ARGUMENTS]
"""

import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import unittest

from machine import CHANNELS, INSTANCE, Machine, few_descriptors, without_clone3, without_override, without_pidfd

TOOL, SOURCES = sys.argv[1], pathlib.Path(sys.argv[2])
CLUSTER = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "fedcba98-7654-3210-fedc-ba9876543210"


class DoctorTest(unittest.TestCase):
    def setUp(self):
        self.machine = Machine(TOOL)
        self.addCleanup(self.machine.close)
        self.ready_env = {"VMMSHARE_HOST_FABRIC_CLUSTER": CLUSTER,
                          "VMMSHARE_HOST_FABRIC_CLIQUE": "7"}

    def make_ready(self, mode=0o600):
        """All that fabric handles need, but for the cluster: ready_env."""
        self.machine.offer_channels(self.machine.make_channel(mode=mode))
        self.machine.start_daemon()

    def expect_reason(self, reason, remedy, *words, env=None, preexec=None, also=()):
        """The cause, and what to do, in JSON and in the text."""
        result = self.machine.run("--json", *words, env=env, preexec=preexec)
        self.assertEqual(result.status, 0, result.err)
        kind = result.kind("fabric")
        self.assertEqual(kind["attribute"], True)
        self.assertEqual(kind["error"]["cuda_result"], 800)
        self.assertEqual(result.reasons(), [reason, *also])
        self.assertIn(remedy, kind["reasons"][0]["remedy"])
        text = self.machine.run(*words, env=env, preexec=preexec).out
        flowing = " ".join(text.split())
        self.assertIn("fabric handle refused attribute yes", flowing)
        self.assertIn("CUDA_ERROR_NOT_PERMITTED", flowing)
        self.assertIn(kind["reasons"][0]["text"] + f" [{reason}] to do: ", flowing)
        self.assertIn(remedy, flowing)
        return result


class EachCallFails(DoctorTest):
    """Whatever the driver refuses, once or always: there is a report, and it says so."""

    def test_and_the_report_says_what_failed(self):
        table = (SOURCES / "platform/cuda/driver_table.h").read_text(encoding="utf-8")
        calls = sorted(set(re.findall(r'"(cu[A-Z]\w+)"', table)))
        self.assertGreater(len(calls), 80)

        def steady(text):
            """Without what other programs change meanwhile."""
            return re.sub(r"[\d.]+ [GM]iB free", "", " ".join(text.split()))
        whole = steady(self.machine.run("--touch").out)
        members = sorted(self.machine.run("--json").json)
        made = 0
        for call in calls:
            once, always = ({"VMMSHARE_HOST_FAIL": f"{call}:{which}:ECC_UNCORRECTABLE"}
                            for which in ("1", "1+"))
            told = self.machine.run("--touch", env=once)
            if steady(told.out) == whole and not told.err:
                continue  # It is not made.
            made += 1
            in_the_end = self.machine.run("--touch", env=always)
            for env, said in (once, told), (always, in_the_end):
                with self.subTest(**env):
                    self.assertIn(said.status, (0, 1), said.err)
                    self.assertIn("CUDA_ERROR_ECC_UNCORRECTABLE",
                                  "".join((said.out + said.err).split()))
            as_json = self.machine.run("--json", "--touch", env=always)
            self.assertEqual(as_json.status, in_the_end.status, as_json.err)
            self.assertEqual(sorted(as_json.json), members)
        self.assertGreater(made, 20)


class Pitfall01(DoctorTest):
    def test_an_attribute_that_says_yes_is_explained_by_the_missing_channel(self):
        self.machine.offer_channels(242)
        self.expect_reason("no-channel", "channel0 c 242 0")


class Pitfall02(DoctorTest):
    def test_an_export_that_fails_after_create_succeeded_is_found(self):
        result = self.machine.run(
            "--json", "--require=fd",
            env={"VMMSHARE_HOST_FAIL": "cuMemExportToShareableHandle:2:NOT_SUPPORTED"})
        self.assertEqual(result.status, 1)
        self.assertTrue(result.kind("fd", 0)["usable"])
        self.assertFalse(result.kind("fd", 1)["usable"])
        self.assertEqual(result.reasons("fd", 1), ["driver-refused"])
        self.assertIn("cuMemExportToShareableHandle", result.kind("fd", 1)["error"]["message"])
        text = self.machine.run(
            "--require=fd",
            env={"VMMSHARE_HOST_FAIL": "cuMemExportToShareableHandle:2:NOT_SUPPORTED"}).out
        self.assertIn("works not on device 1; it is required", text)


class Pitfall04(DoctorTest):
    def test_a_driver_that_does_not_know_the_attribute_is_no_crash(self):
        # The third of device 0: fd, NT, fabric.
        result = self.machine.run(
            "--json", env={"VMMSHARE_HOST_FAIL": "cuDeviceGetAttribute:3:INVALID_VALUE"})
        self.assertEqual(result.status, 0, result.err)
        self.assertIsNone(result.kind("fabric")["attribute"])
        self.assertEqual(result.reasons()[0], "no-attribute")
        self.assertTrue(result.kind("fd")["usable"])


class Reasons(DoctorTest):
    def test_a_driver_without_the_channel_class(self):
        self.expect_reason("no-imex-class", "open kernel module")

    def test_a_node_that_may_not_be_opened(self):
        self.machine.offer_channels(self.machine.make_channel(mode=0))
        result = self.expect_reason("channel-denied", "setfacl -m u:USER:rw",
                                    preexec=without_override)
        channel = result.json["imex"]["channels"][0]
        self.assertEqual((channel["usable"], channel["mode"], channel["number"]),
                         (False, "0000", 0))
        self.assertEqual(channel["owner"], str(os.geteuid()))
        self.assertEqual(channel["error"]["code"], "PERMISSION_DENIED")

    def test_a_folder_where_the_node_should_be(self):
        self.machine.offer_channels(242)
        (self.machine.root / CHANNELS / "channel0").mkdir(parents=True)
        result = self.expect_reason("channel-not-a-device", "Remove it")
        self.assertIn("channel0 c 242 0", result.kind("fabric")["reasons"][0]["remedy"])
        self.assertFalse(result.json["imex"]["channels"][0]["is_device"])

    def test_a_node_from_before_a_reboot(self):
        major = self.machine.make_channel()
        self.machine.offer_channels(major + 1)
        self.expect_reason("channel-stale", f"channel0 c {major + 1} 0")

    def test_a_folder_of_channels_that_may_not_be_read(self):
        self.machine.offer_channels(242)
        folder = self.machine.root / CHANNELS
        folder.mkdir()
        folder.chmod(0)
        self.expect_reason("channels-unreadable", "chmod 755", preexec=without_override)
        folder.chmod(0o700)

    def test_no_daemon(self):
        self.machine.offer_channels(self.machine.make_channel())
        self.expect_reason("no-daemon", "systemctl enable --now nvidia-imex", env=self.ready_env)

    def test_a_domain_that_refuses_though_all_looks_right(self):
        self.make_ready()
        # The driver has no IMEX, whatever the tool sees.
        result = self.expect_reason("domain-not-ready", "nvidia-imex-ctl -N",
                                    env={**self.ready_env, "VMMSHARE_HOST_FABRIC_ROOT": ""})
        self.assertTrue(result.json["imex"]["channels"][0]["usable"])
        self.assertEqual(result.json["devices"][0]["fabric"]["cluster"], CLUSTER)
        self.assertEqual(result.json["devices"][0]["fabric"]["clique"], 7)

    def test_a_gpu_of_no_domain_beyond_its_host(self):
        self.make_ready()
        self.expect_reason("no-cluster", "within the host")

    def test_a_fabric_that_is_not_ready(self):
        self.make_ready()
        for state in ("not-started", "in-progress"):
            result = self.expect_reason(
                "fabric-not-ready", "nvidia-fabricmanager",
                env={**self.ready_env, "VMMSHARE_HOST_FABRIC_STATE": state})
            self.assertEqual(result.json["devices"][0]["fabric"]["state"],
                             state.replace("-", " "))

    def test_a_newer_driver_says_itself_that_it_is_not_ready(self):
        self.make_ready()
        result = self.machine.run("--json", env={**self.ready_env, "VMMSHARE_HOST_VERSION": "13.4",
                                                 "VMMSHARE_HOST_FABRIC_STATE": "in-progress"})
        self.assertEqual(result.kind("fabric")["error"]["cuda_result"], 919)
        self.assertEqual(result.reasons(), ["fabric-not-ready"])
        self.assertIn("the driver says", result.kind("fabric")["reasons"][0]["text"])

    def test_a_gpu_without_fabric(self):
        self.make_ready()
        self.expect_reason("fabric-not-supported", "multi-node NVLink machine",
                           env={"VMMSHARE_HOST_FABRIC_STATE": "not-supported"})

    def test_a_gpu_that_failed_to_join(self):
        self.make_ready()
        result = self.expect_reason("fabric-failed", "fabricmanager.log",
                                    env={**self.ready_env, "VMMSHARE_HOST_FABRIC_STATUS": "15"})
        self.assertIn("status 15 (GPU is lost)", result.kind("fabric")["reasons"][0]["text"])

    def test_mig(self):
        self.make_ready()
        uuid = self.machine.run("--json").json["devices"][0]["uuid"]
        # Not of every GPU of the machine.
        result = self.expect_reason("mig", f"nvidia-smi -i {uuid} -mig 0",
                                    env={**self.ready_env, "VMMSHARE_HOST_MIG": "1"})
        self.assertTrue(result.json["devices"][0]["mig_mode"])
        self.assertIn("mig-no-peers", result.notes())

    def test_several_at_once_the_one_to_mend_first_in_front(self):
        self.machine.offer_channels(242)
        self.expect_reason("fabric-not-ready", "Wait", also=["no-channel"],
                           env={"VMMSHARE_HOST_FABRIC_STATE": "in-progress"})

    def test_each_device_has_its_own(self):
        self.make_ready()
        env = {**self.ready_env, "VMMSHARE_HOST_FABRIC_STATE": "completed,in-progress"}
        result = self.machine.run("--json", env=env)
        self.assertEqual(result.reasons(device=0), [])
        self.assertTrue(result.kind("fabric", 0)["usable"])
        self.assertEqual(result.reasons(device=1), ["fabric-not-ready"])
        self.assertEqual(self.machine.run("--require=fabric", env=env).status, 1)
        env["VMMSHARE_HOST_FABRIC_STATE"] = "in-progress,not-started"
        self.assertNotIn("as on device 0", self.machine.run(env=env).out)

    def test_a_device_that_gives_no_context_says_nothing_of_the_kinds(self):
        self.make_ready()
        for env in ({"VMMSHARE_HOST_COMPUTE_MODE": "prohibited"}, LeavesNothing.NO_CONTEXT):
            env = {**self.ready_env, **env}
            result = self.machine.run("--json", "--touch", env=env)
            for kind in ("fd", "fabric"):
                self.assertFalse(result.kind(kind)["usable"])
                self.assertEqual(result.reasons(kind), ["no-context-to-try"], kind)
            self.assertEqual(result.reasons("nt"), [])
            text = self.machine.flowing("--touch", env=env)
            self.assertNotIn("nvidia-imex-ctl", text)
            # Without a context there is nothing to complain of.
            self.assertEqual(self.machine.run("--json", env=env).reasons(), [])
        env = {"VMMSHARE_HOST_FAIL": "cuDevicePrimaryCtxRetain:1+:OUT_OF_MEMORY"}
        result = self.machine.run("--json", "--touch", env={**self.ready_env, **env})
        for kind in ("fd", "fabric"):
            self.assertEqual(result.reasons(kind), ["out-of-memory"], kind)

    def test_no_memory_says_nothing_of_the_kind(self):
        result = self.machine.run("--json", env={"VMMSHARE_HOST_MEMORY": "1M"})
        self.assertEqual(result.reasons("fd"), ["out-of-memory"])
        # nvidia-smi names only who has a context.
        self.assertIn("vmmshare keep --list", result.kind("fd")["reasons"][0]["remedy"])


class Fabric(DoctorTest):
    def usable(self):
        """Whether it works on both devices; there is a reason if not."""
        result = self.machine.run("--json", "--require=fabric", env=self.ready_env)
        usable = {result.kind("fabric", d)["usable"] for d in (0, 1)}
        self.assertEqual(len(usable), 1)
        self.assertEqual(result.status, 0 if usable == {True} else 1, result.err)
        return result.reasons() or usable == {True}

    def test_it_is_usable_where_nothing_is_missing(self):
        self.make_ready()
        for words in ([], ["--touch"]):
            result = self.machine.run("--json", "--require=fabric", *words, env=self.ready_env)
            self.assertEqual(result.status, 0, result.err)
            for device in (0, 1):
                kind = result.kind("fabric", device)
                self.assertEqual((kind["attribute"], kind["tried"], kind["usable"]),
                                 (True, True, True))
                self.assertEqual((kind["error"], kind["reasons"]), (None, []))
                self.assertTrue(result.kind("fd", device)["usable"])
        text = " ".join(self.machine.run("--touch", env=self.ready_env).out.split())
        self.assertIn("fabric handle usable attribute yes; created, exported, imported, mapped,"
                      " written and read", text)

    def test_each_remedy_that_is_followed_leads_to_the_next_and_to_the_end(self):
        self.assertEqual(self.usable(), ["no-imex-class"])
        self.machine.offer_channels(242)
        self.assertEqual(self.usable(), ["no-channel"])
        major = self.machine.make_channel()
        self.assertEqual(self.usable(), ["channel-stale"])
        self.machine.offer_channels(major)
        self.assertEqual(self.usable(), ["no-daemon"])
        self.machine.start_daemon()
        self.assertIs(self.usable(), True)

    def test_a_daemon_that_dies_is_noticed_and_so_is_a_new_one(self):
        self.make_ready()
        self.assertIs(self.usable(), True)
        self.machine.kill_daemon()
        self.assertEqual(self.usable(), ["no-daemon"])
        self.machine.start_daemon()
        self.assertIs(self.usable(), True)


class NvmlTroubles(DoctorTest):
    def expect_unknown(self, code, *words, env=None):
        self.make_ready()
        result = self.machine.run("--json", *words, env=env)
        self.assertEqual(result.status, 0, result.err)
        self.assertEqual(result.json["devices"][0]["fabric"]["error"]["code"], code)
        self.assertNotIn("state", result.json["devices"][0]["fabric"])
        # CUDA and the file system still speak.
        self.assertTrue(result.kind("fd")["usable"])
        self.assertTrue(result.json["imex"]["channels"][0]["usable"])
        self.assertTrue(result.json["pairs"][0]["access_ab"])
        return result

    def expect_no_nvml(self, code, *words, env=None):
        result = self.expect_unknown(code, *words, env=env)
        self.assertEqual(result.json["nvml"]["error"]["code"], code)
        self.assertIn("no-nvml", result.notes())
        self.assertIsNone(result.json["pairs"][0]["nvlink"])
        self.assertIsNone(result.json["devices"][0]["mig_mode"])
        text = self.machine.run(*words, env=env).out
        self.assertIn("cannot be asked (see notes)", text)
        self.assertIn("[no-nvml]", text)

    def test_a_missing_library(self):
        self.expect_no_nvml("NOT_FOUND", "--nvml=/nowhere/libnvidia-ml.so.1")

    def test_a_library_that_is_none(self):
        maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        libc = next(line.split()[-1] for line in maps if re.search(r"/libc[.-]", line))
        self.expect_no_nvml("UNIMPLEMENTED", f"--nvml={libc}")

    def test_a_kernel_module_that_is_not_loaded(self):
        self.expect_no_nvml("FAILED_PRECONDITION",
                            env={"VMMSHARE_HOST_NVML_FAIL": "nvmlInit_v2:9"})

    def without_nvml(self, **env):
        env = {**self.ready_env, "VMMSHARE_HOST_NVML_FAIL": "nvmlInit_v2:9", **env}
        result = self.machine.run("--json", env=env)
        self.assertEqual(result.status, 0, result.err)
        self.assertEqual(result.json["nvml"]["error"]["code"], "FAILED_PRECONDITION")
        self.assertIsNone(result.json["devices"][0]["mig_mode"])
        text = " ".join(self.machine.run(env=env).out.split())
        note, = [note for note in result.json["notes"] if note["id"] == "no-nvml"]
        return result, result.json["devices"][0]["fabric"], note, text

    def test_a_newer_driver_names_cluster_and_clique_in_its_place(self):
        self.make_ready()
        for version in ("13.4", "13.5"):
            result, fabric, note, text = self.without_nvml(VMMSHARE_HOST_VERSION=version)
            self.assertEqual(fabric, {
                "error": None, "source": "driver", "state": None, "status": None,
                "status_text": None, "cluster": CLUSTER, "clique": 7, "health_mask": None})
            self.assertTrue(result.json["pairs"][0]["one_fabric_domain"])
            self.assertIn(f"fabric cluster {CLUSTER}, clique 7, says the CUDA driver", text)
            self.assertIn("all but cluster and clique", note["remedy"])

    def test_two_domains_are_seen_without_it(self):
        self.make_ready()
        result, _, _, _ = self.without_nvml(VMMSHARE_HOST_VERSION="13.4",
                                            VMMSHARE_HOST_FABRIC_CLIQUE="7,8")
        self.assertFalse(result.json["pairs"][0]["one_fabric_domain"])
        self.assertIn("two-domains", result.notes())

    def test_an_older_driver_cannot_and_the_note_says_so(self):
        self.make_ready()
        result, fabric, note, text = self.without_nvml(VMMSHARE_HOST_VERSION="13.3")
        self.assertEqual(fabric["error"]["code"], "FAILED_PRECONDITION")
        self.assertIsNone(result.json["pairs"][0]["one_fabric_domain"])
        for where in (note["text"], text):
            self.assertIn("the CUDA driver says nothing either", where)
            self.assertIn("cuDeviceGetFabricClusterUuid", where)
            self.assertIn("13.4", where)
        self.assertNotIn("clique 7", text)

    def test_a_newer_driver_that_answers_otherwise_harms_nothing(self):
        self.make_ready()
        for entry in ("cuDeviceGetFabricClusterUuid", "cuDeviceGetCliqueCount",
                      "cuDeviceGetCliqueInfo"):
            _, fabric, note, _ = self.without_nvml(
                VMMSHARE_HOST_VERSION="13.4", VMMSHARE_HOST_FAIL=f"{entry}:1+:NOT_SUPPORTED")
            self.assertEqual(fabric["error"]["code"], "FAILED_PRECONDITION")
            self.assertIn(entry, note["text"])

    def test_with_nvml_the_driver_is_not_asked(self):
        self.make_ready()
        result = self.machine.run("--json", env={**self.ready_env, "VMMSHARE_HOST_VERSION": "13.4"})
        fabric = result.json["devices"][0]["fabric"]
        self.assertEqual((fabric["source"], fabric["state"]), ("nvml", "completed"))

    def test_a_gpu_that_it_does_not_know(self):
        self.expect_unknown("NOT_FOUND",
                            env={"VMMSHARE_HOST_NVML_FAIL": "nvmlDeviceGetHandleByUUID:6"})

    def test_a_question_that_it_refuses(self):
        self.expect_unknown("PERMISSION_DENIED",
                            env={"VMMSHARE_HOST_NVML_FAIL": "nvmlDeviceGetGpuFabricInfoV:4"})

    def test_an_environment_that_makes_no_sense_is_named(self):
        for name, value in (("VMMSHARE_HOST_FABRIC_STATE", "done"),
                            ("VMMSHARE_HOST_FABRIC_STATUS", "-1"),
                            ("VMMSHARE_HOST_FABRIC_CLUSTER", CLUSTER[:-1]),
                            ("VMMSHARE_HOST_FABRIC_CLIQUE", "x"),
                            ("VMMSHARE_HOST_MIG", "yes"),
                            ("VMMSHARE_HOST_NODE", "a/b"),
                            ("VMMSHARE_HOST_FABRIC_GRANULARITY", "3M"),
                            ("VMMSHARE_HOST_NVML_FAIL", "nvmlInit_v2")):
            result = self.machine.run(env={name: value})
            self.assertEqual(result.status, 1, name)
            self.assertIn(f"the environment has {name}={value}; expected", result.err)

    def test_an_answer_it_never_gave_before(self):
        self.expect_unknown("INTERNAL",
                            env={"VMMSHARE_HOST_NVML_FAIL": "nvmlDeviceGetGpuFabricInfoV:999"})


class NotesTest(DoctorTest):
    def test_a_channel_that_every_user_may_open(self):
        self.make_ready(mode=0o606)
        result = self.machine.run("--json")
        self.assertIn("channel-world-writable", result.notes())
        self.assertTrue(result.json["imex"]["channels"][0]["world_writable"])
        self.assertIn("mode 0606", self.machine.run().out)

    def test_a_channel_that_a_user_and_a_group_may_open_is_none(self):
        self.make_ready(mode=0o660)
        result = self.machine.run("--json")
        self.assertNotIn("channel-world-writable", result.notes())
        self.assertFalse(result.json["imex"]["channels"][0]["world_writable"])

    def test_devices_of_two_domains(self):
        for env in ({"VMMSHARE_HOST_FABRIC_CLUSTER": f"{CLUSTER},{OTHER}"},
                    {"VMMSHARE_HOST_FABRIC_CLUSTER": CLUSTER,
                     "VMMSHARE_HOST_FABRIC_CLIQUE": "1,2"}):
            result = self.machine.run("--json", env=env)
            self.assertIn("two-domains", result.notes())
            self.assertIs(result.json["pairs"][0]["one_fabric_domain"], False)
        result = self.machine.run("--json", env=self.ready_env)
        self.assertNotIn("two-domains", result.notes())
        self.assertIs(result.json["pairs"][0]["one_fabric_domain"], True)

    def test_links_below_their_bandwidth(self):
        env = {"VMMSHARE_HOST_FABRIC_HEALTH": "2,1", "VMMSHARE_HOST_DEVICES": "2"}
        notes = [n for n in self.machine.run("--json", env=env).json["notes"]
                 if n["id"] == "links-degraded"]
        self.assertEqual(len(notes), 1)

    def test_few_descriptors(self):
        result = self.machine.run("--json", preexec=few_descriptors)
        self.assertIn("few-descriptors", result.notes())
        limits = result.json["limits"]
        self.assertEqual((limits["descriptors_soft"], limits["descriptors_hard"]), (256, 512))
        # What it says to do is a command of any shell.
        note, = [n for n in result.json["notes"] if n["id"] == "few-descriptors"]
        command = note["remedy"].split("`")[1]
        done = subprocess.run(["sh", "-c", command + " && ulimit -n"], text=True,
                              capture_output=True, preexec_fn=few_descriptors)
        self.assertEqual((done.returncode, done.stdout), (0, "512\n"), done.stderr)

    def test_few_descriptors_of_which_root_alone_can_give_more(self):
        result = self.machine.run("--json", preexec=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (256, 256)))
        note, = [n for n in result.json["notes"] if n["id"] == "few-descriptors"]
        self.assertIn("a process may have 256 descriptors open", note["text"])
        self.assertIn("LimitNOFILE in a systemd unit", note["remedy"])

    def test_that_no_thread_can_be_started(self):
        if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 34):
            self.skipTest("this C library starts threads without clone3()")
        result = self.machine.run("--json", preexec=without_clone3)
        notes = {note["id"]: note["text"] for note in result.json["notes"]}
        self.assertIn("refuses clone3()", notes.get("no-threads", ""))
        self.assertNotIn("no-threads", self.machine.run("--json").notes())

    def test_a_system_that_gives_no_reference_to_a_process(self):
        result = self.machine.run("--json", preexec=without_pidfd)
        self.assertIs(result.json["limits"]["process_reference"], False)
        self.assertIn("no-process-reference", result.notes())
        self.assertIn("peers' death cannot be watched before Linux 6.5: ", self.machine.flowing(preexec=without_pidfd))
        self.assertNotIn("no-process-reference", self.machine.run("--json").notes())

    def test_the_folder_for_sockets(self):
        folder = self.machine.run("--json").json["limits"]["socket_folder"]
        self.assertTrue(os.path.isdir(folder), folder)
        self.assertIn(f" in {folder} ", self.machine.flowing())
        for variable in ("NVIDIA_DRA_LOCAL_IPC_DIR", "XDG_RUNTIME_DIR"):
            env = {variable: "/nowhere"}
            result = self.machine.run("--json", env=env)
            self.assertIsNone(result.json["limits"]["socket_folder"])
            note, = [n for n in result.json["notes"] if n["id"] == "socket-folder"]
            self.assertIn(f"the folder that {variable} names", note["text"])
            self.assertIn("/nowhere", note["text"])
            self.assertIn("NVIDIA_DRA_LOCAL_IPC_DIR", note["remedy"])
        self.assertNotIn("socket-folder", self.machine.run("--json").notes())

    def expect_no_socket_in(self, folder, *says, **how):
        env = {"NVIDIA_DRA_LOCAL_IPC_DIR": str(folder)}
        result = self.machine.run("--json", env=env, **how)
        self.assertEqual(result.status, 0, result.err)
        self.assertIsNone(result.json["limits"]["socket_folder"])
        note, = [n for n in result.json["notes"] if n["id"] == "socket-folder"]
        for text in (str(folder), *says):
            self.assertIn(text, note["text"])
        self.assertIn("Who only opens may have it read-only", note["remedy"])

    def test_a_folder_in_which_no_socket_can_be_made(self):
        folder = self.machine.root / ("long" * 25)
        folder.mkdir(mode=0o700)
        self.expect_no_socket_in(folder, "use a directory with a shorter path")
        folder = self.machine.root / "mine"
        folder.mkdir(mode=0o500)
        self.expect_no_socket_in(folder, "bind(", "mode, 0500, keeps this user out: run chmod u+rwx",
                                 preexec=without_override)
        folder.chmod(0o700)
        result = self.machine.run("--json", env={"NVIDIA_DRA_LOCAL_IPC_DIR": str(folder)})
        self.assertEqual(result.json["limits"]["socket_folder"], str(folder))
        self.assertNotIn("socket-folder", result.notes())
        self.assertEqual(os.listdir(folder), [])  # What was tried is gone.

    def test_a_user_who_stands_for_all_unknown_ones(self):
        self.assertNotIn("unknown-user", self.machine.run("--json").notes())
        namespace = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        if not shutil.which("unshare"):
            self.skipTest("needs unshare")
        tried = subprocess.run([*namespace, "true"], text=True, capture_output=True, timeout=60)
        if tried.returncode != 0:
            self.skipTest(f"no user namespace is allowed here: {tried.stderr.strip()}")
        result = self.machine.run(
            "--json", prefix=namespace,
            env={"NVIDIA_DRA_LOCAL_IPC_DIR": str(self.machine.root)})
        self.assertEqual(result.status, 0, result.err)
        note, = [n for n in result.json["notes"] if n["id"] == "unknown-user"]
        self.assertIn("this process is user 65534, which stands for every user", note["text"])
        self.assertIn("another user than 65534", note["remedy"])

    def test_the_longest_name_of_a_host_is_read(self):
        longest = "h" * 64
        namespace = ["unshare", "--user", "--map-root-user", "--uts", sys.executable, "-c",
                     "import os, socket, sys; socket.sethostname(sys.argv[1]);"
                     " os.execvp(sys.argv[2], sys.argv[2:])", longest]
        if not shutil.which("unshare"):
            self.skipTest("needs unshare")
        tried = subprocess.run([*namespace, "uname", "-n"], text=True, capture_output=True, timeout=60)
        if tried.returncode != 0:
            self.skipTest(f"no host can be named here: {tried.stderr.strip()}")
        self.assertEqual(tried.stdout, longest + "\n")
        result = self.machine.run(
            "--json", prefix=namespace, env={"NVIDIA_DRA_LOCAL_IPC_DIR": str(self.machine.root)})
        self.assertIs(result.json["limits"]["boot_id"], True, result.err)
        self.assertNotIn("no-boot-id", result.notes())

    def test_wsl2(self):
        self.machine.write("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
        result = self.machine.run("--json")
        self.assertIs(result.json["limits"]["wsl2"], True)
        self.assertIn("wsl2", result.notes())

    def test_mps(self):
        result = self.machine.run("--json")
        limits = result.json["limits"]
        self.assertEqual((limits["mps_directory"], limits["mps_socket"], limits["mps_process"]),
                         ("/tmp/nvidia-mps", False, None))
        self.assertEqual([d["mps_client"] for d in result.json["devices"]], [False, False])
        self.assertFalse({"mps-client", "mps-not-a-client"} & set(result.notes()))
        self.assertIn("no control daemon: no socket in /tmp/nvidia-mps", self.machine.flowing())

        self.machine.write("run/mine/control", "")
        self.machine.write("run/mine/nvidia-cuda-mps-control.pid", "4711\n")
        env = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mine"}
        limits = self.machine.run("--json", env=env).json["limits"]
        self.assertEqual((limits["mps_directory"], limits["mps_socket"], limits["mps_process"]),
                         ("/run/mine", True, None))
        self.assertIn("its process is not seen", self.machine.flowing(env=env))

        self.machine.write("proc/4711/comm", "nvidia-cuda-mps\n")
        result = self.machine.run("--json", env=env)
        self.assertEqual(result.json["limits"]["mps_process"], 4711)
        self.assertIn("mps-not-a-client", result.notes())
        self.assertIn("its control daemon runs, process 4711, with its pipes in /run/mine",
                      self.machine.flowing(env=env))

        env["VMMSHARE_HOST_MPS"] = "1"
        result = self.machine.run("--json", env=env)
        self.assertEqual([d["mps_client"] for d in result.json["devices"]], [True, True])
        self.assertIn("mps-client", result.notes())
        self.assertNotIn("mps-not-a-client", result.notes())
        self.assertIn("this process is a client", self.machine.flowing(env=env))

    def test_looking_for_mps_changes_nothing(self):
        self.machine.write("tmp/nvidia-mps/control", "")
        before = sorted(str(p) for p in self.machine.root.rglob("*"))
        self.machine.run("--json")
        self.assertEqual(sorted(str(p) for p in self.machine.root.rglob("*")), before)

    def test_a_container_is_recognised(self):
        self.assertIs(self.machine.run("--json").json["limits"]["in_container"], False)
        self.machine.write("proc/self/cgroup", "0::/kubepods.slice/pod1\n")
        limits = self.machine.run("--json").json["limits"]
        self.assertEqual(limits["container_mark"], "/proc/self/cgroup names kubepods")
        self.machine.write(".dockerenv", "")
        limits = self.machine.run("--json").json["limits"]
        self.assertEqual(limits["container_mark"], "/.dockerenv exists")

    def test_ptrace_is_not_known_without_proc(self):
        self.assertEqual(self.machine.run("--json").json["limits"]["ptrace_scope"], 0)
        shutil.rmtree(self.machine.root / "proc/sys")
        self.assertIsNone(self.machine.run("--json").json["limits"]["ptrace_scope"])
        self.assertIn("ptrace scope unknown: ", self.machine.flowing())

    def test_ptrace_is_said_to_be_no_matter(self):
        self.machine.write("proc/sys/kernel/yama/ptrace_scope", "2\n")
        self.assertEqual(self.machine.run("--json").json["limits"]["ptrace_scope"], 2)
        self.assertIn("vmmshare sends descriptors", self.machine.run().out)

    def test_visible_devices(self):
        self.assertIsNone(self.machine.run("--json").json["limits"]["cuda_visible_devices"])
        result = self.machine.run("--json", env={"CUDA_VISIBLE_DEVICES": "1"})
        self.assertEqual(result.json["limits"]["cuda_visible_devices"], "1")
        self.assertEqual([d["name"] for d in result.json["devices"]],
                         ["vmmshare host-memory device 1"])
        self.assertEqual(result.json["devices"][0]["fabric"]["error"], None)


class Pairs(DoctorTest):
    def test_peers(self):
        pair = self.machine.run("--json").json["pairs"]
        self.assertEqual(pair, [{"a": 0, "b": 1, "access_ab": True, "access_ba": True,
                                 "atomics_ab": True, "atomics_ba": True, "performance_rank": 0,
                                 "nvlink": True, "one_fabric_domain": True}])

    def test_devices_that_are_no_peers(self):
        env = {"VMMSHARE_HOST_PEERS": "none"}
        pair = self.machine.run("--json", env=env).json["pairs"][0]
        for key in ("access_ab", "access_ba", "atomics_ab", "atomics_ba", "nvlink"):
            self.assertIs(pair[key], False, key)
        self.assertIn("no peer access, no atomics, no NVLink", self.machine.run(env=env).out)

    def test_a_link_that_nvml_does_not_tell(self):
        env = {"VMMSHARE_HOST_NVML_FAIL": "nvmlDeviceGetP2PStatus:999"}
        pair = self.machine.run("--json", env=env).json["pairs"][0]
        self.assertIsNone(pair["nvlink"])
        self.assertIs(pair["access_ab"], True)
        self.assertIn("NVLink unknown (nvmlDeviceGetP2PStatus", self.machine.flowing(env=env))

    def test_each_pair_once(self):
        env = {"VMMSHARE_HOST_DEVICES": "3", "VMMSHARE_HOST_PEERS": "0-2"}
        pairs = self.machine.run("--json", env=env).json["pairs"]
        self.assertEqual([(p["a"], p["b"], p["access_ab"]) for p in pairs],
                         [(0, 1, False), (0, 2, True), (1, 2, False)])

    def test_one_device_has_none(self):
        env = {"VMMSHARE_HOST_DEVICES": "1"}
        self.assertEqual(self.machine.run("--json", env=env).json["pairs"], [])
        self.assertNotIn("pairs of devices", self.machine.run(env=env).out)


class ExitStatus(DoctorTest):
    def run_plain(self, *words):
        done = subprocess.run([TOOL, *words], capture_output=True, text=True, check=False,
                              env=self.machine.environment({}), timeout=60)
        return done.returncode, done.stdout, done.stderr

    def test_the_environment_names_the_host_memory_driver(self):
        described = self.machine.run("--json", env={"VMMSHARE_HOSTDRIVER": ""}).json["driver"]
        self.assertIsNone(described["error"])
        result = self.machine.run("--json", env={"VMMSHARE_HOSTDRIVER": "/nowhere/host.so"})
        self.assertEqual(result.status, 1)
        self.assertIn("/nowhere/host.so", result.json["driver"]["error"]["message"])
        self.assertIn("/nowhere/host.so", result.err)
        self.assertIn("VMMSHARE_HOSTDRIVER names this file; unset it", result.err)
        # Of what is wrong with another variable, or with the devices, the file is not the cause.
        path = described["description"].split(", from ")[1]
        for env in ({"VMMSHARE_HOST_MIG": "yes"}, {"CUDA_VISIBLE_DEVICES": ""}):
            result = self.machine.run(env={"VMMSHARE_HOSTDRIVER": path, **env})
            self.assertEqual(result.status, 1)
            self.assertIn(f"--driver=host and VMMSHARE_HOSTDRIVER: {path}"
                          if "VMMSHARE_HOST_MIG" in env else f"of {path} answered", result.err)
            self.assertNotIn("names this file", result.err)

    def test_require(self):
        for kind, status in (("fd", 0), ("fabric", 1), ("nt", 1)):
            for words in ([f"--require={kind}"], ["--require", kind]):
                result = self.machine.run(*words, "--json")
                self.assertEqual(result.status, status, words)
                self.assertEqual(result.json["exit_code"], status)
                self.assertEqual(result.json["required"], kind)
        self.assertIn("works on no device; it is required",
                      self.machine.run("--require=nt").out)

    def expect_no_peer(self, note, **how):
        for kind, status in (("fd", 1), ("fabric", 0)):
            result = self.machine.run(f"--require={kind}", "--json", **how)
            self.assertEqual((result.status, result.json["exit_code"]), (status, status), kind)
            self.assertIn(note, result.notes())
        self.assertIn(f"works on every device, and reaches no peer: see the note {note}; it is required",
                      self.machine.flowing("--require=fd", **how))
        self.assertEqual(self.machine.run(**how).status, 0)

    def test_descriptors_that_reach_no_peer_are_not_what_is_required(self):
        self.make_ready()
        env = {**self.ready_env, "NVIDIA_DRA_LOCAL_IPC_DIR": "/no/where"}
        self.expect_no_peer("socket-folder", env=env)
        if not shutil.which("unshare"):
            self.skipTest("needs unshare")
        masked = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                  'mount --bind /dev/null /proc/sys/kernel/random/boot_id && exec "$@"', "sh"]
        tried = subprocess.run([*masked, "true"], text=True, capture_output=True, timeout=60)
        if tried.returncode != 0:
            self.skipTest(f"the boot id cannot be masked here: {tried.stderr.strip()}")
        env["NVIDIA_DRA_LOCAL_IPC_DIR"] = str(self.machine.root)
        self.expect_no_peer("no-boot-id", env=env, prefix=masked)
        self.expect_no_peer("unknown-user", env=env,
                            prefix=["unshare", "--user", "--map-user=65534", "--map-group=65534"])

    def test_a_job_without_a_launcher_is_1(self):
        result = self.machine.run("--job", env={"PMIX_NAMESPACE": ""})
        self.assertEqual((result.status, result.out), (1, ""))
        self.assertIn("vmmshare: error: no launcher offers PMIx", result.err)
        result = self.machine.run("--job", "--json", "--require=fd", env={"PMIX_NAMESPACE": ""})
        self.assertEqual((result.status, result.json["exit_code"]), (1, 1))
        self.assertIn("vmmshare: error: no launcher offers PMIx", result.err)
        self.assertEqual(result.json["schema"], "vmmshare-doctor-job/1")
        self.assertEqual(result.json["error"]["code"], "FAILED_PRECONDITION")
        self.assertIn("no launcher offers PMIx", result.json["error"]["message"])
        self.assertEqual(result.json["verdict"], result.json["error"])
        self.assertEqual((result.json["ranks"], result.json["pairs"]), ([], []))
        self.assertEqual((result.json["job"], result.json["required"]), (None, "fd"))

    def test_misuse_is_2_and_says_what_was_expected(self):
        for words, expected in (
                ([], "a command is missing"),
                (["doctr"], "expected doctor"),
                (["--version", "x"], "unexpected word"),
                (["doctor", "x"], "unexpected word"),
                (["doctor", "--colour"], "expected --require"),
                (["doctor", "--json=1"], "takes no value"),
                (["doctor", "--require"], "needs a value"),
                (["doctor", "--root="], "needs a value"),
                (["doctor", "--root=/no/where"], "--root=/no/where: there is no such folder"),
                (["doctor", "--job", "--root", TOOL], "there is no such folder"),
                (["doctor", "--require=fdd"], "expected fd, nt or fabric")):
            status, out, err = self.run_plain(*words)
            self.assertEqual((status, out), (2, ""), words)
            self.assertIn(expected, err)
            self.assertIn("--help", err)

    def test_output_that_cannot_be_written_is_an_error(self):
        for words in (["--version"], ["--help"], ["doctor", "--help"], ["keep", "--help"],
                      ["doctor"]):
            for where in (">/dev/full", ">&-", "<&- >&-"):
                done = subprocess.run(["sh", "-c", f'"$0" "$@" {where}', TOOL, *words],
                                      capture_output=True, text=True, check=False, timeout=60,
                                      env=self.machine.environment({}))
                self.assertEqual(done.returncode, 1, (words, where, done.stderr))
                self.assertIn("could not be written", done.stderr, (words, where))

    def test_a_short_question_for_help(self):
        for command in ([], ["doctor"], ["keep"]):
            with self.subTest(command=command):
                self.assertEqual(self.run_plain(*command, "-h"), self.run_plain(*command, "--help"))

    def test_help_and_version(self):
        for words, expected in ((["--help"], "doctor"), (["doctor", "--help"], "--require=KIND"),
                                (["--version"], "vmmshare 0.")):
            status, out, err = self.run_plain(*words)
            self.assertEqual((status, err), (0, ""))
            self.assertIn(expected, out)
            self.assertLessEqual(max(map(len, out.splitlines())), 80)


class NoDriver(DoctorTest):
    MISSING = "/nowhere/libcuda.so.1"

    def test_is_said_with_what_to_do(self):
        result = self.machine.run(driver=self.MISSING)
        self.assertEqual(result.status, 1)
        self.assertTrue(result.out.startswith("driver:         none: "), result.out)
        self.assertIn("vmmshare: error: no driver: ", result.err)
        self.assertIn("modprobe nvidia", result.out)
        self.assertIn("IMEX", result.out)

    def test_is_said_in_json(self):
        self.machine.write("dev/nvidiactl", "")
        result = self.machine.run("--json", driver=self.MISSING)
        self.assertEqual((result.status, result.json["exit_code"]), (1, 1))
        self.assertEqual(result.json["driver"]["error"]["code"], "NOT_FOUND")
        self.assertEqual(result.json["devices"], [])
        self.assertIn("library-missing", result.notes())

    def test_wsl2_has_its_driver_of_windows(self):
        self.machine.write("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
        result = self.machine.run("--json", driver=self.MISSING)
        self.assertEqual(result.status, 1)
        self.assertNotIn("module-missing", result.notes())
        note, = [n for n in result.json["notes"] if n["id"] == "wsl2-no-gpu"]
        self.assertIn("driver on Windows", note["remedy"])
        self.assertNotIn("modprobe", self.machine.flowing(driver=self.MISSING))
        self.machine.write("dev/dxg", "")
        notes = self.machine.run("--json", driver=self.MISSING).notes()
        self.assertFalse({"module-missing", "wsl2-no-gpu", "library-missing"} & set(notes), notes)

    def test_a_relative_path_is_no_driver(self):
        result = self.machine.run("--json", driver="libcuda.so.1")
        self.assertEqual(result.json["driver"]["error"]["code"], "INVALID_ARGUMENT")

    def test_no_visible_device_is_said(self):
        result = self.machine.run("--json", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(result.status, 1)
        self.assertEqual(result.json["driver"]["error"]["cuda_result"], 100)
        self.assertIn("CUDA_VISIBLE_DEVICES", result.json["driver"]["error"]["message"])

    def test_a_library_that_answered_is_not_missing(self):
        path = self.machine.run("--json").json["driver"]["description"].split(", from ")[1]
        env = {"VMMSHARE_HOST_FAIL": "cuInit:1+:SYSTEM_NOT_READY"}
        result = self.machine.run("--json", driver=path, env=env)
        self.assertEqual(result.json["driver"]["error"]["cuda_result"], 802)
        self.assertIn("nvidia-fabricmanager", result.json["driver"]["error"]["message"])
        self.assertIn("module-missing", result.notes())
        self.machine.write("dev/nvidiactl", "")
        result = self.machine.run("--json", driver=path, env=env)
        self.assertEqual(result.json["driver"]["error"]["cuda_result"], 802)
        self.assertNotIn("library-missing", result.notes())
        self.assertNotIn("module-missing", result.notes())

    def test_the_host_memory_driver_lacks_nothing_of_nvidia(self):
        for env in ({"CUDA_VISIBLE_DEVICES": "-1"}, {"VMMSHARE_HOST_FAIL": "cuInit:1+:UNKNOWN"}):
            result = self.machine.run("--json", env=env)
            self.assertEqual(result.status, 1)
            self.assertNotIn("module-missing", result.notes())
            self.assertNotIn("library-missing", result.notes())

    def test_without_a_device_nothing_is_said_to_be_importable(self):
        said = ("memory of a hidden device can be imported by descriptor or NT handle, not by the"
                " other kinds")
        self.assertIn(said, self.machine.flowing(env={"CUDA_VISIBLE_DEVICES": "0"}))
        text = self.machine.flowing(env={"CUDA_VISIBLE_DEVICES": "-1"})
        self.assertIn('CUDA_VISIBLE_DEVICES="-1"', text)
        self.assertNotIn(said, text)


class Text(DoctorTest):
    def test_the_first_line_says_driver_and_version(self):
        first = self.machine.run().out.splitlines()[0]
        self.assertTrue(first.startswith("driver:         host-memory driver (no GPU), CUDA 13.0"))

    def test_fits_100_columns(self):
        self.machine.offer_channels(242)
        for line in self.machine.run().out.splitlines():
            # A path cannot be broken.
            if len(line.split()) > 1:
                self.assertLessEqual(len(line), 100, line)
            self.assertEqual(line, line.rstrip())

    def test_a_trouble_of_all_devices_is_told_once(self):
        env = {"VMMSHARE_HOST_DEVICES": "8"}
        text = self.machine.run(env=env).out
        self.assertEqual(text.count("[no-imex-class]"), 1)
        self.assertEqual(text.count("as on device 0"), 7)

    def test_has_colour_on_a_terminal_only(self):
        self.assertNotIn("\x1b", self.machine.run(env={"TERM": "xterm"}).out)
        self.assertIn("\x1b[32musable\x1b[0m", self.machine.run_on_terminal(env={"TERM": "xterm"}))
        for env in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
            text = self.machine.run_on_terminal(env=env)
            self.assertIn("usable", text)
            self.assertNotIn("\x1b", text)

    def test_what_others_named_cannot_command_the_terminal(self):
        self.machine.offer_channels(242)
        (self.machine.root / CHANNELS / "channel0\x1b]0;title\x07").mkdir(parents=True)
        env = {"CUDA_VISIBLE_DEVICES": "0,\x1b[2J\nfake line"}
        text = self.machine.run(env=env).out
        self.assertIn("channel0?]0;title?", text)
        self.assertIn("0,?[2J?fake", text)
        for line in text.splitlines():
            self.assertTrue(line.isprintable(), line)
        channel = self.machine.run("--json", env=env).json["imex"]["channels"][0]
        self.assertTrue(channel["path"].endswith("channel0\x1b]0;title\x07"))

    def test_json_has_no_colour_on_a_terminal(self):
        self.assertNotIn("\x1b", self.machine.run_on_terminal("--json", env={"TERM": "xterm"}))


class LegacyIpc(DoctorTest):
    def says(self, *words, env=None):
        return self.machine.run("--json", *words, env=env).json["devices"][0]["legacy_ipc"]

    def test_is_tried_where_there_may_be_a_context(self):
        self.assertEqual(self.says("--touch"), {"tried": True, "exported": True, "error": None})
        self.assertIn("legacy IPC handle exported only another process can open it",
                      self.machine.flowing("--touch"))
        self.assertEqual(self.says(), {"tried": False, "exported": None, "error": None})
        self.assertIn("legacy IPC handle - not tried: it takes a context", self.machine.flowing())

    def test_is_refused_with_the_drivers_words(self):
        env = {"VMMSHARE_HOST_FAIL": "cuIpcGetMemHandle:1+:NOT_SUPPORTED"}
        said = self.says("--touch", env=env)
        self.assertEqual((said["tried"], said["exported"], said["error"]["cuda_result"]),
                         (True, False, 801))
        text = self.machine.flowing("--touch", env=env)
        self.assertIn("legacy IPC handle refused", text)
        self.assertIn("cuIpcGetMemHandle", text)

    def remedy(self, *words, legacy):
        """Of memory that cannot be shared by descriptors."""
        rules = ["cuMemExportToShareableHandle:1+:NOT_SUPPORTED"]
        rules += [] if legacy else ["cuIpcGetMemHandle:1+:NOT_SUPPORTED"]
        result = self.machine.run("--json", *words, env={"VMMSHARE_HOST_FAIL": ";".join(rules)})
        return result.kind("fd")["reasons"][0]["remedy"]

    def test_is_named_as_a_remedy_only_where_it_may_be_one(self):
        self.assertIn("legacy=True", self.remedy(legacy=True))
        self.assertIn("legacy=True", self.remedy("--touch", legacy=True))
        self.assertNotIn("legacy=True", self.remedy("--touch", legacy=False))

    def test_a_device_that_gives_no_context(self):
        env = {"VMMSHARE_HOST_COMPUTE_MODE": "prohibited"}
        self.assertEqual(self.says("--touch", env=env),
                         {"tried": False, "exported": None, "error": None})
        result = self.machine.run("--json", "--touch", env=env)
        self.assertNotIn("legacy=True", result.kind("fd")["reasons"][0]["remedy"])


class NetworkCards(DoctorTest):
    def ways(self, env=None, device=0):
        """What is said of each way: whether it is usable, and the reasons."""
        result = self.machine.run("--json", "--touch", env=env)
        self.assertEqual(result.status, 0, result.err)
        self.assertTrue(result.kind("fd", device)["usable"])
        return {way["id"]: (way["usable"], [reason["id"] for reason in way["reasons"]])
                for way in result.json["devices"][device]["rdma"]}

    def test_what_works_is_said(self):
        good = (True, [])
        self.assertEqual(self.ways(), {"flag": good, "dma-buf": good, "dma-buf-pcie": good})
        text = self.machine.flowing("--touch")
        self.assertIn("RDMA flag usable attribute yes; memory made with it, and it has it", text)
        self.assertIn("dma-buf usable attribute yes; exported", text)

    def test_what_takes_a_context_is_not_tried_without_touch(self):
        flag, *others = self.machine.run("--json").json["devices"][0]["rdma"]
        self.assertEqual((flag["tried"], flag["usable"]), (True, True))
        for way in others:
            self.assertEqual((way["attribute"], way["tried"], way["usable"], way["error"]),
                             (True, False, None, None))
        self.assertIn("dma-buf - attribute yes; not tried: it takes a context, which --touch makes",
                      self.machine.flowing())

    def test_a_device_that_gives_no_context(self):
        for env in ({"VMMSHARE_HOST_COMPUTE_MODE": "prohibited"}, LeavesNothing.NO_CONTEXT):
            flag, *others = self.machine.run("--json", "--touch", env=env).json["devices"][0]["rdma"]
            self.assertTrue(flag["usable"])
            for way in others:
                self.assertEqual((way["usable"], [r["id"] for r in way["reasons"]]),
                                 (False, ["no-context-to-try"]))

    def test_no_descriptor_left_is_not_called_no_memory(self):
        env = {"VMMSHARE_HOST_FAIL": "cuMemGetHandleForAddressRange:1:OPERATING_SYSTEM"}
        self.assertEqual(self.ways(env)["dma-buf"], (False, ["no-dma-buf"]))

    def test_a_flag_that_is_refused_although_the_attribute_says_yes(self):
        for model in ("refused", "no-access", "forgotten"):
            env = {"VMMSHARE_HOST_RDMA": model}
            ways = self.ways(env)
            self.assertEqual(ways["flag"], (False, ["rdma-refused"]), model)
            self.assertEqual(ways["dma-buf"], (True, []), model)
            self.assertIn("[rdma-refused] to do: Let network cards use host memory",
                          self.machine.flowing(env=env))

    def test_a_device_without_the_flag(self):
        env = {"VMMSHARE_HOST_RDMA": "none"}
        self.assertEqual(self.ways(env)["flag"], (False, ["rdma-not-supported"]))
        self.assertIn("RDMA flag refused attribute no", self.machine.flowing(env=env))

    def test_no_dma_buf_and_whose_modules_are_to_blame(self):
        env = {"VMMSHARE_HOST_DMA_BUF": "0"}
        self.assertEqual(self.ways(env)["dma-buf"], (False, ["no-dma-buf"]))
        for kernel, reason, is_open in (
                ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n", "closed-modules", False),
                ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n", "no-dma-buf",
                 True)):
            self.machine.write("proc/driver/nvidia/version", kernel)
            ways = self.ways(env)
            self.assertEqual(ways["dma-buf"], (False, [reason]))
            self.assertEqual(ways["flag"], (True, []))
            limits = self.machine.run("--json", env=env).json["limits"]
            self.assertIs(limits["open_kernel_modules"], is_open)
        # Of two devices with one trouble it is said once.
        self.assertEqual(self.machine.flowing("--touch", env=env).count("[no-dma-buf]"), 1)

    def test_a_mapping_that_is_refused_leaves_the_other(self):
        # Of each device the second is with the mapping over PCIe. As on a H100.
        env = {"VMMSHARE_HOST_FAIL": "cuMemGetHandleForAddressRange:2:NOT_SUPPORTED"}
        ways = self.ways(env)
        self.assertEqual(ways["dma-buf"], (True, []))
        self.assertEqual(ways["dma-buf-pcie"], (False, ["no-pcie-mapping"]))
        self.assertEqual(self.ways(env, device=1)["dma-buf-pcie"], (True, []))

    def test_a_driver_that_is_too_old(self):
        ways = self.ways({"VMMSHARE_HOST_VERSION": "12.4"})
        self.assertEqual(ways["dma-buf"], (True, []))
        self.assertEqual(ways["dma-buf-pcie"], (False, ["dma-buf-not-known"]))

    def test_no_memory_says_nothing_of_network_cards(self):
        result = self.machine.run("--json", "--touch", env={"VMMSHARE_HOST_MEMORY": "1M"})
        for way in result.json["devices"][0]["rdma"]:
            self.assertEqual([r["id"] for r in way["reasons"]], ["out-of-memory"], way)
            self.assertIn("vmmshare keep --list", way["reasons"][0]["remedy"])

    def test_modules_are_named(self):
        self.assertIsNone(self.machine.run("--json").json["limits"]["rdma_modules"])
        self.assertIn("for network cards and disks is not seen: no /sys/module",
                      self.machine.flowing())
        (self.machine.root / "sys/module").mkdir(parents=True)
        self.assertEqual(self.machine.run("--json").json["limits"]["rdma_modules"], [])
        self.assertIn("the driver's are not seen; for network cards and disks none of",
                      self.machine.flowing())
        for name in ("gdrdrv", "nvidia_peermem", "nvme"):
            self.machine.write(f"sys/module/{name}/initstate", "live\n")
        limits = self.machine.run("--json").json["limits"]
        self.assertEqual(limits["rdma_modules"], ["nvidia_peermem", "gdrdrv"])
        self.assertIsNone(limits["open_kernel_modules"])
        self.assertIn("for network cards and disks nvidia_peermem, gdrdrv", self.machine.flowing())


class Modes(DoctorTest):
    def test_compute_modes(self):
        for mode, note in (("default", None), ("prohibited", "compute-prohibited"),
                           ("exclusive-process", "compute-exclusive")):
            result = self.machine.run("--json", env={"VMMSHARE_HOST_COMPUTE_MODE": mode})
            self.assertEqual([d["compute_mode"] for d in result.json["devices"]], [mode, mode])
            found = [n for n in result.notes() if n.startswith("compute-")]
            self.assertEqual(found, [note, note] if note else [])
            # Each of its own device, and not of every GPU of the machine.
            remedies = [n["remedy"] for n in result.json["notes"] if n["id"] == note]
            for device, remedy in zip(result.json["devices"], remedies):
                self.assertIn(f"nvidia-smi -i {device['uuid']} -c DEFAULT", remedy)
        for mode, text in (("exclusive-process", "EXCLUSIVE_PROCESS: one process at a time, or MPS"),
                           ("prohibited", "PROHIBITED: no process"),
                           ("default", "default: any number of processes")):
            self.assertIn(f"compute mode {text}",
                          self.machine.flowing(env={"VMMSHARE_HOST_COMPUTE_MODE": mode}))

    def test_what_a_prohibited_device_refuses_names_the_mode(self):
        result = self.machine.run("--json", "--touch",
                                  env={"VMMSHARE_HOST_COMPUTE_MODE": "prohibited"})
        error = result.kind("fd")["error"]
        self.assertEqual(error["cuda_result"], 46)
        uuid = result.json["devices"][0]["uuid"]
        self.assertIn(f"compute mode PROHIBITED; as root: nvidia-smi -i {uuid} -c DEFAULT",
                      error["message"])

    def test_confidential_computing(self):
        result = self.machine.run("--json")
        self.assertIs(result.json["nvml"]["confidential_computing"], False)
        self.assertNotIn("confidential-computing", result.notes())
        self.assertIn("conf. computing off", self.machine.flowing())
        env = {"VMMSHARE_HOST_CONFIDENTIAL": "1"}
        result = self.machine.run("--json", env=env)
        self.assertIs(result.json["nvml"]["confidential_computing"], True)
        self.assertIn("confidential-computing", result.notes())
        self.assertIs(result.json["pairs"][0]["access_ab"], False)
        self.assertIn("confidential computing is on", self.machine.flowing(env=env))

    def test_confidential_computing_that_nvml_does_not_tell(self):
        for code, known in ((3, False), (999, None)):
            env = {"VMMSHARE_HOST_NVML_FAIL": f"nvmlSystemGetConfComputeState:{code}"}
            result = self.machine.run("--json", env=env)
            self.assertIs(result.json["nvml"]["confidential_computing"], known)
            self.assertNotIn("confidential-computing", result.notes())

    def test_hardware_queues(self):
        self.assertIsNone(self.machine.run("--json").json["limits"]["cuda_device_max_connections"])
        self.assertIn("hardware queues 8, with MPS 2:", self.machine.flowing())
        env = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        limits = self.machine.run("--json", env=env).json["limits"]
        self.assertEqual(limits["cuda_device_max_connections"], "32")
        self.assertIn('hardware queues CUDA_DEVICE_MAX_CONNECTIONS="32"', self.machine.flowing(env=env))

    def test_limits_of_mps(self):
        limits = self.machine.run("--json").json["limits"]
        self.assertEqual((limits["mps_thread_percentage"], limits["mps_memory_limit"]), (None, None))
        self.assertNotIn("MPS limits", self.machine.flowing())
        env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
        result = self.machine.run("--json", env=env)
        limits = result.json["limits"]
        self.assertEqual((limits["mps_thread_percentage"], limits["mps_memory_limit"]), ("50", "0=1G"))
        self.assertIn("mps-limit-without-mps", result.notes())
        self.assertNotIn("mps-memory-limit", result.notes())
        self.assertIn("MPS limits threads 50 %, memory 0=1G", self.machine.flowing(env=env))
        env["VMMSHARE_HOST_MPS"] = "1"
        result = self.machine.run("--json", env=env)
        self.assertIn("mps-memory-limit", result.notes())
        self.assertNotIn("mps-limit-without-mps", result.notes())


class LeavesNothing(DoctorTest):
    NO_CONTEXT = {"VMMSHARE_HOST_FAIL": "cuDevicePrimaryCtxRetain:1+:UNKNOWN"}

    def test_behind(self):
        def files():
            own = sorted(str(p) for p in self.machine.root.rglob("*"))
            shared = [n for n in os.listdir("/dev/shm") if INSTANCE in n]
            return own, shared
        before = files()
        self.assertEqual(self.machine.run("--touch").status, 0)
        self.assertEqual(files(), before)

    def test_makes_no_context_unless_told_to_touch(self):
        result = self.machine.run("--json", env=self.NO_CONTEXT)
        self.assertTrue(result.kind("fd")["usable"])
        self.assertFalse(result.kind("fd")["touched"])
        result = self.machine.run("--json", "--touch", env=self.NO_CONTEXT)
        self.assertFalse(result.kind("fd")["usable"])
        self.assertIn("cuDevicePrimaryCtxRetain", result.kind("fd")["error"]["message"])

    def test_touching_writes_and_reads(self):
        result = self.machine.run("--json", "--touch")
        self.assertTrue(result.kind("fd")["usable"] and result.kind("fd")["touched"])
        result = self.machine.run("--json", "--touch",
                                  env={"VMMSHARE_HOST_FAIL":
                                       "cuMemcpyDtoHAsync:1:ILLEGAL_ADDRESS"})
        self.assertIn("cuMemcpyDtoHAsync", result.kind("fd")["error"]["message"])


class Documented(unittest.TestCase):
    """What the doctor can print, and what the documents say of it."""

    def test_every_finding_is_in_the_table_and_no_other(self):
        sources = "".join((SOURCES / name).read_text() for name in
                          ("fabric/channel_diagnosis.cc", "fabric/diagnosis.cc", "vmm/tool/examine.cc",
                           "vmm/tool/examine_rdma.cc", "vmm/tool/device_notes.cc",
                           "vmm/tool/system_notes.cc"))
        printed = set(re.findall(r'\{\s*"([a-z0-9]+(?:-[a-z0-9]+)*)",', sources))
        # What ranks say of each other, wherever it stands in a call.
        for name in ("fabric/job_card.h", "fabric/job_card.cc", "fabric/job_matrix.cc",
                     *(f"vmm/job/{part}.cc" for part in
                       ("handshake", "internal/offer", "internal/take_offer", "symmetric"))):
            printed |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+|private)"',
                                      (SOURCES / name).read_text()))
        documented = set()
        for name in ("docs/fabric.md", "docs/doctor.md"):
            for table in re.findall(r"^\| (?:reason|note) \|.*\n(?:\|.*\n)+",
                                    (SOURCES / name).read_text(), re.M):
                documented |= set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.M))
        self.assertGreater(len(printed), 20)
        self.assertEqual(printed, documented)

    def test_every_suite_of_this_file_is_run(self):
        here = pathlib.Path(__file__)
        suites = set(re.findall(r"^class (\w+)\(", here.read_text(), re.M)) - {"DoctorTest"}
        listed = (here.parent / "CMakeLists.txt").read_text().split("add_test(", 1)[0].split()
        self.assertGreater(len(suites), 10)
        self.assertEqual(suites - {word.strip(")") for word in listed}, set())

    def test_every_member_of_the_json_is_described(self):
        machine = Machine(TOOL)
        self.addCleanup(machine.close)
        machine.make_channel()
        names = set()

        def collect(value):
            if isinstance(value, dict):
                names.update(value)
                for member in value.values():
                    collect(member)
            elif isinstance(value, list):
                for item in value:
                    collect(item)
        collect(machine.run("--json").json)
        described = set(re.findall(r"`([a-z0-9_]+)`", (SOURCES / "docs/doctor.md").read_text()))
        self.assertGreater(len(names), 40)
        self.assertEqual(names - described, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
