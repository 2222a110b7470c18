// Which libraries are loaded. A file named nvcuda.dll lies beside this program.
#include <gmock/gmock.h>

#include "platform/os/library.h"
// After gtest's <windows.h>.
#include <aclapi.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/os/process.h"
#include "platform/os/security_win.h"
#include "platform/os/utf16_win.h"
#include "tests/os/win_test.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

std::string ProgramFolder() {
  std::vector<wchar_t> path(32768);
  const DWORD size = ::GetModuleFileNameW(nullptr, path.data(),
                                          static_cast<DWORD>(path.size()));
  const std::string program = ToUtf8(std::wstring_view(path.data(), size));
  return program.substr(0, program.rfind('\\'));
}

std::string PlantedPath() {
  return absl::StrCat(ProgramFolder(), "\\nvcuda.dll");
}

// A copy of the planted library that is this test's own.
class LibraryTest : public WinTest {
 protected:
  LibraryTest() {
    wchar_t folder[MAX_PATH + 1];
    Check(::GetTempPathW(MAX_PATH, folder) != 0, "no folder for a copy");
    copy_ = absl::StrCat(ToUtf8(folder), "vmmshare-", CurrentProcessId(), "-",
                         number_++, ".dll");
    Check(::CopyFileW(Must(ToUtf16(PlantedPath())).c_str(),
                      Must(ToUtf16(copy_)).c_str(), FALSE) != 0,
          "the planted library cannot be copied");
  }
  // A library that is loaded stays loaded; its file goes when it can.
  ~LibraryTest() override { ::DeleteFileW(Must(ToUtf16(copy_)).c_str()); }

  static int number_;
  std::string copy_;
};
int LibraryTest::number_ = 0;

class PlantedLibrary : public WinTest {};

TEST_F(PlantedLibrary, IsWhatAPlainSearchWouldLoad) {
  // The control of the test below.
  const HMODULE module = ::LoadLibraryExW(L"nvcuda.dll", nullptr,
                                          LOAD_LIBRARY_SEARCH_APPLICATION_DIR);
  ASSERT_NE(module, nullptr);
  EXPECT_NE(::GetProcAddress(module, "vmmshare_test_planted"), nullptr);
  ::FreeLibrary(module);
}

TEST_F(PlantedLibrary, BesideTheProgramIsNotTheSystems) {
  const std::size_t before = testing::OpenHandleCount();
  const absl::StatusOr<Library> library =
      Library::OpenSystem(SystemDriverName());
  if (library.ok()) {
    EXPECT_EQ(library->Find("vmmshare_test_planted"), nullptr);
    EXPECT_FALSE(absl::StartsWithIgnoreCase(library->path(), ProgramFolder()));
  } else {
    EXPECT_TRUE(absl::IsNotFound(library.status())) << library.status();
    EXPECT_THAT(std::string(library.status().message()), HasSubstr("System32"));
    EXPECT_EQ(testing::OpenHandleCount(), before);
  }
}

TEST_F(PlantedLibrary, ThatIsLoadedAlreadyIsNotTheSystems) {
  const HMODULE planted = ::LoadLibraryW(Must(ToUtf16(PlantedPath())).c_str());
  ASSERT_NE(planted, nullptr);
  const absl::StatusOr<Library> library =
      Library::OpenSystem(SystemDriverName());
  EXPECT_TRUE(!library.ok() ||
              library->Find("vmmshare_test_planted") == nullptr);
  ::FreeLibrary(planted);
}

// A process holds its working directory open, so this has no WinTest.
TEST(PlantedInTheWorkingDirectory, IsNotTheSystems) {
  ASSERT_NE(::SetCurrentDirectoryW(Must(ToUtf16(ProgramFolder())).c_str()), 0);
  const std::size_t before = testing::OpenHandleCount();
  const absl::StatusOr<Library> library =
      Library::OpenSystem(SystemDriverName());
  EXPECT_TRUE(!library.ok() ||
              library->Find("vmmshare_test_planted") == nullptr);
  EXPECT_EQ(testing::OpenHandleCount(), before);
}

TEST_F(LibraryTest, ASystemNameHasNoDirectory) {
  for (const std::string name : {"", "a\\nvcuda.dll", "a/nvcuda.dll",
                                 "C:nvcuda.dll", "..\\nvcuda.dll", "\xff"}) {
    const absl::Status status = Library::OpenSystem(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
  }
}

TEST_F(LibraryTest, APathIsAbsoluteAndOnADrive) {
  for (const std::string path :
       {"nvcuda.dll", ".\\nvcuda.dll", "\\nvcuda.dll", "C:nvcuda.dll",
        "\\\\server\\share\\nvcuda.dll", "\\\\?\\C:\\nvcuda.dll"}) {
    const absl::Status status = Library::OpenPath(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path << ": " << status;
  }
}

// As argv gives it, in a code page of Windows.
TEST_F(LibraryTest, APathThatIsNoUtf8IsNotCalledRelative) {
  const absl::Status status =
      Library::OpenPath("C:\\Users\\J\xF6rg\\driver.dll").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not UTF-8"));
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(HasSubstr("absolute")));
}

TEST_F(LibraryTest, AMissingFileIsNotFound) {
  const absl::Status status =
      Library::OpenPath("C:\\no such folder\\x.dll").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(LibraryTest, AFolderIsNoLibrary) {
  const absl::Status status = Library::OpenPath(ProgramFolder()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("directory"));
}

TEST_F(LibraryTest, AFileThatIsNoLibraryIsFailedPrecondition) {
  const std::string path = absl::StrCat(copy_, ".txt");
  std::ofstream(path) << "no library";
  const absl::Status status = Library::OpenPath(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  std::filesystem::remove(path);
}

// Lets everybody write to `path`.
void OpenToEverybody(const std::string& path) {
  EXPLICIT_ACCESSW rule = {};
  rule.grfAccessPermissions = GENERIC_ALL;
  rule.grfAccessMode = SET_ACCESS;
  rule.grfInheritance = NO_INHERITANCE;
  rule.Trustee.TrusteeForm = TRUSTEE_IS_SID;
  SID_IDENTIFIER_AUTHORITY world = SECURITY_WORLD_SID_AUTHORITY;
  PSID sid = nullptr;
  Check(::AllocateAndInitializeSid(&world, 1, SECURITY_WORLD_RID, 0, 0, 0, 0, 0,
                                   0, 0, &sid) != 0,
        "no SID of everybody");
  rule.Trustee.ptstrName = static_cast<wchar_t*>(sid);
  PACL list = nullptr;
  Check(::SetEntriesInAclW(1, &rule, nullptr, &list) == ERROR_SUCCESS,
        "no access list");
  const LocalMemory owned = LocalMemory::Adopt(list);
  std::wstring wide = Must(ToUtf16(path));
  Check(::SetNamedSecurityInfoW(wide.data(), SE_FILE_OBJECT,
                                DACL_SECURITY_INFORMATION, nullptr, nullptr,
                                list, nullptr) == ERROR_SUCCESS,
        "the access list cannot be set");
  ::FreeSid(sid);
}

TEST_F(LibraryTest, AFileThatEverybodyMayWriteIsRefused) {
  OpenToEverybody(copy_);
  const absl::Status status = Library::OpenPath(copy_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("S-1-1-0"));
}

TEST(LibraryByPath, ThatIsTheUsersOwnIsLoaded) {
  const Library library = Must(Library::OpenPath(PlantedPath()));
  const auto answer =
      reinterpret_cast<int (*)()>(library.Find("vmmshare_test_planted"));
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer(), 42);
  EXPECT_EQ(library.Find("no_such_symbol"), nullptr);
}

// It needs another one that lies beside it.
TEST(LibraryByPath, GetsNothingFromBesideIt) {
  const std::string path =
      absl::StrCat(ProgramFolder(), "\\vmmshare_test_needing.dll");
  const absl::Status status = Library::OpenPath(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("System32"));
  // The control: there it can be found.
  const HMODULE module = ::LoadLibraryExW(
      Must(ToUtf16(path)).c_str(), nullptr,
      LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
  EXPECT_NE(module, nullptr);
}

}  // namespace
}  // namespace vmm::platform
