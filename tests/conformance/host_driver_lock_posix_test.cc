// A process that is stopped while it holds what all processes of an instance
// share: the others go on, and say why they cannot.
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {
namespace {

// Long for a call of the driver, and longer than it waits.
constexpr absl::Duration kSoon = absl::Seconds(20);

// A lock of one byte of an instance's file, as a stopped process keeps it.
class Kept {
 public:
  Kept(const std::string& instance, off_t byte)
      : path_(absl::StrCat("/dev/shm/vmmhost1.", geteuid(), ".", instance)),
        fd_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    EXPECT_EQ(fcntl(fd_, F_OFD_SETLK, &lock), 0) << path_;
  }
  ~Kept() { close(fd_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const int fd_;
};

// args: the instance.
int CreatesBesideStopped(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  {
    const Kept counts(args[0], 0);
    const absl::Time start = absl::Now();
    checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                  CUDA_ERROR_TIMEOUT);
    checks.ExpectTrue("in time", absl::Now() - start < kSoon);
  }
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kCreatesBesideStopped =
    RegisterChild("creates_beside_stopped", &CreatesBesideStopped);

int InitialisesBesideStopped(const std::vector<std::string>&) {
  const absl::Time start = absl::Now();
  Checks checks;
  checks.Expect("init", UninitialisedDriver().cuInit(0), CUDA_ERROR_TIMEOUT);
  checks.ExpectTrue("in time", absl::Now() - start < kSoon);
  return checks.failures();
}
const bool kInitialisesBesideStopped =
    RegisterChild("initialises_beside_stopped", &InitialisesBesideStopped);

int RunIn(const std::string& instance, const std::string& child) {
  return Child::Start(child, {instance}, {{"VMMSHARE_HOST_INSTANCE", instance}})
      .Wait(absl::Now() + absl::Seconds(60));
}

TEST(Stopped, AProcessThatCountsHoldsUpNobodyForLong) {
  const std::string instance = HostInstanceName("stopped");
  EXPECT_EQ(RunIn(instance, "creates_beside_stopped"), 0);
}

TEST(Stopped, AProcessThatRemovesTheCountsHoldsUpNobodyForLong) {
  const std::string instance = HostInstanceName("removing");
  const Kept users(instance, 1);
  EXPECT_EQ(RunIn(instance, "initialises_beside_stopped"), 0);
  EXPECT_EQ(unlink(users.path().c_str()), 0);
}

}  // namespace
}  // namespace vmm::testing
