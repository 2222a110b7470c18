// What the tests of the documents' snippets have in common.
//
// A snippet is its page's text: tests/docs/snippets.py takes it out, and it is
// included where its page's first lines have made what it uses. Where a page
// shows two processes, two threads stand for them.
#ifndef VMMSHARE_TESTS_DOCS_PAGE_TEST_H_
#define VMMSHARE_TESTS_DOCS_PAGE_TEST_H_

#include <filesystem>

#include "absl/status/status.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"

namespace vmm::testing {

// Its current directory is one of its own: some snippets write files.
class PageTest : public IpcTest {
 protected:
  PageTest() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
  }
  ~PageTest() override { std::filesystem::current_path(before_); }

  const platform::Driver* driver_ = &TestDriver();
  const Device device_ = FirstDevice();

 private:
  PrivateDirectory folder_;
  std::filesystem::path before_;
};

inline void Check(const absl::Status& status) {
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_DOCS_PAGE_TEST_H_
