// Objects that look as if the host-memory driver had made them: descriptors of
// memory, and the files of events.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {
namespace {

class Forged : public PoolTest {
 protected:
  // The name that the driver gave the object behind `fd`.
  static std::string NameOf(int fd) {
    char target[256] = {};
    platform::Check(readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target,
                             sizeof(target) - 1) > 0,
                    "readlink() of an exported descriptor failed");
    const std::string text = target;
    const std::size_t begin = std::strlen("/memfd:");
    return text.substr(begin, text.find(' ') - begin);
  }
  // What the import of an object with that name answers.
  CUresult ImportNamed(const std::string& name) {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    platform::Check(fd >= 0 && ftruncate(fd, kGranule) == 0 &&
                        fcntl(fd, F_ADD_SEALS, kSeals) == 0,
                    "a memfd could not be made");
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd);
    CloseDescriptor(fd);
    EXPECT_EQ(handle != 0, result == CUDA_SUCCESS) << name;
    if (handle != 0) {
      EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS) << name;
    }
    return result;
  }
};

// With vm.memfd_noexec=2 there would be none otherwise.
TEST_F(Forged, MemoryThatTheDriverMakesIsNeverExecuted) {
  constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL
  constexpr int kSealExec = 0x20;        // F_SEAL_EXEC
  const int probe = memfd_create("probe", MFD_CLOEXEC | kNoExecSeal);
  if (probe < 0) GTEST_SKIP() << "MFD_NOEXEC_SEAL is of Linux 6.3";
  CloseDescriptor(probe);
  const int seals = fcntl(Export(Create()), F_GET_SEALS);
  ASSERT_GE(seals, 0);
  EXPECT_EQ(seals & kSealExec, kSealExec);
}

// vmmhost1.MACHINE.UUID.KRC: kind, RDMA, compression.
TEST_F(Forged, MemoryOfAnotherNameIsNotImported) {
  const std::string good = NameOf(Export(Create()));
  EXPECT_EQ(ImportNamed(good), CUDA_SUCCESS);
  const std::size_t machine = good.find('.') + 1;
  const std::size_t uuid = good.find('.', machine) + 1;
  const std::size_t kind = good.find('.', uuid) + 1;
  ASSERT_EQ(good.size(), kind + 3) << good;
  const std::string before = good.substr(0, machine);
  const std::string after = good.substr(uuid - 1);
  const std::string start = good.substr(0, kind);
  const std::string id = "0123456789abcdef";
  const std::string hex_uuid(32, 'a');
  const std::vector<std::string> bad = {
      before + "nodot",
      before + after,
      before + std::string(33, 'a') + after,
      before + "a/b" + after,
      before + "a:b" + after,
      before + "a[b" + after,
      before + "a{b" + after,
      before + "a@" + after,
      before + "@a" + after,
      before + "a@b@c" + after,
      before + "another-machine" + after,
      before + "Another_1@node-2" + after,
      good.substr(0, uuid + 5),
      good.substr(0, uuid) + "X" + good.substr(uuid + 1),
      good.substr(0, kind - 1) + ":" + good.substr(kind),
      start,
      start + "d0",
      start + "x00",
      start + "d20",
      start + "d0g",
      start + "d000",
      start + "b00",
      start + "b00" + id.substr(1),
      start + "b00" + id + "0",
      start + "p00" + std::string(16, 'z'),
      start + "q00" + std::string(15, '0'),
      start + "f00" + id,
      start + "f00" + id + id,
      start + "f00" + id + id + hex_uuid,
      start + "f00" + id + id + hex_uuid + "00000000",
      start + "f00" + id + id + hex_uuid + "00000000" + "0000000z",
      start + "f00" + id + id + hex_uuid + "0000000z" + "00000000",
      start + "f00" + id + id + std::string(32, 'z') + "00000000" + "00000000",
  };
  for (const std::string& name : bad) {
    EXPECT_EQ(ImportNamed(name), CUDA_ERROR_UNKNOWN) << name;
  }
}

// All that is good has an owner of its own: memory of blocks and of pools is no
// allocation.
TEST_F(Forged, WhatOtherCallsMadeIsNoAllocation) {
  const std::string good = NameOf(Export(Create()));
  const std::string start = good.substr(0, good.size() - 3);
  for (const char kind : {'b', 'p', 'q'}) {
    EXPECT_EQ(ImportNamed(absl::StrCat(start, std::string(1, kind),
                                       "000123456789abcdef")),
              CUDA_ERROR_UNKNOWN)
        << kind;
  }
  for (const char kind : {'n', 'h'}) {
    EXPECT_EQ(ImportNamed(absl::StrCat(start, std::string(1, kind), "10")),
              CUDA_SUCCESS)
        << kind;
  }
  // A pool's descriptor and an allocation's are not the same thing.
  CUmemoryPool pool = nullptr;
  const int memory = Export(Create());
  EXPECT_EQ(
      cu.cuMemPoolImportFromShareableHandle(
          &pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(memory)),
          kFd, 0),
      kInvalid);
  EXPECT_EQ(pool, nullptr);
}

// A file as a process that lives has it, which others do not tidy away.
class Locked {
 public:
  explicit Locked(const std::string& path) : path_(path) {}
  ~Locked() { EXPECT_EQ(unlink(path_.c_str()), 0) << path_; }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  // Puts `made`, which is opened here, in its place.
  int Put(const std::string& made) const {
    const int fd = open(made.c_str(), O_RDWR | O_CLOEXEC);
    platform::Check(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
                        rename(made.c_str(), path_.c_str()) == 0,
                    "a file of events could not be forged");
    return fd;
  }

 private:
  const std::string path_;
};

std::string Digits(std::uint64_t file) {
  char text[20];
  std::snprintf(text, sizeof(text), "%016" PRIx64, file);
  return text;
}

TEST_F(Forged, NumbersThatNoDescriptorHasAreNotImported) {
  CUmemGenericAllocationHandle handle = 0;
  for (const std::intptr_t fd : {std::intptr_t{1} << 40, std::intptr_t{-1}}) {
    EXPECT_EQ(cu.cuMemImportFromShareableHandle(
                  &handle, reinterpret_cast<void*>(fd), kFd),
              CUDA_ERROR_UNKNOWN)
        << fd;
  }
  EXPECT_EQ(handle, 0u);
}

// The file of events that a handle names, in all that is wrong with it.
TEST_F(Forged, FilesOfEventsAreNotOpened) {
  const CUevent event =
      MakeEvent(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  CUipcEventHandle handle{};
  ASSERT_EQ(cu.cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  CUevent opened = nullptr;
  const auto open_it = [&] { return cu.cuIpcOpenEventHandle(&opened, handle); };
  constexpr CUresult kNot = CUDA_ERROR_MAP_FAILED;
  EXPECT_EQ(open_it(), CUDA_ERROR_INVALID_CONTEXT) << "its own";
  // Words of a handle: the magic number, the file, the generation, the slot.
  std::uint64_t file = 0;
  std::memcpy(&file, handle.reserved + 8, sizeof(file));
  const std::vector<std::string> own = SharedFilesNamed(Digits(file));
  ASSERT_EQ(own.size(), 1u);
  const std::string folder = "/dev/shm/";
  const std::string path = absl::StrCat(
      folder, own[0].substr(0, own[0].find(Digits(file))), Digits(file + 1));
  const std::string made = folder + HostInstanceName("forged");
  ++file;
  std::memcpy(handle.reserved + 8, &file, sizeof(file));
  EXPECT_EQ(open_it(), kNot) << "no file";
  const Locked locked(path);
  ASSERT_EQ(mkfifo(made.c_str(), 0600), 0);
  const int pipe = locked.Put(made);
  EXPECT_EQ(open_it(), kNot) << "a pipe";
  CloseDescriptor(open(made.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const int regular = locked.Put(made);
  EXPECT_EQ(open_it(), kNot) << "of no bytes";
  ASSERT_EQ(ftruncate(regular, 4096 * 24), 0);
  EXPECT_EQ(open_it(), kNot) << "of the size, where nothing was made";
  const std::uint32_t slot = 4096;
  std::memcpy(handle.reserved + 24, &slot, sizeof(slot));
  EXPECT_EQ(open_it(), kNot) << "a slot behind all";
  CloseDescriptor(pipe);
  CloseDescriptor(regular);
  EXPECT_EQ(opened, nullptr);
}

}  // namespace
}  // namespace vmm::testing
