// The examples of docs/examples, run as people run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/os/process.h"
#include "tests/ipc/program.h"
#include "tests/support/emulator.h"
#include "tests/support/host_instance.h"
#include "tests/support/pattern.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The machine of one test run: memory budgets are not shared with others.
std::map<std::string, std::string> OwnMachine() {
  return {{"VMMSHARE_HOST_INSTANCE", HostInstanceName("examples")}};
}

Program StartExample(const std::string& name,
                     const std::vector<std::string>& args,
                     const std::map<std::string, std::string>& env = {}) {
  std::map<std::string, std::string> all = OwnMachine();
  all.insert(env.begin(), env.end());
  return Program::Start(
      absl::StrCat(FolderOfThisProgram(), "/../../docs/examples/", name), args,
      all);
}

std::string DriverFlag() {
  return OnHostMemoryDriver() ? "--driver=host" : "--driver=system";
}

struct Result {
  int status = 0;
  std::string output;
};

Result RunExample(const std::string& name, const std::vector<std::string>& args,
                  const std::map<std::string, std::string>& env = {}) {
  Program program = StartExample(name, args, env);
  const int status = program.Wait();
  return {status, program.output()};
}

std::string LineOf(const std::string& text, std::size_t index) {
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  return index < lines.size() ? lines[index] : "";
}

std::string LastLine(const std::string& text) {
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  return lines.empty() ? "" : lines.back();
}

std::string DriverLine() {
  return OnHostMemoryDriver() ? "driver: host-memory driver (no GPU)"
                              : "driver: CUDA driver";
}

// Examples that start their other side themselves.
class StartsItself : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  }
};
using ProduceConsume = StartsItself;
using SharedBlocks = StartsItself;
using Ring = StartsItself;
using OneProcessPerGpu = StartsItself;
using Pitfall19 = StartsItself;

TEST(Examples, EachSaysByHelpWhatItDoes) {
  for (const char* name :
       {"engines", "file_ticket", "hello", "keeper", "one_process_per_gpu",
        "produce_consume", "ring", "shared_blocks", "symmetric"}) {
    const Result result = RunExample(name, {"--help"});
    EXPECT_EQ(result.status, 0) << name;
    EXPECT_THAT(result.output, HasSubstr(absl::StrCat(name, " "))) << name;
    EXPECT_THAT(LineOf(result.output, 0), Not(StartsWith("//"))) << name;
    // What it says works as it is typed: nobody else makes that folder.
    if (absl::StrContains(result.output, "=/tmp/here/")) {
      EXPECT_THAT(result.output, HasSubstr("mkdir -m 700 /tmp/here ")) << name;
    }
  }
}

// ---- produce_consume --------------------------------------------------------

TEST_F(ProduceConsume, VerifiesEveryByteAndSaysHowLongEachStepTook) {
  const Result result = RunExample("produce_consume", {DriverFlag()});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(LineOf(result.output, 0), StartsWith(DriverLine()));
  for (const char* step :
       {"producer: allocate 2 x 64.0 MiB", "producer: fill 64.0 MiB",
        "producer: start the consumer, connect", "producer: send both buffers",
        "consumer: import the data, read-only",
        "consumer: import the reply buffer, read-write",
        "consumer: verify every byte of the data", "consumer: write the reply",
        "producer: wait for the reply",
        "producer: verify every byte of the reply"}) {
    EXPECT_THAT(result.output,
                ContainsPattern(absl::StrCat(step, " +[0-9.]+ ms")));
  }
  EXPECT_THAT(LastLine(result.output),
              StartsWith("OK: two processes shared 67108864 bytes"));
}

TEST_F(ProduceConsume, TakesSizesThatAreNoMultipleOfAnything) {
  for (const char* size : {"1", "4097", "2M", "8388609", "10485773"}) {
    const Result result = RunExample(
        "produce_consume", {DriverFlag(), absl::StrCat("--size=", size)});
    EXPECT_EQ(result.status, 0) << size << ": " << result.output;
    EXPECT_THAT(LastLine(result.output), StartsWith("OK: ")) << size;
  }
}

TEST_F(ProduceConsume, FindsOneWrongByteWhereverItIs) {
  for (const char* offset : {"0", "8388608", "10485772"}) {
    const Result result = RunExample(
        "produce_consume",
        {DriverFlag(), "--size=10485773", absl::StrCat("--corrupt=", offset)});
    EXPECT_EQ(result.status, 1) << offset;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("the consumer failed: DATA_LOSS"),
                      HasSubstr(absl::StrCat("byte ", offset, " of 10485773")),
                      Not(HasSubstr("OK:"))));
  }
}

TEST_F(ProduceConsume, SaysWhatDoesNotFit) {
  const Result result =
      RunExample("produce_consume", {DriverFlag(), "--size=9000G"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("RESOURCE_EXHAUSTED"),
                                   HasSubstr("cuMemCreate(size=9663676416000"),
                                   HasSubstr("does not fit")));
}

TEST_F(ProduceConsume, RefusesACommandLineItDoesNotUnderstand) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{DriverFlag(), "--size=0"}, "'size'; expected a number of bytes"},
      {{DriverFlag(), "--size=12X"}, "'size'; expected a number of bytes"},
      {{DriverFlag(), "--size=99999999999G"}, "expected a number of bytes"},
      {{DriverFlag(), "--corrupt=99999999999"}, "expected an offset below"},
      {{DriverFlag(), "--device=7777"}, "no device has ordinal 7777"},
      {{DriverFlag(), "--wrong"}, "Unknown command line flag 'wrong'"},
      {{"--driver=libcuda.so"}, "INVALID_ARGUMENT"},
      {{absl::StrCat("--driver=", FolderOfThisProgram(), "/nowhere/cuda.so")},
       "NOT_FOUND"},
  };
  for (const auto& [args, expected] : cases) {
    const Result result = RunExample("produce_consume", args);
    EXPECT_EQ(result.status, 1) << expected;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

TEST_F(ProduceConsume, EndsAtItsDeadlineWhenTheTimeDoesNotSuffice) {
  const Result result =
      RunExample("produce_consume", {DriverFlag(), "--timeout=0"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("DEADLINE_EXCEEDED"));
}

// ---- shared_blocks ----------------------------------------------------------

TEST_F(SharedBlocks, VerifiesEveryByteAndGivesEveryBlockBack) {
  const Result result = RunExample("shared_blocks", {DriverFlag()});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(LineOf(result.output, 0), StartsWith(DriverLine()));
  for (const char* step :
       {"owner: allocate 2000 x 64.0 KiB", "owner: export them: a ticket each",
        "importer: subscribe to the pool", "importer: import them all",
        "importer: verify every byte"}) {
    EXPECT_THAT(result.output,
                ContainsPattern(absl::StrCat(step, " +[0-9.]+ ms")));
  }
  for (const char* line :
       {"owner: freed half: 65536000 bytes wait for the importer",
        "importer: a ticket to a freed block: FAILED_PRECONDITION",
        "owner: given back: 0 bytes wait"}) {
    EXPECT_THAT(result.output, HasSubstr(line));
  }
  EXPECT_THAT(LastLine(result.output),
              StartsWith("OK: 2000 blocks of 65536 bytes"));
}

TEST_F(SharedBlocks, TakesAnySizeAndNumber) {
  for (const char* blocks : {"--blocks=1", "--blocks=501"}) {
    for (const char* size : {"--size=1", "--size=4097", "--size=70K"}) {
      const Result result =
          RunExample("shared_blocks", {DriverFlag(), blocks, size});
      EXPECT_EQ(result.status, 0) << blocks << size << ": " << result.output;
    }
  }
}

TEST_F(SharedBlocks, FindsOneWrongByteWhereverItIs) {
  for (const char* block : {"0", "1234", "1999"}) {
    const Result result = RunExample(
        "shared_blocks",
        {DriverFlag(), "--size=4K", absl::StrCat("--corrupt=", block)});
    EXPECT_EQ(result.status, 1) << block;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr(absl::StrCat("DATA_LOSS: block ", block, ":")),
                      Not(HasSubstr("OK:"))));
  }
}

TEST_F(SharedBlocks, RefusesACommandLineItDoesNotUnderstand) {
  for (const auto& [flag, expected] :
       {std::pair<const char*, const char*>{"--blocks=0", "expected at least"},
        {"--size=0", "'size'; expected a number of bytes"},
        {"--corrupt=2000", "expected a block below 2000"}}) {
    const Result result = RunExample("shared_blocks", {DriverFlag(), flag});
    EXPECT_EQ(result.status, 1) << flag;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

// ---- ring -------------------------------------------------------------------

TEST_F(Ring, VerifiesWhatCameAndSaysHowFastItWas) {
  const Result result =
      RunExample("ring", {DriverFlag(), "--size=1M", "--items=40"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(LineOf(result.output, 0), StartsWith(DriverLine()));
  EXPECT_THAT(result.output,
              ContainsPattern("one process: +[0-9.]+ GB/s in and out"));
  EXPECT_THAT(result.output,
              ContainsPattern("the ring: +[0-9.]+ GB/s, [0-9.]+ of that"));
  EXPECT_THAT(LastLine(result.output),
              StartsWith("OK: 40 items of 1.0 MiB went through 8 buffers"));
}

TEST_F(Ring, TakesAnySizeAndNumber) {
  for (const char* buffers : {"--buffers=1", "--buffers=3"}) {
    for (const char* items : {"--items=4", "--items=19"}) {
      const Result result =
          RunExample("ring", {DriverFlag(), "--size=4097", buffers, items});
      EXPECT_EQ(result.status, 0) << buffers << items << result.output;
    }
  }
}

TEST_F(Ring, FindsTheItemThatIsWrong) {
  const Result result = RunExample(
      "ring", {DriverFlag(), "--size=64K", "--items=40", "--corrupt=39"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("DATA_LOSS: the last item of frame 2: "),
                    Not(HasSubstr("OK:"))));
}

TEST_F(Ring, RefusesACommandLineItDoesNotUnderstand) {
  for (const auto& [flag, expected] :
       {std::pair<const char*, const char*>{"--buffers=0", "expected 1 to 64"},
        {"--buffers=65", "expected 1 to 64"},
        {"--items=3", "at least 4 items"}}) {
    const Result result = RunExample("ring", {DriverFlag(), flag});
    EXPECT_EQ(result.status, 1) << flag;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

// A process that may see no GPU is told the same with and without a GPU.
TEST(Examples, SystemDriverWithoutAGpuIsAClearError) {
  const std::map<std::string, std::string> no_gpu = {
      {"CUDA_VISIBLE_DEVICES", "-1"}};
  for (const auto& [name, args] :
       {std::pair<const char*, std::vector<std::string>>{"produce_consume", {}},
        {"file_ticket", {"main", "/tmp/never.ticket"}},
        {"one_process_per_gpu", {}},
        {"ring", {}},
        {"shared_blocks", {}}}) {
    std::vector<std::string> words = args;
    words.push_back("--driver=system");
    const Result result = RunExample(name, words, no_gpu);
    EXPECT_EQ(result.status, 1) << name;
    EXPECT_THAT(
        result.output,
        AllOf(StartsWith(absl::StrCat(name, ": error: NOT_FOUND: ")),
              ContainsPattern(absl::StrCat(platform::SystemDriverName(),
                                           "|CUDA_ERROR_NO_DEVICE")),
              ContainsPattern("Install the NVIDIA driver|No GPU is visible"),
              Not(HasSubstr("OK"))));
  }
}

TEST(Examples, UseTheSystemDriverUnlessToldOtherwise) {
  const Result result =
      RunExample("produce_consume", {}, {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, Not(HasSubstr("host-memory driver (no GPU)")));
}

// ---- file_ticket ------------------------------------------------------------

class FileTicket : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  Program StartMain(const std::string& size = "1K",
                    const std::string& timeout = "60") {
    return StartExample("file_ticket", {"main", path_, DriverFlag(),
                                        absl::StrCat("--size=", size),
                                        absl::StrCat("--timeout=", timeout)});
  }
  Result Visit(const std::string& mode) {
    return RunExample("file_ticket", {mode, path_, DriverFlag()});
  }

  const std::string path_ = ::testing::TempDir() + "/vmmshare-" +
                            std::to_string(platform::CurrentProcessId()) +
                            ".ticket";
};

TEST_F(FileTicket, MainSeesWhatTheOthersWrote) {
  Program main = StartMain("40K");
  ASSERT_TRUE(main.WaitForText("the ticket is in ")) << main.output();
  const Result memory = Visit("memory");
  EXPECT_EQ(memory.status, 0) << memory.output;
  const Result rtc = Visit("rtc");
  EXPECT_EQ(rtc.status, 0) << rtc.output;
  EXPECT_EQ(main.Wait(), 0);

  EXPECT_THAT(LineOf(main.output(), 0), HasSubstr(DriverLine()));
  EXPECT_THAT(main.output(),
              HasSubstr("after allocating: 1 1 1 1 1 1 1 1 ... (all 10240 "
                        "values are 1)"));
  EXPECT_THAT(main.output(),
              HasSubstr("after memory: 8 8 8 8 8 8 8 8 ... (all 10240 values "
                        "are 8)"));
  if (OnHostMemoryDriver()) {
    EXPECT_THAT(rtc.output, HasSubstr("skipped: rtc needs a GPU"));
    EXPECT_THAT(main.output(), HasSubstr("after rtc: 8 8 8 8"));
  } else {
    EXPECT_THAT(main.output(),
                HasSubstr("after rtc: 11 11 11 11 11 11 11 11 ... (all 10240 "
                          "values are 11)"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTicket, MainGivesUpAtItsDeadlineAndTakesTheFileAlong) {
  Program main = StartMain("1K", "1");
  EXPECT_EQ(main.Wait(), 1);
  EXPECT_THAT(main.output(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// As after a kill: who waits for the file must not find the old one.
TEST_F(FileTicket, MainRemovesAnOldFileBeforeAnythingElse) {
  std::ofstream(path_) << "an old ticket\nan old address\n";
  ASSERT_TRUE(std::filesystem::exists(path_));
  const Result result =
      RunExample("file_ticket", {"main", path_, DriverFlag(), "--device=9999"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("9999"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTicket, MainRefusesLessThanOneKibibyte) {
  Program main = StartMain("1020");
  EXPECT_EQ(main.Wait(), 1);
  EXPECT_THAT(main.output(), HasSubstr("expected at least 1024"));
}

TEST_F(FileTicket, AVisitorWithoutAFileIsToldToStartMain) {
  const Result result = Visit("memory");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("start this first")));
}

TEST_F(FileTicket, AVisitorRefusesAChangedTicket) {
  Program main = StartMain();
  ASSERT_TRUE(main.WaitForText("the ticket is in ")) << main.output();
  std::ifstream in(path_);
  std::string ticket;
  std::string address;
  std::getline(in, ticket);
  std::getline(in, address);
  ticket[ticket.size() / 2] = ticket[ticket.size() / 2] == 'A' ? 'B' : 'A';
  std::ofstream(path_) << ticket << "\n" << address << "\n";
  const Result result = Visit("memory");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("INVALID_ARGUMENT"));
}

TEST_F(FileTicket, AVisitorOfADeadMainIsToldThatNobodyServes) {
  {
    Program main = StartMain();
    ASSERT_TRUE(main.WaitForText("the ticket is in ")) << main.output();
    main.Kill();
    main.Wait();
  }
  const Result result = Visit("memory");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("NOT_FOUND"));
}

// ---- one_process_per_gpu ----------------------------------------------------

TEST_F(OneProcessPerGpu, AllReadFromAll) {
  const Result result =
      RunExample("one_process_per_gpu", {DriverFlag(), "--size=8M"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(LineOf(result.output, 0), StartsWith(DriverLine()));
  EXPECT_THAT(LastLine(result.output), StartsWith("OK: "));
  if (OnHostMemoryDriver()) {
    EXPECT_THAT(result.output, HasSubstr("2 processes on 2 GPUs"));
    EXPECT_THAT(result.output, ContainsPattern("rank +0 reads +- +OK [0-9.]+"));
    EXPECT_THAT(result.output, ContainsPattern("rank +1 reads +OK [0-9.]+ +-"));
  }
}

TEST_F(OneProcessPerGpu, SeveralShareAGpu) {
  const Result result = RunExample(
      "one_process_per_gpu", {DriverFlag(), "--size=3000001", "--processes=5"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, ContainsPattern("rank +4 reads( +OK [0-9.]+){4}"));
}

// Every process calls its own GPU 0; the tickets name devices by UUID.
TEST_F(Pitfall19, ProcessesThatAllCallTheirGpuZeroTellEachOthersApart) {
  const Result result =
      RunExample("one_process_per_gpu",
                 {DriverFlag(), "--size=8M", "--isolate", "--processes=3"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("each sees only its own"),
                    ContainsPattern("rank +2 reads( +OK [0-9.]+){2}")));
}

TEST_F(OneProcessPerGpu, FindsTheBufferThatIsWrong) {
  const Result result =
      RunExample("one_process_per_gpu",
                 {DriverFlag(), "--size=3M", "--processes=3", "--corrupt=1"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(ContainsPattern("rank +0 reads +- +FAIL +OK"),
                    ContainsPattern("rank +1 reads +OK [0-9.]+ +- +OK"),
                    ContainsPattern("rank +2 reads +OK [0-9.]+ +FAIL"),
                    HasSubstr("2 buffers did not read as their owner wrote"),
                    Not(HasSubstr("OK: "))));
}

TEST_F(OneProcessPerGpu, SaysWhichGpusCannotReachEachOther) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "the peers of real GPUs cannot be taken away";
  }
  const Result result = RunExample("one_process_per_gpu", {DriverFlag()},
                                   {{"VMMSHARE_HOST_PEERS", "none"}});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("FAILED_PRECONDITION"),
                                   HasSubstr("has no peer access to")));
}

TEST(Hello, OpensInOneProcessWhatAnotherPublished) {
  const std::string driver = OnHostMemoryDriver() ? HostDriverPath() : "system";
  Program owner = StartExample("hello", {driver});
  ASSERT_TRUE(owner.WaitForText("vmmshare:2:")) << owner.output();
  const std::string ticket = LineOf(owner.output(), 0);
  const Result opened = RunExample("hello", {driver, ticket});
  EXPECT_EQ(opened.status, 0) << opened.output;
  EXPECT_THAT(opened.output, HasSubstr("opened 1073741824 bytes"));
  // A damaged ticket is refused, and says so.
  const Result refused =
      RunExample("hello", {driver, ticket.substr(0, ticket.size() - 1)});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr("not a usable ticket"));
}

}  // namespace
}  // namespace vmm::testing
