// What a caller finds: each promise of vmm/c/base.h, broken on purpose.
#include "tests/calls/caller.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/support/private_directory.h"

namespace vmm::testing {
namespace {

// Functions such as the library's, each wrong in one way, but for the first.
vmmshare_error* AnError() {
  vmmshare_error* error = nullptr;
  vmmshare_device_count(nullptr, nullptr, &error);
  return error;
}
void Set(vmmshare_error** error, vmmshare_error* to) {
  if (error != nullptr) {
    *error = to;
  } else {
    vmmshare_error_free(to);
  }
}
vmmshare_status vmmshare_sound(vmmshare_text** made, vmmshare_error** error) {
  *made = nullptr;
  Set(error, AnError());
  return VMMSHARE_INVALID_ARGUMENT;
}
vmmshare_status vmmshare_mute(vmmshare_text** made, vmmshare_error** error) {
  *made = nullptr;
  Set(error, nullptr);
  return VMMSHARE_NOT_FOUND;
}
vmmshare_status vmmshare_late(vmmshare_text**, vmmshare_error** error) {
  Set(error, AnError());
  return VMMSHARE_INVALID_ARGUMENT;
}
vmmshare_status vmmshare_empty(vmmshare_text** made, vmmshare_error** error) {
  *made = nullptr;
  Set(error, nullptr);
  return VMMSHARE_OK;
}
vmmshare_status vmmshare_scribble(vmmshare_pointer_info* info,
                                  vmmshare_error** error) {
  info->base = 1;
  Set(error, AnError());
  return VMMSHARE_INVALID_ARGUMENT;
}
vmmshare_status vmmshare_credulous(const vmmshare_driver*,
                                   vmmshare_error** error) {
  Set(error, nullptr);
  return VMMSHARE_OK;
}
vmmshare_status vmmshare_vague(vmmshare_text** made, vmmshare_error** error) {
  *made = nullptr;
  Set(error, AnError());
  return VMMSHARE_INTERNAL;
}

class ACaller : public ::testing::Test {
 protected:
  // What is odd, and whether an error is wanted, are the dice's: often enough.
  static constexpr int kOften = 300;

  PrivateDirectory directory_;
  World world_{directory_.path(), "", /*has_faults=*/false};
  Caller caller_{world_, 1};
  vmmshare_text* text_ = nullptr;
};

TEST_F(ACaller, FindsNothingWhereAllIsWell) {
  for (int i = 0; i < kOften; ++i) caller_.Do<vmmshare_sound>(&text_);
}

TEST_F(ACaller, FindsAFailureWithoutAnError) {
  EXPECT_NONFATAL_FAILURE(caller_.Do<vmmshare_mute>(&text_), "has no error");
}

TEST_F(ACaller, FindsWhatAFailureLeavesSet) {
  EXPECT_NONFATAL_FAILURE(caller_.Do<vmmshare_late>(&text_),
                          "failed and set what it makes");
}

TEST_F(ACaller, FindsASuccessThatMadeNothing) {
  EXPECT_NONFATAL_FAILURE(caller_.Do<vmmshare_empty>(&text_), "made nothing");
}

TEST_F(ACaller, FindsAStructureThatAFailureWroteTo) {
  vmmshare_pointer_info info = {};
  info.struct_size = sizeof(info);
  EXPECT_NONFATAL_FAILURE(caller_.Do<vmmshare_scribble>(&info),
                          "wrote to a structure");
}

TEST_F(ACaller, FindsAHandleThatIsTakenForAnother) {
  const vmmshare_driver* const driver = world_.driver;
  EXPECT_NONFATAL_FAILURE(
      {
        const vmmshare_driver* odd = driver;
        while (odd == driver) odd = caller_.Odd(driver);
        caller_.Do<vmmshare_credulous>(odd);
      },
      "for no handle of its type");
}

TEST_F(ACaller, FindsAStatusThatAnErrorDoesNotHave) {
  EXPECT_NONFATAL_FAILURE(
      {
        ::testing::TestPartResultArray found;
        {
          const ::testing::ScopedFakeTestPartResultReporter reporter(
              ::testing::ScopedFakeTestPartResultReporter::
                  INTERCEPT_ONLY_CURRENT_THREAD,
              &found);
          caller_.Do<vmmshare_vague>(&text_);
        }
        // The status, which is none that is documented; and the error's.
        if (found.size() == 2) ADD_FAILURE() << "both were found";
      },
      "both were found");
}

TEST_F(ACaller, FindsBytesThatSomebodyElseWrote) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(world_.real->cuMemAlloc(&memory, 10'000), CUDA_SUCCESS);
  Thing thing;
  thing.address = memory;
  thing.size = 10'000;
  thing.fill = 7;
  caller_.Fill(thing, caller_.stream());
  caller_.CheckFill(thing, "memory");
  ASSERT_EQ(world_.real->cuMemsetD8(memory + 9'999, 8, 1), CUDA_SUCCESS);
  // The caller's stream does not wait for the default one.
  ASSERT_EQ(world_.real->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_NONFATAL_FAILURE(caller_.CheckFill(thing, "memory"),
                          "has 8 at 9999, expected 7");
  EXPECT_EQ(world_.real->cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(ACaller, FindsMemoryThatIsLeftInTheDriver) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(world_.real->cuMemAlloc(&memory, 10'000), CUDA_SUCCESS);
  EXPECT_NONFATAL_FAILURE(world_.CloseAll(caller_.dice(), absl::ZeroDuration()),
                          "the driver still has 1 device blocks");
  EXPECT_EQ(world_.real->cuMemFree(memory), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
