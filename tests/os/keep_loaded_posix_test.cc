// platform/os/keep_loaded_posix.h, by what must call it: a library that is let go
// of while a thread of its own is in it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/os/unload.h"

// What a library made for as long as the process lives is lost where it goes, which
// is what this program is about.
extern "C" int __lsan_is_turned_off();   // NOLINT(bugprone-reserved-identifier)
extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier)
  return 1;
}

namespace vmm::platform {
namespace {

class KeepLoaded : public ::testing::TestWithParam<const char*> {
 protected:
  static bool IsLoaded() {
    void* const library =
        ::dlopen(VMMSHARE_TEST_UNLOADED, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) testing::Unload(library);
    return library != nullptr;
  }
};

TEST_P(KeepLoaded, ALibraryStaysWhoseThreadNobodyJoins) {
  // Without such a thread it goes; one test has a process of its own as a rule.
  if (!IsLoaded()) {
    testing::Unload(testing::Load(VMMSHARE_TEST_UNLOADED));
    ASSERT_FALSE(IsLoaded());
  }
  void* const library = testing::Load(VMMSHARE_TEST_UNLOADED);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto call =
      reinterpret_cast<void (*)()>(testing::Find(library, GetParam()));
  ASSERT_NE(call, nullptr);
  call();
  testing::Unload(library);
  EXPECT_TRUE(IsLoaded());
}

INSTANTIATE_TEST_SUITE_P(By, KeepLoaded,
                         ::testing::Values("vmmshare_test_ask_lifeline",
                                           "vmmshare_test_close_elsewhere",
                                           "vmmshare_test_run_detached"),
                         [](const auto& of) -> std::string {
                           return of.param;
                         });

}  // namespace
}  // namespace vmm::platform
