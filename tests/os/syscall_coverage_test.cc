// Proves that the sweep leaves no system call out: every function of the C
// library that vmmshare's own archives call is either replaced by one that can
// fail, or on the list below of functions that make no failing system call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/base/check.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

using Names = std::set<std::string>;

// Functions that make no system call that can fail, by why.
constexpr const char* kHarmless[] = {
    // Memory and text. When memory runs out the program ends: C++ without
    // exceptions has no other answer.
    "malloc calloc realloc free aligned_alloc posix_memalign memchr memcmp",
    "memcpy memmove memset explicit_bzero strchr strrchr strcmp strncmp strlen",
    "strnlen strstr strtol strtoul strtoull strtoll strerror_r strdup strspn",
    "strcspn strncpy strcpy qsort bcmp bsearch snprintf vsnprintf sscanf",
    "__isoc99_sscanf __isoc23_sscanf __isoc23_strtol __isoc23_strtoul",
    "__isoc23_strtoll __isoc23_strtoull atoi __cmsg_nxthdr",
    // Numbers, of which the JSON library makes floating point too.
    "strtod localeconv ldexp",
    // Cannot fail, says each manual.
    "getpid getppid getuid geteuid getgid getegid umask gnu_dev_major",
    "gnu_dev_minor gnu_dev_makedev sched_yield pthread_self",
    "pthread_getspecific",
    // Fail only for arguments that a program fixes when it is written.
    "clock_gettime sysconf pthread_sigmask sigaction sigemptyset sigfillset",
    // Refused, a thread has no name of its own.
    "sigdelset pthread_setname_np",
    "sigaddset",
    "signal",
    // A thread's size of stack.
    "pthread_attr_init pthread_attr_getstacksize pthread_attr_destroy",
    // A wait that is taken up again, whatever ends it early.
    "sigtimedwait",
    // Answers no when it cannot tell.
    "isatty",
    // Reads a number of a stream that is open.
    "fileno",
    // A hint: nothing is different when it fails (platform/os/large_pages.h).
    "madvise",
    // The environment, which is memory.
    "getenv secure_getenv environ getauxval",
    // Locks.
    "pthread_mutex_lock pthread_mutex_unlock pthread_mutex_trylock",
    "pthread_once pthread_cond_wait pthread_cond_timedwait",
    "pthread_cond_clockwait pthread_cond_broadcast",
    "pthread_cond_signal pthread_join pthread_detach pthread_atfork",
    "__register_atfork",
    // A thread's own value. They make no system call: a process has so many
    // keys. thread_value_test uses them up, and sees the refusal answered.
    "pthread_setspecific pthread_key_create",
    // Printing a last line: nobody can be told that it failed.
    "fprintf vfprintf fwrite fputs fputc fflush stderr abort __assert_fail",
    // The dynamic loader makes its own calls, which no linker replaces. The
    // driver is loaded before anything that is swept.
    "dlopen dlsym dlerror dladdr",
    // What the compiler adds.
    "__cpu_model __cpu_features2",
    "atexit __errno_location __dso_handle _GLOBAL_OFFSET_TABLE_",
    "__tls_get_addr __stack_chk_fail __libc_single_threaded __popcountdi2",
    "__gcc_personality_v0",
};

const Names& HarmlessNames() {
  static const Names names = [] {
    Names all;
    for (const char* line : kHarmless) {
      all.merge(Names(absl::StrSplit(line, ' ')));
    }
    return all;
  }();
  return names;
}

bool IsHarmless(std::string name) {
  for (const char* prefix :
       {"__cxa_", "__gxx_", "_Unwind_", "__asan_", "__tsan_", "__ubsan_",
        "__sanitizer_", "__gcov_", "__llvm_", "__sanitizer", "__lsan_",
        "__emutls_", "__atomic_", "__aarch64_"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  // "__memcpy_chk" is memcpy, compiled with _FORTIFY_SOURCE.
  if (absl::StartsWith(name, "__") && absl::EndsWith(name, "_chk")) {
    name = name.substr(2, name.size() - 6);
  }
  // Abseil's sleep, which takes up again what was interrupted. A packaged one
  // adds its distribution's name.
  if (absl::StartsWith(name, "AbslInternalSleepFor")) return true;
  return HarmlessNames().contains(name);
}

// Parts of the C++ library that enter the kernel on their own, where nothing
// can be replaced. Their use would make the sweep blind.
bool IsCxxThatEntersTheKernel(const std::string& mangled) {
  for (const char* part :
       {"St10filesystem", "basic_filebuf", "basic_ifstream", "basic_ofstream",
        "basic_fstream", "random_device", "sleep_for"}) {
    if (absl::StrContains(mangled, part)) return true;
  }
  return false;
}

// What `nm` says of `archive`: lines "ADDRESS KIND NAME" or "KIND NAME".
std::vector<std::string> Nm(const std::string& archive) {
  const std::string command =
      absl::StrCat("'", VMMSHARE_NM, "' '", archive, "' 2>&1");
  std::FILE* const output = ::popen(command.c_str(), "r");
  platform::Check(output != nullptr, "cannot run nm");
  std::string text;
  char piece[4096];
  while (const std::size_t size = std::fread(piece, 1, sizeof piece, output)) {
    text.append(piece, size);
  }
  EXPECT_EQ(::pclose(output), 0) << command << ": " << text;
  return absl::StrSplit(text, '\n');
}

// Names of `archive` of the kinds in `kinds`, as nm writes kinds.
Names NamesOf(const std::string& archive, const std::string& kinds) {
  Names names;
  for (const std::string& line : Nm(archive)) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 2) continue;
    const std::string& kind = fields[fields.size() - 2];
    if (kind.size() == 1 && absl::StrContains(kinds, kind)) {
      names.insert(fields.back());
    }
  }
  return names;
}

Names Wrapped() { return absl::StrSplit(VMMSHARE_WRAPPED, ','); }

std::vector<std::string> Archives() {
  return absl::StrSplit(VMMSHARE_ARCHIVES, '|');
}

// The names among `undefined` that would escape the sweep.
std::vector<std::string> Escaping(const Names& undefined) {
  std::vector<std::string> escaping;
  const Names wrapped = Wrapped();
  for (const std::string& name : undefined) {
    const bool is_cxx = absl::StartsWith(name, "_Z");
    if (is_cxx ? IsCxxThatEntersTheKernel(name)
               : !wrapped.contains(name) && !IsHarmless(name)) {
      escaping.push_back(name);
    }
  }
  return escaping;
}

// The archives stay where they were built; the program may have been copied.
bool ArchivesAreHere() {
  return ::access(Archives().front().c_str(), R_OK) == 0 &&
         ::access(VMMSHARE_FAULTS_ARCHIVE, R_OK) == 0;
}

TEST(SyscallCoverage, NothingOfVmmshareEntersTheKernelUnseen) {
  if (!ArchivesAreHere()) GTEST_SKIP() << "the build tree is not here";
  Names undefined, defined;
  for (const std::string& archive : Archives()) {
    undefined.merge(NamesOf(archive, "Uw"));
    defined.merge(NamesOf(archive, "TDBRVWu"));
  }
  for (const std::string& name : defined) undefined.erase(name);
  // It has looked at something: these calls are certainly made.
  EXPECT_THAT(undefined, IsSupersetOf({"close", "fstat", "ppoll"}));
  EXPECT_THAT(Escaping(undefined), IsEmpty())
      << "wrap them (tests/support/CMakeLists.txt, syscall_table_posix.h, "
         "syscall_wraps_posix.cc), or list them here if they cannot fail";
}

TEST(SyscallCoverage, ACallThatIsNeitherWrappedNorHarmlessEscapes) {
  EXPECT_THAT(Escaping({"close", "memcpy", "__read_chk", "__memcpy_chk",
                        "_ZN4absl3NowEv"}),
              IsEmpty());
  EXPECT_THAT(Escaping({"renameat2"}), ElementsAre("renameat2"));
  EXPECT_THAT(Escaping({"__pread64_chk"}), ElementsAre("__pread64_chk"));
  const std::string mkdir = "_ZNSt10filesystem16create_directoryERKNS_4pathE";
  EXPECT_THAT(Escaping({mkdir}), ElementsAre(mkdir));
}

TEST(SyscallCoverage, EveryWrappedNameHasItsFunction) {
  if (!ArchivesAreHere()) GTEST_SKIP() << "the build tree is not here";
  Names defined;
  for (const std::string& name : NamesOf(VMMSHARE_FAULTS_ARCHIVE, "T")) {
    if (absl::StartsWith(name, "__wrap_")) defined.insert(name.substr(7));
  }
  EXPECT_EQ(defined, Wrapped());
}

TEST(SyscallCoverage, EveryRowOfTheTableBelongsToAWrappedName) {
  Names rows;
  for (const SyscallRow& row : SyscallTable()) {
    EXPECT_THAT(row.errors, Not(IsEmpty())) << row.name;
    // "For ever" takes the first error: it must not be a transient one where
    // the call has others. A thread's EAGAIN is not transient.
    const bool only_transient =
        std::all_of(row.errors.begin(), row.errors.end(), IsTransient);
    EXPECT_TRUE(!IsTransient(row.errors.front()) || only_transient ||
                absl::StrContains(row.name, "thread"))
        << row.name << " could be failed for ever and is not";
    if (row.name == "std::thread") {
      EXPECT_THAT(Wrapped(), Contains(HasSubstr("_M_start_thread")));
      continue;
    }
    // Calls made through syscall(), and calls with a flag of their own.
    if (!absl::StrContains(row.name, "(")) rows.insert(row.name);
  }
  Names wrapped = Wrapped();
  // Those made of others, given rows by number, or C++.
  for (auto name = wrapped.begin(); name != wrapped.end();) {
    const bool special = absl::StartsWith(*name, "_");
    name =
        special || *name == "syscall" ? wrapped.erase(name) : std::next(name);
  }
  EXPECT_EQ(rows, wrapped);
}

}  // namespace
}  // namespace vmm::testing
