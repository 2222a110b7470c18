// Jobs that Open MPI's mpirun starts, with its PMIx server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "fabric/exchange.h"
#include "fabric/pmix.h"
#include "platform/os/library.h"
#include "platform/os/process.h"
#include "tests/ipc/program.h"
#include "tests/support/child.h"
#include "tests/support/host_instance.h"
#include "tests/support/must.h"
#include "tests/support/pattern.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Matches;
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

// The status of a job. One that a rank ended is over when mpirun has said so: it kills
// the ranks first. It may take `ending` to end itself, and is killed after that: when a
// rank has left that libpmix's server waited for, that may wait for itself at the end
// (docs/fabric.md), as where the server was slower to give up than the rank.
int StatusOf(Program& job, absl::Duration ending = absl::Seconds(20)) {
  // Rounds of a sanitizer's ranks take a minute of a busy machine.
  const absl::Time deadline = absl::Now() + absl::Minutes(3);
  if (job.WaitForText(
          "detected that one or more processes exited with non-zero status",
          deadline) &&
      !job.WaitForEnd(absl::Now() + ending)) {
    job.Kill();
  }
  return job.Wait(deadline);
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
    env["VMMSHARE_HOST_INSTANCE"] = HostInstanceName("job");
    env["LSAN_OPTIONS"] = WithoutLeaksOfLibpmix();
    std::vector<std::string> words = Words(ranks);
    words.insert(words.end(), launcher.begin(), launcher.end());
    words.push_back(absl::StrCat(FolderOfThisProgram(), "/../../", program));
    words.insert(words.end(), args.begin(), args.end());
    Program job = Program::Start(FindMpirun(), words, env);
    const int status = StatusOf(job);
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

TEST(JobOfATest, IsOverWhenMpirunHasSaidSoThoughItDoesNotEnd) {
  Program job = Program::Start(
      "/bin/sh",
      {"-c",
       "echo 'mpirun detected that one or more processes exited with "
       "non-zero status, thus'; exec sleep 300"},
      {});
  EXPECT_EQ(StatusOf(job, absl::Milliseconds(100)), 128 + 9) << job.output();
}

TEST(JobOfATest, HasTheStatusWithWhichItsLauncherEnds) {
  Program job = Program::Start(
      "/bin/sh",
      {"-c",
       "echo 'mpirun detected that one or more processes exited with "
       "non-zero status, thus'; exit 7"},
      {});
  EXPECT_EQ(StatusOf(job), 7) << job.output();
}

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
  // Of the machine itself: one with a GPU has the class.
  std::ifstream devices("/proc/devices");
  const std::string classes(std::istreambuf_iterator<char>(devices), {});
  const bool has_class = absl::StrContains(classes, "imex-channels");
  const Result result = Doctor(2, {"--require=fabric"});
  EXPECT_EQ(result.status, 1) << result.output;
  EXPECT_THAT(result.output,
              AllOf(ContainsPattern("rank 1 +fd +-"),
                    HasSubstr(has_class ? "[no-channel]" : "[no-imex-class]"),
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

TEST_F(Mpirun, DoctorOfRanksWhoseDevicesCannotBeListedSaysWhy) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "makes a call of that driver fail";
  const Result result =
      Doctor(2, {}, {{"VMMSHARE_HOST_FAIL", "cuDeviceGetCount:1+:UNKNOWN"}});
  EXPECT_EQ(result.status, 1) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("[no-device]"), HasSubstr("cuDeviceGetCount"),
                    ContainsPattern("rank 1 +NO +-")));
}

// What a rank tells the others of is in its memory by then: one whose work is
// slow to begin is not taken for one whose memory is another's.
TEST_F(Mpirun, DoctorFindsWhatASlowRankHasWritten) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "slows the host-memory driver";
  const Result result =
      Run(2, "vmm/tool/vmmshare", {"doctor", "--job", "--driver=host"}, {},
          {"sh", "-c",
           "test \"$PMIX_RANK\" = 1 || export VMMSHARE_HOST_DELAY=500000; "
           "exec \"$0\" \"$@\""});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output,
              HasSubstr("every rank maps every other one's memory"));
}

// The ranks of the next test. A library makes an exchange and lets go of it,
// then another one does, and then two are there at once.
int MakesExchangesAgain(const std::vector<std::string>&) {
  const auto late = [] { return absl::Now() + absl::Seconds(30); };
  const auto round = [&late](fabric::Exchange& exchange, std::uint8_t value) {
    const fabric::Bytes mine(8, value + exchange.rank());
    const fabric::Gathered all = Gather(exchange, "word", mine, late());
    EXPECT_TRUE(all.status.ok()) << all.status;
    for (int rank = 0; rank < exchange.size(); ++rank) {
      EXPECT_EQ(Must(all.records[rank])[0], value + rank);
    }
  };
  for (std::uint8_t time = 10; time < 40; time += 10) {
    round(*Must(fabric::PmixExchange::Connect({}, late())), time);
  }
  const auto first = Must(fabric::PmixExchange::Connect({}, late()));
  const auto second = Must(fabric::PmixExchange::Connect({}, late()));
  for (int i = 0; i < 3; ++i) {
    round(*second, 100);
    round(*first, 200);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kMakesExchangesAgain =
    RegisterChild("makes-exchanges-again", &MakesExchangesAgain);

TEST_F(Mpirun, ExchangesCanBeMadeAgainAndBesideEachOther) {
  const Result result =
      Run(2, "tests/job/job_mpirun_test",
          {"--vmmshare_child=makes-exchanges-again"}, {},
          {"sh", "-c", "VMMSHARE_CHILD_PARENT=$PPID exec \"$0\" \"$@\""});
  EXPECT_EQ(result.status, 0) << result.output;
}

// How much longer the last rounds took than the first, of `rounds`.
double Growth(const std::string& output) {
  double early = 0;
  double late = 0;
  const char* found = std::strstr(output.c_str(), "rounds 10 to 49 took");
  EXPECT_NE(found, nullptr) << output;
  if (found == nullptr) return 0;
  EXPECT_EQ(std::sscanf(found, "rounds 10 to 49 took %lf ms, the last 40 %lf",
                        &early, &late),
            2)
      << output;
  return late / early;
}

// With keys of its own for each round: more than 10 times, in each try. A machine that
// gets busy in the middle of one is no reason.
TEST_F(Mpirun, ALateRoundCostsWhatAnEarlyOneDoes) {
  // With few words: where no key is given back, 200 rounds may take minutes.
  const Result asked = Run(3, "tests/job/job_rounds", {"100", "64"});
  ASSERT_EQ(asked.status, 0) << asked.output;
  if (!absl::StrContains(asked.output, "OpenPMIx 4.2.")) {
    GTEST_SKIP() << "this libpmix gives no key back: " << asked.output;
  }
  std::string output;
  for (int i = 0; i < 3; ++i) {
    const Result result = Run(3, "tests/job/job_rounds", {"200", "100000"});
    ASSERT_EQ(result.status, 0) << result.output;
    if (Growth(result.output) <= 4) return;
    output += result.output;
  }
  FAIL() << output;
}

// Half a second is left for finding out who is missing, which a busy machine
// may let pass: in one job of three it does not. Where the server tells all, it has
// ended the round by then, so that mpirun ends too.
TEST_F(Mpirun, NamesTheRankThatIsMissingInALateRound) {
  std::string output;
  for (int i = 0; i < 3; ++i) {
    const Result result = Run(3, "tests/job/job_rounds", {"5", "3000", "1"});
    ASSERT_NE(result.status, 0) << result.output;
    const bool tells_all = absl::StrContains(result.output, "OpenPMIx 4.2.2");
    const auto names_it = [tells_all](int rank) {
      return ContainsPattern(
          absl::StrCat("rank ", rank,
                       ": .*no word came from rank 1: PMIx_Fence\\(\\) did not "
                       "end by the deadline",
                       tells_all ? ": PMIx_Fence\\(\\) answered TIMEOUT" : ""));
    };
    if (Matches(AllOf(names_it(0), names_it(2)))(result.output)) {
      EXPECT_TRUE(result.status != 128 + 9 || !tells_all) << result.output;
      return;
    }
    output += result.output;
  }
  FAIL() << output;
}

// One rank is another program, which never comes: it joins nothing and sleeps.
// The ranks choose: Open MPI 5.0.7's mpirun dies of a segmentation fault when
// it is given two programs with ":" between them.
TEST_F(Mpirun, DoctorNamesTheRankThatDoesNotCome) {
  const std::string doctor =
      absl::StrCat(FolderOfThisProgram(), "/../../vmm/tool/vmmshare");
  for (int missing : {0, 1}) {
    std::vector<std::string> words = Words(missing == 0 ? 3 : 2);
    const std::string choose =
        absl::StrCat("test \"$PMIX_RANK\" != ", missing,
                     " || exec sleep 300; exec \"$0\" \"$@\"");
    for (const std::string& word :
         {std::string("sh"), std::string("-c"), choose, doctor,
          std::string("doctor"), std::string("--job"), DriverFlag(),
          std::string("--timeout=10")}) {
      words.push_back(word);
    }
    // A busy machine may let others be late too: in one job of three none is.
    std::string output;
    bool named_alone = false;
    for (int i = 0; i < 3 && !named_alone; ++i) {
      const absl::Time start = absl::Now();
      Program job = Program::Start(FindMpirun(), words,
                                   {{"LSAN_OPTIONS", WithoutLeaksOfLibpmix()}});
      ASSERT_TRUE(job.WaitForText("result")) << job.output();
      // Of what starts the job too; nobody waits for the rank that sleeps.
      EXPECT_LE(absl::Now() - start, absl::Seconds(50));
      EXPECT_NE(StatusOf(job), 0) << job.output();
      named_alone =
          Matches(AllOf(
              HasSubstr(absl::StrCat("no card came from rank ", missing)),
              ContainsPattern(absl::StrCat("rank ", missing, " +no answer"))))(
              job.output()) &&
          TimesPrinted(job.output()) == 1u;
      output += job.output();
    }
    EXPECT_TRUE(named_alone) << output;
  }
}

}  // namespace
}  // namespace vmm::testing
