#include "platform/os/surroundings.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "platform/os/machine.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;

class SurroundingsTest : public OsTest {
 protected:
  std::string root() const { return temp_.path(); }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = absl::StrCat(root(), "/", path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  TempDirectory temp_;
};

int DescriptorsOf(const std::vector<std::string>&) {
  const rlimit limit{123, 456};
  Check(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit() failed");
  const DescriptorLimits limits = Must(GetDescriptorLimits());
  EXPECT_EQ(limits.soft, 123u);
  EXPECT_EQ(limits.hard, 456u);
  return 0;
}
const bool kDescriptors = testing::RegisterChild("descriptors", &DescriptorsOf);

TEST_F(SurroundingsTest, DescriptorLimitsAreThoseOfTheProcess) {
  EXPECT_EQ(Child::Start("descriptors", {}).Wait(), 0);
}

TEST_F(SurroundingsTest, SharedMemorySpaceIsThatOfTheFileSystem) {
  EXPECT_TRUE(absl::IsNotFound(SharedMemorySpace(root()).status()));
  std::filesystem::create_directories(root() + "/dev/shm");
  const FileSpace space = Must(SharedMemorySpace(root()));
  const std::filesystem::space_info expected =
      std::filesystem::space(root() + "/dev/shm");
  EXPECT_EQ(space.total, expected.capacity);
  EXPECT_LE(space.free, space.total);
}

TEST_F(SurroundingsTest, TheDaemonOfMpsIsKnownByItsSocketAndItsProcess) {
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  MpsDaemon mps = Must(LookForMps(root()));
  EXPECT_EQ(mps.directory, "/tmp/nvidia-mps");
  EXPECT_FALSE(mps.has_socket);
  EXPECT_EQ(mps.process, 0);

  Write("tmp/nvidia-mps/control", "");
  Write("tmp/nvidia-mps/nvidia-cuda-mps-control.pid", "3597\n");
  mps = Must(LookForMps(root()));
  EXPECT_TRUE(mps.has_socket);
  EXPECT_EQ(mps.process, 0) << "no such process";
  Write("proc/3597/comm", "bash\n");
  EXPECT_EQ(Must(LookForMps(root())).process, 0) << "the number is another's";
  Write("proc/3597/comm", "nvidia-cuda-mps\n");
  EXPECT_EQ(Must(LookForMps(root())).process, 3597);

  for (const char* damaged : {"", "-1", "0", "3597x", "99999999999999999999"}) {
    Write("tmp/nvidia-mps/nvidia-cuda-mps-control.pid", damaged);
    EXPECT_EQ(Must(LookForMps(root())).process, 0) << damaged;
  }
}

TEST_F(SurroundingsTest, ModulesOfTheKernelAreKnownByWhatTheyLeave) {
  NvidiaModules modules = Must(LookForNvidiaModules(root()));
  EXPECT_EQ(modules.open, std::nullopt);
  EXPECT_EQ(modules.loaded, std::nullopt);
  std::filesystem::create_directories(root() + "/sys/module");
  EXPECT_THAT(Must(LookForNvidiaModules(root())).loaded,
              ::testing::Optional(::testing::IsEmpty()));

  Write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n");
  EXPECT_EQ(Must(LookForNvidiaModules(root())).open, false);
  Write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n");
  for (const char* name : {"gdrdrv", "nvidia_peermem", "nvidia_uvm"}) {
    Write(std::string("sys/module/") + name + "/initstate", "live\n");
  }
  modules = Must(LookForNvidiaModules(root()));
  EXPECT_EQ(modules.open, true);
  EXPECT_THAT(modules.loaded, ::testing::Optional(::testing::ElementsAre(
                                  "nvidia_peermem", "gdrdrv")));
}

TEST_F(SurroundingsTest, TheDaemonOfMpsIsLookedForWhereTheDriverLooks) {
  Write("run/mine/control", "");
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mine", /*overwrite=*/1);
  const absl::StatusOr<MpsDaemon> mps = LookForMps(root());
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "", /*overwrite=*/1);
  const absl::StatusOr<MpsDaemon> usual = LookForMps(root());
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  EXPECT_EQ(Must(mps).directory, "/run/mine");
  EXPECT_TRUE(Must(mps).has_socket);
  EXPECT_EQ(Must(usual).directory, "/tmp/nvidia-mps");
  EXPECT_FALSE(Must(usual).has_socket);
}

TEST_F(SurroundingsTest, AContainerIsKnownByItsMarks) {
  EXPECT_EQ(Must(ContainerMark(root())), "");
  Write("proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(Must(ContainerMark(root())), "");
  for (const char* word : {"docker", "kubepods", "libpod", "lxc"}) {
    Write("proc/self/cgroup", absl::StrCat("0::/", word, "/1\n"));
    EXPECT_THAT(Must(ContainerMark(root())), HasSubstr(word));
  }
  for (const char* file :
       {"/run/systemd/container", "/run/.containerenv", "/.dockerenv"}) {
    Write(file, "");
    EXPECT_EQ(Must(ContainerMark(root())), absl::StrCat(file, " exists"));
  }
}

TEST_F(SurroundingsTest, AContainerIsKnownByItsVariables) {
  for (const char* variable : {"KUBERNETES_SERVICE_HOST", "container"}) {
    ::setenv(variable, "", /*overwrite=*/1);
    EXPECT_EQ(Must(ContainerMark(root())), "");
    ::setenv(variable, "podman", /*overwrite=*/1);
    const std::string mark = Must(ContainerMark());
    // This process's variables say nothing of a machine that is made of files.
    EXPECT_EQ(Must(ContainerMark(root())), "");
    ::unsetenv(variable);
    // Where this runs in a container itself a file may have said so before.
    EXPECT_THAT(mark,
                ::testing::AnyOf(absl::StrCat("the environment has ", variable),
                                 ::testing::EndsWith(" exists")));
  }
}

// A link that leads nowhere else than to itself.
void MakeLoop(const std::string& path) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  std::filesystem::create_symlink(path, path);
}

TEST_F(SurroundingsTest, WhatCannotBeLookedAtIsAnErrorAndNotAbsent) {
  const std::string places[] = {"/.dockerenv",
                                "/proc/self/cgroup",
                                "/dev/nvidiactl",
                                "/tmp/nvidia-mps/control",
                                "/proc/driver/nvidia/version",
                                "/sys/module/nvidia_fs"};
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  for (const std::string& place : places) MakeLoop(root() + place);
  const auto expect_loop = [](const absl::Status& status,
                              const std::string& where) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(where + ")"));
  };
  const auto remove = [this](const std::string& place) {
    std::filesystem::remove(root() + place);
  };
  expect_loop(ContainerMark(root()).status(), places[0]);
  remove(places[0]);
  expect_loop(ContainerMark(root()).status(), places[1]);
  expect_loop(HasNvidiaControlNode(root()).status(), places[2]);
  expect_loop(LookForMps(root()).status(), places[3]);
  remove(places[3]);
  MakeLoop(root() + "/tmp/nvidia-mps/nvidia-cuda-mps-control.pid");
  expect_loop(LookForMps(root()).status(), "control.pid");
  expect_loop(LookForNvidiaModules(root()).status(), places[4]);
  remove(places[4]);
  expect_loop(LookForNvidiaModules(root()).status(), places[5]);
}

TEST_F(SurroundingsTest, BelowAFileThereIsNothing) {
  Write("dev", "a file");
  EXPECT_FALSE(Must(HasNvidiaControlNode(root())));
}

TEST_F(SurroundingsTest, Wsl2IsKnownByItsKernel) {
  EXPECT_TRUE(absl::IsNotFound(IsWsl2(root()).status()));
  Write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  EXPECT_FALSE(Must(IsWsl2(root())));
  Write("proc/sys/kernel/osrelease", "5.15.90.1-Microsoft-standard-WSL2\n");
  EXPECT_TRUE(Must(IsWsl2(root())));
}

TEST_F(SurroundingsTest, WithoutYamaTheKernelsOwnRuleHolds) {
  const absl::Status unseen = PtraceScope(root()).status();
  EXPECT_TRUE(absl::IsNotFound(unseen)) << unseen;
  EXPECT_THAT(std::string(unseen.message()), HasSubstr("mount /proc"));
  std::filesystem::create_directories(root() + "/proc/sys/kernel");
  EXPECT_EQ(Must(PtraceScope(root())), 0);
  Write("proc/sys/kernel/yama/ptrace_scope", "3\n");
  EXPECT_EQ(Must(PtraceScope(root())), 3);
  Write("proc/sys/kernel/yama/ptrace_scope", "many\n");
  EXPECT_THAT(std::string(PtraceScope(root()).status().message()),
              HasSubstr("many"));
}

TEST_F(SurroundingsTest, AMachineIsKnownByItsBoot) {
  const std::string file = "proc/sys/kernel/random/boot_id";
  const absl::Status without = ReadMachine(root()).status();
  EXPECT_TRUE(absl::IsNotFound(without)) << without;
  EXPECT_THAT(std::string(without.message()), HasSubstr("mount /proc"));
  Write(file, "00112233-4455-6677-8899-aabbccddeeff\n");
  const Machine machine = Must(ReadMachine(root()));
  EXPECT_THAT(
      machine.boot_id,
      ::testing::ElementsAre(0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                             0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff));
  for (const char* masked : {"", "none\n", "00112233-4455-6677-8899-aabbccddee",
                             "x0112233-4455-6677-8899-aabbccddeeff\n"}) {
    Write(file, masked);
    const absl::Status status = ReadMachine(root()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << masked << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a UUID"));
  }
  std::filesystem::remove(root() + "/" + file);
  std::filesystem::create_directory(root() + "/" + file);
  EXPECT_THAT(std::string(ReadMachine(root()).status().message()),
              HasSubstr("read(" + root() + "/" + file + ") failed"));
}

TEST_F(SurroundingsTest, TheControlNodeIsSeen) {
  EXPECT_FALSE(Must(HasNvidiaControlNode(root())));
  Write("dev/nvidiactl", "");
  EXPECT_TRUE(Must(HasNvidiaControlNode(root())));
}

TEST_F(SurroundingsTest, TheNodeOfWsl2IsSeen) {
  EXPECT_FALSE(Must(HasWsl2GpuNode(root())));
  Write("dev/dxg", "");
  EXPECT_TRUE(Must(HasWsl2GpuNode(root())));
}

TEST_F(SurroundingsTest, TheFolderOfTheProgramIsWhereItLies) {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(Must(FolderOfProgram()), program.parent_path());
}

// Its standard output is a terminal, and then a file. What it returns says at
// which of them it was wrong.
int PrintsColour(const std::vector<std::string>&) {
  const OsHandle terminal =
      OsHandle::Adopt(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  // Not ptsname(): with pages of 64 KiB qemu-user has the C library's own memory
  // for a bad address.
  char path[64];
  Check(terminal.has_value() && ::grantpt(RawFd(terminal)) == 0 &&
            ::unlockpt(RawFd(terminal)) == 0 &&
            ::ptsname_r(RawFd(terminal), path, sizeof(path)) == 0,
        "no pseudoterminal");
  const OsHandle end =
      OsHandle::Adopt(::open(path, O_RDWR | O_NOCTTY | O_CLOEXEC));
  Check(::dup2(RawFd(end), STDOUT_FILENO) == STDOUT_FILENO, "dup2() failed");
  const auto takes_colour = [](const char* name) {
    ::setenv("TERM", name, /*overwrite=*/1);
    return StandardOutputTakesColour();
  };
  if (!takes_colour("xterm")) return 1;
  if (takes_colour("dumb")) return 2;
  if (takes_colour("")) return 3;
  ::unsetenv("TERM");
  if (StandardOutputTakesColour()) return 4;
  const OsHandle file =
      OsHandle::Adopt(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Check(::dup2(RawFd(file), STDOUT_FILENO) == STDOUT_FILENO, "dup2() failed");
  return takes_colour("xterm") ? 5 : 0;
}
const bool kPrintsColour = testing::RegisterChild("colour", &PrintsColour);

TEST_F(SurroundingsTest, ColourIsForTerminalsThatHaveIt) {
  EXPECT_EQ(Child::Start("colour", {}).Wait(), 0);
}

TEST_F(SurroundingsTest, ThisMachineCanBeAsked) {
  EXPECT_GT(Must(GetDescriptorLimits()).soft, 0u);
  EXPECT_TRUE(ContainerMark().ok());
  EXPECT_TRUE(IsWsl2().ok());
  EXPECT_TRUE(PtraceScope().ok());
  EXPECT_TRUE(HasNvidiaControlNode().ok());
}

}  // namespace
}  // namespace vmm::platform
