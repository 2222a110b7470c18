// PMIx where it is not: no launcher, no library, another layout.
#include "fabric/pmix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "fabric/pmix_abi.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

#if __has_include(<pmix.h>)
#include <pmix.h>
#endif

namespace vmm::testing {
namespace {

using fabric::PmixExchange;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A child's environment is its own: `expect` of what Connect() answers there.
int ConnectChild(const std::vector<std::string>& args) {
  const absl::Status status =
      PmixExchange::Connect({.library = args[0]},
                            absl::Now() + absl::Seconds(10))
          .status();
  EXPECT_EQ(absl::StatusCodeToString(status.code()), args[1]);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(args[2]), HasSubstr(args[3])));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kConnectChild = RegisterChild("pmix-connect", &ConnectChild);

int RunConnect(const std::vector<std::string>& args, bool launched) {
  return Child::Start("pmix-connect", args,
                      {{"PMIX_NAMESPACE", launched ? "job" : ""},
                       {"PMIX_RANK", launched ? "0" : ""}})
      .Wait();
}

TEST(Pmix, WithoutALauncherSaysHowToStartTheProgram) {
  EXPECT_EQ(RunConnect({"", "FAILED_PRECONDITION", "no launcher offers PMIx",
                        "srun --mpi=pmix"},
                       false),
            0);
}

TEST(Pmix, WithoutItsLibrarySaysWhatToInstall) {
  EXPECT_EQ(
      RunConnect({::testing::TempDir() + "/nowhere/libpmix.so.2", "NOT_FOUND",
                  "its client library cannot be opened", "libpmix2"},
                 true),
      0);
}

TEST(Pmix, RefusesALibraryThatIsNotLibpmix) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "needs the host-memory driver";
  EXPECT_EQ(RunConnect({HostDriverPath(), "FAILED_PRECONDITION",
                        "it lacks PMIx_Init, PMIx_Finalize", "PMIx 3 or newer"},
                       true),
            0);
}

TEST(Pmix, LayoutIsThatOfTheInstalledHeaders) {
#if __has_include(<pmix.h>)
  namespace pmix = fabric::pmix;
  EXPECT_EQ(sizeof(pmix::Proc), sizeof(pmix_proc_t));
  EXPECT_EQ(offsetof(pmix::Proc, rank), offsetof(pmix_proc_t, rank));
  EXPECT_EQ(sizeof(pmix::Value), sizeof(pmix_value_t));
  EXPECT_EQ(offsetof(pmix::Value, data), offsetof(pmix_value_t, data));
  EXPECT_EQ(sizeof(pmix::ByteObject), sizeof(pmix_byte_object_t));
  EXPECT_EQ(offsetof(pmix::ByteObject, size),
            offsetof(pmix_byte_object_t, size));
  EXPECT_EQ(sizeof(pmix::Info), sizeof(pmix_info_t));
  EXPECT_EQ(offsetof(pmix::Info, flags), offsetof(pmix_info_t, flags));
  EXPECT_EQ(offsetof(pmix::Info, value), offsetof(pmix_info_t, value));
#ifdef PMIX_ERR_PROC_ENTRY_NOT_FOUND  // Deprecated, and answered by 4.2 still.
  EXPECT_EQ(pmix::kErrProcEntryNotFound, PMIX_ERR_PROC_ENTRY_NOT_FOUND);
#endif
  EXPECT_EQ(pmix::kErrTimeout, PMIX_ERR_TIMEOUT);
  EXPECT_EQ(pmix::kErrUnreachable, PMIX_ERR_UNREACH);
  EXPECT_EQ(pmix::kErrBadParameter, PMIX_ERR_BAD_PARAM);
  EXPECT_EQ(pmix::kErrOutOfResource, PMIX_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(pmix::kErrNoMemory, PMIX_ERR_NOMEM);
  EXPECT_EQ(pmix::kErrNotFound, PMIX_ERR_NOT_FOUND);
  EXPECT_EQ(pmix::kErrNotSupported, PMIX_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pmix::kErrCommFailure, PMIX_ERR_COMM_FAILURE);
  EXPECT_EQ(pmix::kErrLostConnection, PMIX_ERR_LOST_CONNECTION);
  EXPECT_EQ(pmix::kOperationSucceeded, PMIX_OPERATION_SUCCEEDED);
  EXPECT_EQ(pmix::kRankWildcard, PMIX_RANK_WILDCARD);
  EXPECT_EQ(pmix::kGlobal, PMIX_GLOBAL);
  EXPECT_EQ(pmix::kBool, PMIX_BOOL);
  EXPECT_EQ(pmix::kInt, PMIX_INT);
  EXPECT_EQ(pmix::kUint16, PMIX_UINT16);
  EXPECT_EQ(pmix::kUint32, PMIX_UINT32);
  EXPECT_EQ(pmix::kByteObject, PMIX_BYTE_OBJECT);
  EXPECT_STREQ(pmix::kJobSize, PMIX_JOB_SIZE);
  EXPECT_STREQ(pmix::kLocalRank, PMIX_LOCAL_RANK);
  EXPECT_STREQ(pmix::kCollectData, PMIX_COLLECT_DATA);
  EXPECT_STREQ(pmix::kTimeout, PMIX_TIMEOUT);
#else
  GTEST_SKIP() << "no pmix.h here: install libpmix-dev";
#endif
}

}  // namespace
}  // namespace vmm::testing
