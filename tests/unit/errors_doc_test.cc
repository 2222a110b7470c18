// docs/errors.md is what people read at night, so it is tested row by row; and a
// list of docs/lifetime.md.
#include <cstddef>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "platform/cuda/driver.h"

namespace vmm::platform {
namespace {

const std::map<std::string, CUresult>& Results() {
  static const auto* results = new std::map<std::string, CUresult>{
      {"CUDA_ERROR_INVALID_VALUE", CUDA_ERROR_INVALID_VALUE},
      {"CUDA_ERROR_INVALID_HANDLE", CUDA_ERROR_INVALID_HANDLE},
      {"CUDA_ERROR_OUT_OF_MEMORY", CUDA_ERROR_OUT_OF_MEMORY},
      {"CUDA_ERROR_NO_DEVICE", CUDA_ERROR_NO_DEVICE},
      {"CUDA_ERROR_INVALID_DEVICE", CUDA_ERROR_INVALID_DEVICE},
      {"CUDA_ERROR_NOT_FOUND", CUDA_ERROR_NOT_FOUND},
      {"CUDA_ERROR_FILE_NOT_FOUND", CUDA_ERROR_FILE_NOT_FOUND},
      {"CUDA_ERROR_NOT_INITIALIZED", CUDA_ERROR_NOT_INITIALIZED},
      {"CUDA_ERROR_DEINITIALIZED", CUDA_ERROR_DEINITIALIZED},
      {"CUDA_ERROR_INVALID_CONTEXT", CUDA_ERROR_INVALID_CONTEXT},
      {"CUDA_ERROR_CONTEXT_IS_DESTROYED", CUDA_ERROR_CONTEXT_IS_DESTROYED},
      {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
       CUDA_ERROR_PEER_ACCESS_UNSUPPORTED},
      {"CUDA_ERROR_SYSTEM_NOT_READY", CUDA_ERROR_SYSTEM_NOT_READY},
      {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
      {"CUDA_ERROR_NOT_PERMITTED", CUDA_ERROR_NOT_PERMITTED},
      {"CUDA_ERROR_NOT_SUPPORTED", CUDA_ERROR_NOT_SUPPORTED},
      {"CUDA_ERROR_NOT_READY", CUDA_ERROR_NOT_READY},
      {"CUDA_ERROR_TIMEOUT", CUDA_ERROR_TIMEOUT},
      // By number: cuda.h of older toolkits does not have them.
      {"CUDA_ERROR_MULTICAST_RESOURCE_FULL", static_cast<CUresult>(47)},
      {"CUDA_ERROR_FABRIC_NOT_READY", static_cast<CUresult>(919)},
      {"CUDA_ERROR_UNKNOWN", CUDA_ERROR_UNKNOWN},
  };
  return *results;
}

// The rows of the table of driver results: result and code.
std::map<std::string, std::string> RowsOfTheDocument() {
  std::ifstream document(VMMSHARE_SOURCE_DIR "/docs/errors.md");
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("| CUDA_ERROR_", 0) != 0) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    rows[cells[0].substr(2)] = cells[1];
  }
  return rows;
}

class ErrorsDocument : public ::testing::Test {
 protected:
  // The sources stay where they were built; the program may have been copied.
  void SetUp() override {
    if (!std::ifstream(VMMSHARE_SOURCE_DIR "/CMakeLists.txt")) {
      GTEST_SKIP() << "the sources are not here";
    }
  }
};

TEST_F(ErrorsDocument, GivesEveryResultTheCodeThatTheLibraryGivesIt) {
  const std::map<std::string, std::string> rows = RowsOfTheDocument();
  ASSERT_FALSE(rows.empty());
  for (const auto& [name, code] : rows) {
    ASSERT_EQ(Results().count(name), 1u) << name << " is not known here";
    EXPECT_EQ(absl::StatusCodeToString(CodeOf(Results().at(name))), code)
        << name;
  }
}

TEST_F(ErrorsDocument, ListsEveryResultThatHasACodeOfItsOwn) {
  const std::map<std::string, std::string> rows = RowsOfTheDocument();
  for (const auto& [name, result] : Results()) {
    EXPECT_EQ(rows.count(name), 1u) << name << " is missing in docs/errors.md";
  }
  // Whatever a driver may answer, up to the highest number in use: what has a
  // code of its own is in the list above.
  for (int number = 1; number < 1000; ++number) {
    const auto result = static_cast<CUresult>(number);
    if (CodeOf(result) == absl::StatusCode::kInternal) continue;
    bool listed = false;
    for (const auto& entry : Results()) listed |= entry.second == result;
    EXPECT_TRUE(listed) << "CUresult " << number;
  }
}

// What lies in `file` of the sources behind `from`, as far as `to`.
std::string Between(const std::string& file, const std::string& from,
                    const std::string& to) {
  std::ifstream in(VMMSHARE_SOURCE_DIR "/" + file);
  std::stringstream read;
  read << in.rdbuf();
  const std::string text = read.str();
  const std::size_t begin = text.find(from);
  const std::size_t end = text.find(to, begin);
  EXPECT_NE(end, std::string::npos) << file << " has no " << from << to;
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + from.size(), end - begin - from.size());
}

using LifetimeDocument = ErrorsDocument;

TEST_F(LifetimeDocument, ListsTheFileSystemsThatOtherMachinesMayHave) {
  const std::string said = Between("docs/lifetime.md", "of that name; not on ",
                                   " as the kernel mounts them");
  const std::set<std::string> listed =
      absl::StrSplit(absl::AsciiStrToLower(absl::StrReplaceAll(
                         said, {{" and ", ", "}, {"\n  ", " "}})),
                     ", ");
  const std::string cases = Between(
      "platform/ipc/stale_sockets_posix.cc",
      "switch (static_cast<std::uint32_t>(system.f_type)) {", "return true;");
  std::set<std::string> known;
  for (absl::string_view line : absl::StrSplit(cases, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "case ")) continue;
    absl::ConsumePrefix(&line, "k");
    if (!absl::ConsumeSuffix(&line, "_SUPER_MAGIC:")) {
      absl::ConsumeSuffix(&line, ":");
    }
    const std::string name = absl::AsciiStrToLower(line);
    // Names of one.
    known.insert(name == "cifs" || name == "smb2" ? "smb" : name);
  }
  EXPECT_EQ(listed, known);
}

}  // namespace
}  // namespace vmm::platform
