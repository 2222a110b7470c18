#include <cstddef>
#include <string>

#include "absl/strings/str_replace.h"
#include "bench/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bench {
namespace {

using ::testing::HasSubstr;

constexpr char kSound[] =
    "vmmshare-trace 1\na program\na recorder\n4 events, 2 streams\n"
    "+ 4096 0\n+ 100 1\n- 0 1\n+ 8192 0\nend\n";

std::string With(const std::string& from, const std::string& to) {
  return absl::StrReplaceAll(kSound, {{from, to}});
}

std::string Refused(const std::string& text) {
  const absl::StatusOr<Trace> trace = ParseTrace(text);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument)
      << trace.status();
  return std::string(trace.status().message());
}

TEST(BenchTrace, HasWhatTheProgramAskedFor) {
  const absl::StatusOr<Trace> trace = ParseTrace(kSound);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->program, "a program");
  EXPECT_EQ(trace->recorded_with, "a recorder");
  EXPECT_EQ(trace->streams, 2u);
  EXPECT_EQ(trace->allocations, 3u);
  EXPECT_EQ(trace->peak_live, 8292u);  // The first was free before the last.
  ASSERT_EQ(trace->events.size(), 4u);
  EXPECT_FALSE(trace->events[2].allocates);
  EXPECT_EQ(trace->events[2].allocation, 0u);
  EXPECT_EQ(trace->events[2].stream, 1u);
  EXPECT_EQ(trace->events[3].size, 8192u);
}

TEST(BenchTrace, IsRefusedWhereItMakesNoSense) {
  EXPECT_THAT(Refused(With("- 0 1", "- 3 1")), HasSubstr("not made yet"));
  EXPECT_THAT(Refused(With("+ 8192 0", "- 0 0")), HasSubstr("twice"));
  EXPECT_THAT(Refused(With("- 0 1", "- 0 2")), HasSubstr("stream 2 of 2"));
  EXPECT_THAT(Refused(With("+ 100 1", "+ 0 1")), HasSubstr("0 bytes"));
  EXPECT_THAT(Refused(With("+ 100 1", "+ 18446744073709551615 1")),
              HasSubstr("expected 1 to"));
  EXPECT_THAT(Refused(With("+ 100 1", "+ 100")), HasSubstr("line 6"));
  EXPECT_THAT(Refused(With("+ 100 1", "* 100 1")), HasSubstr("line 6"));
  EXPECT_THAT(Refused(With("4 events", "5 events")), HasSubstr("middle"));
  EXPECT_THAT(Refused(With("4 events", "-1 events")), HasSubstr("line 4"));
  EXPECT_THAT(Refused("vmmshare-trace 1\na program\na recorder\n"
                      "0 events, 1 streams\nend\n"),
              HasSubstr("without events"));
  EXPECT_THAT(Refused(With("end\n", "end")), HasSubstr("middle"));
  EXPECT_THAT(Refused(With("vmmshare-trace", "another")), HasSubstr("line 1"));
  EXPECT_EQ(ParseTrace(With("trace 1", "trace 2")).status().code(),
            absl::StatusCode::kUnimplemented);
}

// Cut anywhere, it is no trace, and no part of one is taken for the whole.
TEST(BenchTrace, IsRefusedWhenItEndsInTheMiddle) {
  const std::string whole = kSound;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(ParseTrace(whole.substr(0, length)).ok()) << length;
  }
}

TEST(BenchTrace, OfAFileThatIsNotThereSaysSo) {
  EXPECT_EQ(ReadTrace("/nonexistent/a.trace").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(BenchTrace, OfPyTorchProgramsAreSound) {
  for (const char* name :
       {"transformer_training", "growing_inference", "mixture_of_experts",
        "data_loader_8_streams", "serving_32_streams"}) {
    const absl::StatusOr<Trace> trace =
        ReadTrace(std::string(VMMSHARE_TRACES "/") + name + ".trace");
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_GT(trace->events.size(), 4000u);
    EXPECT_GT(trace->peak_live, std::size_t{16} << 20);
  }
}

}  // namespace
}  // namespace bench
