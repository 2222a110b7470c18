// A directory of a test's own.
#ifndef VMMSHARE_TESTS_SUPPORT_PRIVATE_DIRECTORY_H_
#define VMMSHARE_TESTS_SUPPORT_PRIVATE_DIRECTORY_H_

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "platform/os/machine.h"
#include "tests/support/must.h"

namespace vmm::testing {

// A new directory of mode 0700, removed with what is in it.
class PrivateDirectory {
 public:
  PrivateDirectory() {
    std::array<std::uint8_t, 8> bytes{};
    Must(platform::FillRandom(absl::MakeSpan(bytes)));
    path_ = std::filesystem::temp_directory_path() /
            ("vmmshare-test-" +
             absl::BytesToHexString(absl::string_view(
                 reinterpret_cast<const char*>(bytes.data()), bytes.size())));
    std::filesystem::create_directory(path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~PrivateDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  // Where listeners are told to be: in here, or nowhere in particular on a
  // system whose channels are in no directory.
  std::string for_listeners() const {
    return platform::kNativeHandleIsPosixFd ? path() : "";
  }

 private:
  std::filesystem::path path_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_PRIVATE_DIRECTORY_H_
