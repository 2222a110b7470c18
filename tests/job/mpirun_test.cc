// Jobs that Open MPI's mpirun starts, with its PMIx server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "platform/library.h"
#include "platform/process.h"
#include "tests/ipc/program.h"
#include "tests/support/pattern.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FindMpirun() {
  const char* path = std::getenv("PATH");
  for (const auto folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/mpirun");
    if (std::filesystem::exists(file)) return file;
  }
  return "";
}

struct Result {
  int status = 0;
  std::string output;
};

// How many ranks printed a report.
std::size_t TimesPrinted(const std::string& output) {
  const std::vector<std::string> pieces =
      absl::StrSplit(output, "how a rank (row)");
  return pieces.size() - 1;
}

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (FindMpirun().empty()) {
      GTEST_SKIP() << "no mpirun here: install openmpi-bin";
    }
    if (!platform::Library::OpenSystem("libpmix.so.2").ok()) {
      GTEST_SKIP() << "no libpmix.so.2 here: install libpmix2";
    }
  }

  // As root, and more ranks than cores: what a test machine needs.
  static std::vector<std::string> Words(int ranks) {
    return {"--allow-run-as-root", "--oversubscribe", "-n",
            absl::StrCat(ranks)};
  }
  static Result Run(int ranks, const std::string& program,
                    const std::vector<std::string>& args,
                    std::map<std::string, std::string> env = {},
                    const std::vector<std::string>& launcher = {}) {
    env["VMMSHARE_HOST_INSTANCE"] =
        absl::StrCat("job-", platform::CurrentProcessId());
    env["LSAN_OPTIONS"] = WithoutLeaksOfLibpmix();
    std::vector<std::string> words = Words(ranks);
    words.insert(words.end(), launcher.begin(), launcher.end());
    words.push_back(absl::StrCat(FolderOfThisProgram(), "/../../", program));
    words.insert(words.end(), args.begin(), args.end());
    Program job = Program::Start(FindMpirun(), words, env);
    const int status = job.Wait();
    return {status, job.output()};
  }
  // For ranks that were built with a leak checker: libpmix keeps a little. Each
  // test has a file of its own: one that is written anew is empty for a moment,
  // in which another test's rank may read it.
  static std::string WithoutLeaksOfLibpmix() {
    struct File {
      File() { std::ofstream(name) << "leak:libpmix\nleak:pmix_mca\n"; }
      ~File() { std::remove(name.c_str()); }
      const std::string name =
          absl::StrCat(::testing::TempDir(), "/vmmshare-job-",
                       platform::CurrentProcessId(), ".supp");
    };
    static const File file;
    const char* own = std::getenv("LSAN_OPTIONS");
    return absl::StrCat(own == nullptr ? "" : own,
                        ":print_suppressions=0:suppressions=", file.name);
  }
  static Result Symmetric(int ranks, const std::vector<std::string>& args) {
    std::vector<std::string> all = {DriverFlag()};
    all.insert(all.end(), args.begin(), args.end());
    return Run(ranks, "docs/examples/symmetric", all);
  }
  static Result Doctor(int ranks, std::vector<std::string> args,
                       const std::map<std::string, std::string>& env = {}) {
    args.insert(args.begin(), {"doctor", "--job", DriverFlag()});
    return Run(ranks, "vmm/tool/vmmshare", args, env);
  }
  static std::string DriverFlag() {
    return OnHostMemoryDriver() ? "--driver=host" : "--driver=system";
  }
};

TEST_F(Mpirun, FourRanksShareSymmetricMemory) {
  const Result result = Symmetric(4, {"--size=3M"});
  EXPECT_EQ(result.status, 0) << result.output;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(result.output,
                ContainsPattern(absl::StrCat(
                    "rank ", rank, " on device .*: 3.0 MiB from rank ",
                    (rank + 3) % 4, ", mapped as POSIX fd, all as written")));
  }
  EXPECT_THAT(result.output, HasSubstr("4 ranks of job "));
}

TEST_F(Mpirun, OneRankIsItsOwnNeighbour) {
  const Result result = Symmetric(1, {"--size=1M"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("mapped as its own, all as written"));
}

TEST_F(Mpirun, TheSymmetricExampleFindsAWrongWord) {
  const Result result = Symmetric(3, {"--size=1M", "--corrupt=1"});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.output,
              HasSubstr("rank 2 does not have what rank 1 wrote: byte 0 "));
}

TEST_F(Mpirun, DoctorPrintsTheMatrixOnce) {
  const Result result = Doctor(4, {});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr(": 4 ranks, exchanged by "),
                    ContainsPattern("rank 0 +- +fd +fd +fd"),
                    ContainsPattern("rank 3 +fd +fd +fd +-"),
                    HasSubstr("every rank maps every other one's memory"),
                    Not(HasSubstr("\x1b["))));
  EXPECT_EQ(TimesPrinted(result.output), 1u);
}

TEST_F(Mpirun, DoctorSaysWhyTheRequiredKindDoesNotWork) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a GPU may have an IMEX channel";
  const Result result = Doctor(2, {"--require=fabric"});
  EXPECT_EQ(result.status, 1) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(ContainsPattern("rank 1 +fd +-"), HasSubstr("[no-imex-class]"),
            ContainsPattern("result +--require=fabric: rank 0")));
}

TEST_F(Mpirun, DoctorPrintsJson) {
  const Result result = Doctor(2, {"--json", "--require=fd"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("\"schema\": \"vmmshare-doctor-job/1\""),
            HasSubstr("\"importer\": 1"), HasSubstr("\"kind\": \"fd\""),
            HasSubstr("\"verdict\": null"), HasSubstr("\"exit_code\": 0")));
}

TEST_F(Mpirun, DoctorOfRanksWithoutADriverSaysSoOfEach) {
  const Result result =
      Run(2, "vmm/tool/vmmshare",
          {"doctor", "--job", "--driver=/nowhere/libcuda.so"});
  EXPECT_EQ(result.status, 1) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("[no-device]"), HasSubstr("0 from 1"),
                    ContainsPattern("rank 1 +NO +-"),
                    HasSubstr("/nowhere/libcuda.so")));
}

// One rank is another program, which never comes: it joins nothing and sleeps.
TEST_F(Mpirun, DoctorNamesTheRankThatDoesNotCome) {
  const std::string doctor =
      absl::StrCat(FolderOfThisProgram(), "/../../vmm/tool/vmmshare");
  const std::vector<std::string> speaks = {doctor, "doctor", "--job",
                                           DriverFlag(), "--timeout=2"};
  const std::vector<std::string> sleeps = {"sleep", "30"};
  for (int missing : {0, 1}) {
    std::vector<std::string> words = Words(1);
    const auto add = [&words](const std::vector<std::string>& more) {
      words.insert(words.end(), more.begin(), more.end());
    };
    add(missing == 0 ? sleeps : speaks);
    add({":", "-n", missing == 0 ? "2" : "1"});
    add(missing == 0 ? speaks : sleeps);
    const absl::Time start = absl::Now();
    Program job = Program::Start(FindMpirun(), words,
                                 {{"LSAN_OPTIONS", WithoutLeaksOfLibpmix()}});
    ASSERT_TRUE(job.WaitForText("result")) << job.output();
    EXPECT_LE(absl::Now() - start, absl::Seconds(10));
    EXPECT_NE(job.Wait(), 0);
    EXPECT_THAT(
        job.output(),
        AllOf(HasSubstr(absl::StrCat("no card came from rank ", missing)),
              ContainsPattern(absl::StrCat("rank ", missing, " +no answer"))));
    EXPECT_EQ(TimesPrinted(job.output()), 1u);
  }
}

}  // namespace
}  // namespace vmm::testing
