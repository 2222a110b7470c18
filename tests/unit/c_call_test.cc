// The wall between C and C++: what a call's failure becomes on the other side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "vmm/c/base.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handle.h"

namespace vmm::c {
namespace {

using ::testing::HasSubstr;

struct FreeError {
  void operator()(vmmshare_error* error) const { vmmshare_error_free(error); }
};
using Error = std::unique_ptr<vmmshare_error, FreeError>;

// What is left behind by a call that does `body`.
template <typename Body>
Error ErrorOf(vmmshare_status expected, const Body& body) {
  // As from a call before.
  auto* error = reinterpret_cast<vmmshare_error*>(std::uintptr_t{1});
  EXPECT_EQ(Call(&error, body), expected);
  EXPECT_EQ(Call(nullptr, body), expected);
  return Error(error);
}

TEST(CCall, OfWhatSucceedsLeavesNoError) {
  EXPECT_EQ(ErrorOf(VMMSHARE_OK, [] { return absl::OkStatus(); }), nullptr);
}

TEST(CCall, NothingThatIsThrownCrossesTheWall) {
  const Error error = ErrorOf(VMMSHARE_INTERNAL, []() -> absl::Status {
    throw std::runtime_error("a callback of the program's threw");
  });
  EXPECT_STREQ(vmmshare_error_message(error.get()),
               "a callback of the program's threw");
  EXPECT_STREQ(vmmshare_error_remedy(error.get()),
               "See docs/errors.md, and run `vmmshare doctor`.");
  // There may be no memory to explain it either, and it is explained.
  const Error none = ErrorOf(VMMSHARE_RESOURCE_EXHAUSTED,
                             []() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(vmmshare_error_status(none.get()), VMMSHARE_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(vmmshare_error_remedy(none.get()), "Free memory of the host.");
}

TEST(CCall, WhatIsNoExceptionDoesNotCrossTheWallEither) {
  const Error error =
      ErrorOf(VMMSHARE_INTERNAL, []() -> absl::Status { throw 5; });
  EXPECT_STREQ(vmmshare_error_message(error.get()),
               "something unknown was thrown");
}

TEST(CCall, WhatAFunctionOfTheProgramsThrowsIsItsError) {
  EXPECT_EQ(CallOwn("`fill`", [] { return VMMSHARE_OK; }), absl::OkStatus());
  EXPECT_EQ(CallOwn("`fill`", [] { return VMMSHARE_ABORTED; }),
            absl::AbortedError("the program's own `fill` returned ABORTED"));
  for (vmmshare_status none : {-1, VMMSHARE_DATA_LOSS + 1, 1000}) {
    EXPECT_EQ(CallOwn("`fill`", [none] { return none; }),
              absl::UnknownError(absl::StrCat(
                  "the program's own `fill` returned ", none,
                  ", which is no vmmshare_status. Have it return one.")));
  }
  EXPECT_EQ(
      CallOwn("`fill`",
              []() -> vmmshare_status { throw std::runtime_error("no"); }),
      absl::InternalError("the program's own `fill` threw: no"));
  EXPECT_EQ(CallOwn("`fill`", []() -> vmmshare_status { throw 5; }),
            absl::InternalError("the program's own `fill` threw"));
}

TEST(CError, HasTheRemedyOfItsMessageOrThatOfItsCode) {
  const Error told = ErrorOf(VMMSHARE_NOT_FOUND, [] {
    return absl::NotFoundError("there is none. Make one. Then try again.");
  });
  EXPECT_STREQ(vmmshare_error_remedy(told.get()), "Make one. Then try again.");
  const auto remedy_of = [](absl::string_view message) {
    const Error error = ErrorOf(
        VMMSHARE_NOT_FOUND, [message] { return absl::NotFoundError(message); });
    return std::string(vmmshare_error_remedy(error.get()));
  };
  EXPECT_EQ(remedy_of("no \"a. B\" of A. z. _ / -. `Make` one"), "`Make` one");
  EXPECT_EQ(remedy_of("no room. 0 of the 64 are left; allow it 128"),
            "0 of the 64 are left; allow it 128");
  EXPECT_EQ(remedy_of("a name of A-Z a-z 0-9 . _ / -"),
            remedy_of("nothing more to say"));
  EXPECT_EQ(remedy_of("it is \"cut. Here"), remedy_of("nothing more to say"));
  std::set<std::string> remedies;
  for (const char* message : {"nothing more to say", "nothing more. "}) {
    for (vmmshare_status code = VMMSHARE_CANCELLED; code <= VMMSHARE_DATA_LOSS;
         ++code) {
      const Error error = ErrorOf(code, [&] {
        return absl::Status(static_cast<absl::StatusCode>(code), message);
      });
      EXPECT_EQ(vmmshare_error_status(error.get()), code);
      EXPECT_STREQ(vmmshare_error_message(error.get()), message);
      EXPECT_EQ(vmmshare_error_cuda_result(error.get()), -1);
      remedies.insert(vmmshare_error_remedy(error.get()));
    }
  }
  // One each for nine codes, and one for the others.
  EXPECT_EQ(remedies.size(), 10u);
  EXPECT_EQ(remedies.count(""), 0u);
}

TEST(CError, HasNoCodeThatTheInterfaceDoesNotHave) {
  const Error error = ErrorOf(VMMSHARE_UNKNOWN, [] {
    return absl::UnauthenticatedError("as a library below may say");
  });
  EXPECT_EQ(vmmshare_error_status(error.get()), VMMSHARE_UNKNOWN);
}

TEST(CError, OfNothingIsNothing) {
  EXPECT_EQ(vmmshare_error_status(nullptr), VMMSHARE_OK);
  EXPECT_STREQ(vmmshare_error_message(nullptr), "");
  EXPECT_STREQ(vmmshare_error_remedy(nullptr), "");
  EXPECT_EQ(vmmshare_error_cuda_result(nullptr), -1);
  EXPECT_STREQ(vmmshare_text_get(nullptr), "");
}

TEST(CError, EachCodeHasTheNameThatAbseilGivesIt) {
  for (vmmshare_status code = VMMSHARE_OK; code <= VMMSHARE_DATA_LOSS; ++code) {
    EXPECT_EQ(vmmshare_status_name(code),
              absl::StatusCodeToString(static_cast<absl::StatusCode>(code)))
        << code;
  }
  for (vmmshare_status none : {-1, 16, 99}) {
    EXPECT_STREQ(vmmshare_status_name(none), "UNKNOWN");
  }
}

TEST(CTime, OfARecallWithoutAnEndIsNotThatOfNone) {
  EXPECT_EQ(NanosecondsOf(absl::InfiniteDuration()), VMMSHARE_FOREVER - 1);
  EXPECT_LT(NanosecondsOf(-absl::InfiniteDuration()), 0);
  EXPECT_EQ(NanosecondsOf(absl::Seconds(2)), 2'000'000'000);
  EXPECT_EQ(NanosecondsOf(-absl::Seconds(2)), -2'000'000'000);
}

TEST(CHandle, EveryTypeHasANameOfItsOwn) {
  std::set<std::string> names;
  constexpr auto kLast = static_cast<std::uint32_t>(HandleType::kSafetensors);
  for (std::uint32_t type = 1; type <= kLast; ++type) {
    const std::string name(NameOf(static_cast<HandleType>(type)));
    EXPECT_THAT(name, ::testing::StartsWith("vmmshare_"));
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(CHandle, WhyOneCannotBeUsedIsToldApart) {
  const absl::Status null = WhyNoHandle(HandleType::kRing, true, false);
  EXPECT_TRUE(absl::IsInvalidArgument(null));
  EXPECT_THAT(std::string(null.message()), HasSubstr("vmmshare_ring is NULL"));
  const absl::Status other = WhyNoHandle(HandleType::kRing, false, false);
  EXPECT_TRUE(absl::IsInvalidArgument(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("is no vmmshare_ring"));
  const absl::Status parents = WhyNoHandle(HandleType::kRing, false, true);
  EXPECT_TRUE(absl::IsFailedPrecondition(parents));
  EXPECT_THAT(std::string(parents.message()), HasSubstr("forked child"));
}

struct Ring : Handle<HandleType::kRing> {
  explicit Ring(int* count) : ended(count) {}
  ~Ring() { ++*ended; }
  int* const ended;
};
struct RingHome : Handle<HandleType::kRingHome> {};

TEST(CHandle, OfAnotherTypeIsNotClosed) {
  int ended = 0;
  auto* const ring = new Ring(&ended);
  Close(reinterpret_cast<RingHome*>(ring));
  Close(static_cast<Ring*>(nullptr));
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(Check(ring), absl::OkStatus());
  Close(ring);
  EXPECT_EQ(ended, 1);
}

TEST(CHandle, ThatWasClosedHasNoMarkAnyMore) {
  int ended = 0;
  alignas(Ring) unsigned char memory[sizeof(Ring)] = {};
  new (memory) Ring(&ended);
  const volatile unsigned char* const mark = memory;
  EXPECT_NE(mark[0] | mark[1] | mark[2] | mark[3], 0);
  std::launder(reinterpret_cast<Ring*>(memory))->~Ring();
  EXPECT_EQ(mark[0] | mark[1] | mark[2] | mark[3], 0);
}

struct Options {
  std::uint64_t struct_size = sizeof(Options);
  std::uint64_t first = 5;
  std::uint64_t second = 6;
};

TEST(COptions, OfAnOlderProgramHaveDefaultsForWhatIsNew) {
  Options given{16, 7, 8};
  const absl::StatusOr<Options> read = ReadOptions(&given, 16, "options");
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(read->first, 7u);
  EXPECT_EQ(read->second, 6u);
  const absl::StatusOr<Options> defaults =
      ReadOptions<Options>(nullptr, 16, "options");
  ASSERT_EQ(defaults.status(), absl::OkStatus());
  EXPECT_EQ(defaults->first, 5u);
  given.struct_size = 8;
  const absl::Status small = ReadOptions(&given, 16, "options").status();
  EXPECT_TRUE(absl::IsInvalidArgument(small));
  EXPECT_THAT(std::string(small.message()),
              HasSubstr("options of 8 bytes; this library knows 16 to 24"));
}

}  // namespace
}  // namespace vmm::c
