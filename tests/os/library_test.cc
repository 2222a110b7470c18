#include "platform/os/library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::Child;

constexpr char kName[] = "libvmmshare_test_planted.so";

class LibraryTest : public OsTest {
 protected:
  // A copy of the library as `name` in the temporary directory.
  std::string Plant(const std::string& name = kName) {
    const std::string path = temp_.File(name);
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    // It is built beside this program, and copied along with it.
    const std::filesystem::path here =
        std::filesystem::read_symlink("/proc/self/exe").parent_path();
    std::filesystem::copy_file(here / kName, path);
    Check(::chmod(path.c_str(), 0755) == 0, "chmod() failed");
    return path;
  }
  TempDirectory temp_;
};

int Call(const Library& library) {
  auto* function =
      reinterpret_cast<int (*)()>(library.Find("vmmshare_test_planted"));
  return function == nullptr ? -1 : function();
}

// In the working directory args[0], opens the library by its name. Answers the
// status code.
int OpenByName(const std::vector<std::string>& args) {
  Check(::chdir(args[0].c_str()) == 0, "chdir() failed");
  absl::StatusOr<Library> library = Library::OpenSystem(kName);
  if (!library.ok()) {
    EXPECT_NE(library.status().message().find(kName), std::string::npos)
        << library.status();
    return static_cast<int>(library.status().code());
  }
  EXPECT_EQ(Call(*library), 42);
  EXPECT_EQ(library->path()[0], '/') << library->path();
  return 0;
}
const bool kOpenByName = testing::RegisterChild("open_by_name", &OpenByName);

// With `search_path` before what this program itself may need.
int OpenWith(std::string search_path, const std::string& directory) {
  const char* own = std::getenv("LD_LIBRARY_PATH");
  if (own != nullptr && *own != '\0') {
    search_path += search_path.empty() ? "" : ":";
    search_path += own;
  }
  return Child::Start("open_by_name", {directory},
                      {{"LD_LIBRARY_PATH", search_path}})
      .Wait();
}

constexpr int kNotFound = static_cast<int>(absl::StatusCode::kNotFound);
constexpr int kRefused =
    static_cast<int>(absl::StatusCode::kFailedPrecondition);

TEST_F(LibraryTest, OpensASystemLibraryByName) {
  Library library = Must(Library::OpenSystem("libc.so.6"));
  EXPECT_NE(library.Find("getpid"), nullptr);
  EXPECT_EQ(library.path()[0], '/') << library.path();
}

TEST_F(LibraryTest, FindsNothingUnderAnUnknownSymbol) {
  Library library = Must(Library::OpenSystem("libc.so.6"));
  EXPECT_EQ(library.Find("vmmshare_no_such_symbol"), nullptr);
}

TEST_F(LibraryTest, AMissingSystemLibraryIsNotFoundInTheLoadersWords) {
  const absl::Status status =
      Library::OpenSystem("libvmmshare-none.so.1").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("cannot open shared object file"),
            std::string::npos)
      << status;
}

TEST_F(LibraryTest, ANameMustNotHaveADirectoryPart) {
  for (const std::string name :
       {"./libc.so.6", "../libc.so.6", "/lib/libc.so.6", "a/b", ""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Library::OpenSystem(name).status()))
        << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      Library::OpenSystem(std::string("libc.so.6\0x", 11)).status()));
}

TEST_F(LibraryTest, AnAbsoluteSearchDirectoryServes) {
  Plant();
  EXPECT_EQ(OpenWith(temp_.path(), "/"), 0);
}

TEST_F(LibraryTest, ThePlantedFileIsNotFoundWithoutASearchPath) {
  Plant();
  EXPECT_EQ(OpenWith("", temp_.path()), kNotFound);
}

TEST_F(LibraryTest, RefusesALibraryPlantedInTheWorkingDirectory) {
  Plant();
  for (const char* search_path :
       {".", ":", "/usr/lib:", ":/usr/lib", "/usr/lib::/lib", "/usr/lib;.",
        "./", "../../tmp/:."}) {
    EXPECT_EQ(OpenWith(search_path, temp_.path()), kRefused) << search_path;
  }
}

TEST_F(LibraryTest, RefusesALibraryPlantedBelowTheWorkingDirectory) {
  Plant(std::string("sub/") + kName);
  EXPECT_EQ(OpenWith("sub", temp_.path()), kRefused);
}

TEST_F(LibraryTest, RefusesALibraryPlantedForANewerProcessor) {
  Plant(std::string("glibc-hwcaps/x86-64-v2/") + kName);
  EXPECT_EQ(OpenWith(".", temp_.path()), kRefused);
}

TEST_F(LibraryTest, ARelativeSearchDirectoryWithoutTheLibraryIsHarmless) {
  EXPECT_EQ(OpenWith(".", temp_.path()), kNotFound);
}

TEST_F(LibraryTest, OpensAnAbsolutePath) {
  const std::string path = Plant();
  Library library = Must(Library::OpenPath(path));
  EXPECT_EQ(library.path(), path);
  EXPECT_EQ(Call(library), 42);
}

TEST_F(LibraryTest, FollowsALinkToTheRealFile) {
  Plant("libreal.so.1.2");
  ASSERT_EQ(::symlink("libreal.so.1.2", temp_.File("liblink.so").c_str()), 0);
  EXPECT_TRUE(Library::OpenPath(temp_.File("liblink.so")).ok());
}

TEST_F(LibraryTest, RefusesARelativePath) {
  for (const std::string& path :
       {std::string(), std::string("libc.so.6"), std::string("./x.so"),
        std::string("x/y.so"), std::string("/x.so\0y", 7)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Library::OpenPath(path).status()))
        << path;
  }
}

TEST_F(LibraryTest, AMissingFileIsNotFound) {
  const absl::Status status = Library::OpenPath(temp_.File("none.so")).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(LibraryTest, RefusesADirectory) {
  EXPECT_TRUE(
      absl::IsFailedPrecondition(Library::OpenPath(temp_.path()).status()));
}

TEST_F(LibraryTest, RefusesAFifoWithoutWaitingForItsWriter) {
  ASSERT_EQ(::mkfifo(temp_.File("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Library::OpenPath(temp_.File("fifo")).status()));
}

TEST_F(LibraryTest, RefusesAFileThatOthersMayWrite) {
  const std::string path = Plant();
  ASSERT_EQ(::chmod(path.c_str(), 0757), 0);
  const absl::Status status = Library::OpenPath(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("0757"), std::string::npos) << status;
}

TEST_F(LibraryTest, RefusesAFileThatAnotherGroupMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the group";
  const std::string path = Plant();
  ASSERT_EQ(::chown(path.c_str(), 0, kStranger), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0775), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(Library::OpenPath(path).status()));
}

TEST_F(LibraryTest, TakesAFileThatTheUsersOwnGroupMayWrite) {
  if (::geteuid() != ::getegid()) {
    GTEST_SKIP() << "this user's group has another number";
  }
  const std::string path = Plant();
  ASSERT_EQ(::chmod(path.c_str(), 0775), 0);
  EXPECT_TRUE(Library::OpenPath(path).ok());
}

TEST_F(LibraryTest, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  const std::string path = Plant();
  ASSERT_EQ(::chown(path.c_str(), kStranger, kStranger), 0);
  const absl::Status status = Library::OpenPath(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find(std::to_string(kStranger)), std::string::npos)
      << status;
}

TEST_F(LibraryTest, AFileThatIsNoLibraryFailsInTheLoadersWords) {
  std::ofstream(temp_.File("text.so")) << std::string(4096, 'x');
  const absl::Status status = Library::OpenPath(temp_.File("text.so")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("ELF"), std::string::npos) << status;
}

}  // namespace
}  // namespace vmm::platform
