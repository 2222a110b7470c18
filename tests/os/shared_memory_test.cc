// Shared memory as POSIX systems have it: a sealed memfd.
#include "platform/ipc/shared_memory.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>

#include "platform/cuda/memory_handle.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kSize = 3 * 4096;
constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW;

class SharedMemoryTest : public OsTest {};

// One thread gives the other memory, and changes it while that looks at it.
class Meddler {
 public:
  Meddler() : thread_([this] { Meddle(); }) {}
  ~Meddler() {
    stop_ = true;
    thread_.join();
  }
  Meddler(const Meddler&) = delete;
  Meddler& operator=(const Meddler&) = delete;

  // Soon no bytes of it are left, and none can come.
  void Spoil(const OsHandle& memory) { next_ = RawFd(memory); }
  void AwaitSpoilt() const {
    while (next_ != kNone) std::this_thread::yield();
  }

 private:
  static constexpr int kNone = -1;

  void Meddle() {
    for (unsigned pause = 0; !stop_;) {
      const int fd = next_;
      if (fd == kNone) {
        std::this_thread::yield();
        continue;
      }
      for (unsigned i = 0; i < pause % 2048; ++i) ++spent_;
      pause += 37;
      Check(::ftruncate(fd, 0) == 0 &&
                ::fcntl(fd, F_ADD_SEALS, kFixed | F_SEAL_SEAL) == 0,
            "ftruncate() or F_ADD_SEALS failed");
      next_ = kNone;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<int> next_{kNone};
  std::atomic<unsigned> spent_{0};
  std::thread thread_;  // The last: it uses the others.
};

// A memfd of `size` bytes with `seals`.
OsHandle Memfd(std::size_t size, int seals, unsigned flags = MFD_CLOEXEC) {
  OsHandle memory =
      OsHandle::Adopt(::memfd_create("test", flags | MFD_ALLOW_SEALING));
  Check(memory.has_value(), "memfd_create() failed");
  Check(::ftruncate(RawFd(memory), static_cast<off_t>(size)) == 0,
        "ftruncate() failed");
  Check(seals == 0 || ::fcntl(RawFd(memory), F_ADD_SEALS, seals) == 0,
        "F_ADD_SEALS failed");
  return memory;
}

// What Open() says of something unfit, which must be an invalid argument.
std::string WhyNot(const OsHandle& handle,
                   PeerAccess access = PeerAccess::kRead,
                   std::size_t size = kSize) {
  const absl::Status status = SharedMemory::Open(handle, size, access).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

// The descriptor's file opened once more, with rights of its own.
OsHandle Reopened(const OsHandle& handle, int flags) {
  const std::string path = "/proc/self/fd/" + std::to_string(RawFd(handle));
  return OsHandle::Adopt(::open(path.c_str(), flags | O_CLOEXEC));
}

// The error of mapping it writable, or 0.
int MapWritable(const OsHandle& handle) {
  void* const data = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED,
                            RawFd(handle), 0);
  if (data == MAP_FAILED) return errno;
  ::munmap(data, kSize);
  return 0;
}

TEST_F(SharedMemoryTest, StartsAsZeros) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  EXPECT_EQ(memory.bytes().size(), kSize);
  EXPECT_THAT(memory.bytes(), Each(0));
}

TEST_F(SharedMemoryTest, AReaderSeesWhatIsWrittenLater) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  const SharedMemory view =
      Must(SharedMemory::Open(memory.handle(), kSize, PeerAccess::kRead));
  EXPECT_NE(view.bytes().data(), memory.bytes().data());
  memory.writable_bytes()[kSize - 1] = 77;
  EXPECT_EQ(view.bytes()[kSize - 1], 77);
}

TEST_F(SharedMemoryTest, AWriterIsSeenByTheOwner) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kReadWrite));
  const SharedMemory view =
      Must(SharedMemory::Open(memory.handle(), kSize, PeerAccess::kReadWrite));
  view.writable_bytes()[5] = 9;
  EXPECT_EQ(memory.bytes()[5], 9);
}

TEST_F(SharedMemoryTest, AViewOutlivesItsOwnerAndTheHandle) {
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::Create(kSize, PeerAccess::kRead);
  Must(memory.status());
  memory->writable_bytes()[0] = 1;
  const SharedMemory view =
      Must(SharedMemory::Open(memory->handle(), kSize, PeerAccess::kRead));
  memory = absl::CancelledError();
  EXPECT_EQ(view.bytes()[0], 1);
}

TEST_F(SharedMemoryTest, MovingLeavesTheBytesWhereTheyAre) {
  SharedMemory memory = Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  const std::uint8_t* const at = memory.bytes().data();
  const SharedMemory moved = std::move(memory);
  EXPECT_EQ(moved.bytes().data(), at);
}

TEST_F(SharedMemoryTest, ItsSizeIsFixedAndSoAreItsSeals) {
  for (const PeerAccess access : {PeerAccess::kRead, PeerAccess::kReadWrite}) {
    const SharedMemory memory = Must(SharedMemory::Create(kSize, access));
    const int fd = RawFd(memory.handle());
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::ftruncate(fd, 2 * kSize), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
}

TEST_F(SharedMemoryTest, APeerCannotWriteWhatItMayOnlyRead) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  const int fd = RawFd(memory.handle());
  EXPECT_EQ(MapWritable(memory.handle()), EPERM);
  EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  // Nor by opening the file anew.
  const OsHandle again = Reopened(memory.handle(), O_RDWR);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(MapWritable(again), EPERM);
  // Nor by changing a mapping that it may have.
  void* const data = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(data, MAP_FAILED);
  EXPECT_EQ(::mprotect(data, kSize, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  ::munmap(data, kSize);
  EXPECT_THAT(WhyNot(memory.handle(), PeerAccess::kReadWrite),
              HasSubstr("sealed against writing"));
  // The owner still can.
  memory.writable_bytes()[0] = 1;
  EXPECT_EQ(memory.bytes()[0], 1);
  // And what may be written can be: the checks above can tell.
  const SharedMemory open =
      Must(SharedMemory::Create(kSize, PeerAccess::kReadWrite));
  EXPECT_EQ(MapWritable(open.handle()), 0);
}

TEST_F(SharedMemoryTest, Pitfall12WhateverIsNoSealedMemfdIsRefused) {
  const Pipe pipe = MakePipe();
  EXPECT_THAT(WhyNot(pipe.read_end), HasSubstr("a pipe"));
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const OsHandle one = OsHandle::Adopt(ends[0]);
  const OsHandle two = OsHandle::Adopt(ends[1]);
  EXPECT_THAT(WhyNot(one), HasSubstr("a socket"));
  EXPECT_THAT(WhyNot(OsHandle::Adopt(::open("/", O_RDONLY | O_CLOEXEC))),
              HasSubstr("a directory"));
  EXPECT_THAT(WhyNot(OsHandle::Adopt(::open("/dev/null", O_RDWR | O_CLOEXEC))),
              HasSubstr("a character device"));
  const TempDirectory temp;
  const OsHandle file = OsHandle::Adopt(
      ::open(temp.File("x").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(RawFd(file), kSize), 0);
  // A file of a tmpfs says the same as a memfd that can still shrink.
  WhyNot(file);
  WhyNot(OsHandle::Adopt(::open("/", O_PATH | O_CLOEXEC)));
  WhyNot(OsHandle());
  const auto event = Must(CancelEvent::Create());
  WhyNot(event.handle());
}

TEST_F(SharedMemoryTest, ASizeThatCanChangeIsRefused) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW,
                          F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE}) {
    EXPECT_THAT(WhyNot(Memfd(kSize, seals)), HasSubstr("can still change"))
        << seals;
  }
  Must(SharedMemory::Open(Memfd(kSize, kFixed), kSize, PeerAccess::kReadWrite)
           .status());
}

TEST_F(SharedMemoryTest, AnotherSizeIsRefused) {
  for (const std::size_t size : {std::size_t{0}, kSize - 1, kSize + 1}) {
    EXPECT_THAT(WhyNot(Memfd(size, kFixed)),
                HasSubstr("a memfd of " + std::to_string(size) + " bytes"));
  }
}

TEST_F(SharedMemoryTest, AWriterNeedsADescriptorThatIsOpenForWriting) {
  const OsHandle memory = Memfd(kSize, kFixed);
  const OsHandle readable = Reopened(memory, O_RDONLY);
  EXPECT_THAT(WhyNot(readable, PeerAccess::kReadWrite),
              HasSubstr("open for reading only"));
  Must(SharedMemory::Open(readable, kSize, PeerAccess::kRead).status());
}

TEST_F(SharedMemoryTest, HugePagesAreRefused) {
  const OsHandle huge = OsHandle::Adopt(
      ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!huge.has_value()) GTEST_SKIP() << "this kernel has no huge pages";
  ASSERT_EQ(::fcntl(RawFd(huge), F_ADD_SEALS, kFixed), 0);
  EXPECT_THAT(WhyNot(huge), HasSubstr("huge pages"));
  // Nor are they an allocation, whatever its size.
  const absl::Status status =
      CheckMemoryHandle(huge, MemoryBacking::kHostMemory, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("huge pages"));
}

TEST_F(SharedMemoryTest, WritingToAReadersViewIsAFault) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  const SharedMemory view =
      Must(SharedMemory::Open(memory.handle(), kSize, PeerAccess::kRead));
  EXPECT_EXIT(*const_cast<volatile std::uint8_t*>(view.bytes().data()) = 1,
              testing::EndedByAFault, "");
  EXPECT_DEATH(static_cast<void>(view.writable_bytes()), "read-only view");
  EXPECT_DEATH(static_cast<void>(view.handle()), "another process made");
  EXPECT_DEATH(static_cast<void>(SharedMemory::Create(0, PeerAccess::kRead)),
               "0 bytes");
}

// What the header says of fork: the child has the same pages, not a copy.
TEST_F(SharedMemoryTest, AForkedChildWritesToTheSamePages) {
  const SharedMemory memory =
      Must(SharedMemory::Create(kSize, PeerAccess::kRead));
  const pid_t child = ::fork();
  if (child == 0) {
    memory.writable_bytes()[0] = 42;
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory.bytes()[0], 42);
}

int CreateAtTheLimit(const std::vector<std::string>&) {
  absl::Status status;
  {
    DescriptorLimit limit(0);
    status = SharedMemory::Create(kSize, PeerAccess::kRead).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("ulimit"));
  return 0;
}
const bool kRegistered =
    testing::RegisterChild("create_at_the_limit", &CreateAtTheLimit);

TEST_F(SharedMemoryTest, Pitfall15AtTheDescriptorLimitTheErrorSaysSo) {
  EXPECT_EQ(testing::Child::Start("create_at_the_limit", {}).Wait(), 0);
}

// Of memory that its sender empties and seals when its size has been looked at:
// whoever maps it would touch what is not there.
template <typename Look>
void ExpectThatItsSizeIsItsLast(Look look) {
  Meddler meddler;
  bool is_taken = false;
  const absl::Time until = absl::Now() + absl::Seconds(1);
  while (!is_taken && absl::Now() < until) {
    const OsHandle memory = Memfd(kSize, 0);
    meddler.Spoil(memory);
    is_taken = look(memory).ok();
    meddler.AwaitSpoilt();
  }
  EXPECT_FALSE(is_taken) << "and has no bytes";
}

TEST_F(SharedMemoryTest, ASizeThatChangesWhileItIsLookedAtIsNotTaken) {
  ExpectThatItsSizeIsItsLast([](const OsHandle& memory) {
    return SharedMemory::Open(memory, kSize, PeerAccess::kRead).status();
  });
  // Nor is that of an allocation.
  ExpectThatItsSizeIsItsLast([](const OsHandle& memory) {
    return CheckMemoryHandle(memory, MemoryBacking::kHostMemory, kSize);
  });
}

}  // namespace
}  // namespace vmm::platform
