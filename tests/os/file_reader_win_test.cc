// What Windows opens by a path, and what it does not.
#include <gmock/gmock.h>
#include <windows.h>

#include "absl/strings/str_cat.h"
#include "platform/os/file_reader.h"
#include "platform/os/utf16_win.h"
#include "tests/os/win_test.h"
#include "tests/support/host_instance.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

constexpr char kBytes[] = "bytes";

// A folder in a folder, and a file in that.
class FileReaderTest : public WinTest {
 protected:
  FileReaderTest() {
    wchar_t temporary[MAX_PATH + 1];
    Check(::GetTempPathW(MAX_PATH, temporary) != 0, "no folder for a file");
    outer_ = absl::StrCat(ToUtf8(temporary), "vmmshare-",
                          testing::HostInstanceName("reader"),
                          std::string(100, 'x'));
    inner_ = absl::StrCat(outer_, "\\", std::string(150, 'y'));
    file_ = absl::StrCat(inner_, "\\file");
    Check(::CreateDirectoryW(Long(outer_).c_str(), nullptr) != 0 &&
              ::CreateDirectoryW(Long(inner_).c_str(), nullptr) != 0,
          "the folders of a test cannot be made");
    const OsHandle made =
        Own(::CreateFileW(Long(file_).c_str(), GENERIC_WRITE, 0, nullptr,
                          CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr));
    DWORD written = 0;
    Check(::WriteFile(Raw(made), kBytes, sizeof(kBytes), &written, nullptr) !=
                  0 &&
              written == sizeof(kBytes),
          "the file of a test cannot be written");
  }
  ~FileReaderTest() override {
    ::DeleteFileW(Long(file_).c_str());
    ::RemoveDirectoryW(Long(inner_).c_str());
    ::RemoveDirectoryW(Long(outer_).c_str());
  }

  static std::wstring Long(const std::string& path) {
    return Must(ToUtf16(absl::StrCat("\\\\?\\", path)));
  }

  std::string outer_;
  std::string inner_;
  std::string file_;
};

TEST_F(FileReaderTest, AFileIsReadHoweverLongItsPathIs) {
  ASSERT_GT(file_.size(), std::size_t{MAX_PATH});
  std::string with_slashes = file_;
  for (char& one : with_slashes) one = one == '\\' ? '/' : one;
  for (const std::string& path :
       {file_, with_slashes,
        absl::StrCat(inner_, "\\.\\..\\", std::string(150, 'y'), "\\file"),
        absl::StrCat("\\\\?\\", file_)}) {
    const FileReader reader = Must(FileReader::Open(path));
    EXPECT_EQ(Must(reader.Size()), sizeof(kBytes));
    std::vector<std::uint8_t> bytes(64);
    ASSERT_EQ(Must(reader.Read(0, absl::MakeSpan(bytes))), sizeof(kBytes));
    bytes.resize(sizeof(kBytes) - 1);
    EXPECT_EQ(Text(bytes), kBytes);
  }
}

TEST_F(FileReaderTest, AFolderIsNoFile) {
  for (const std::string& path : {outer_, inner_}) {
    const absl::Status status = FileReader::Open(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is a folder"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

TEST_F(FileReaderTest, WhatIsNotThereIsNotFound) {
  for (const std::string& path :
       {absl::StrCat(outer_, "\\none"), absl::StrCat(inner_, "\\none"),
        absl::StrCat(inner_, "\\none\\none")}) {
    const absl::Status status = FileReader::Open(path).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
  }
}

}  // namespace
}  // namespace vmm::platform
