// Loading a driver: entry points by name and version, and what is said when
// they are not there. The drivers here are look-up functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "platform/cuda/driver.h"
#include "platform/os/library.h"
#include "platform/os/process.h"
#include "tests/support/fork.h"

namespace vmm::platform {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What the driver of the current test has, and what it was asked for.
struct Model {
  std::set<std::string> missing;
  CUresult init = CUDA_SUCCESS;
  int newest = 13000;
  int versions_told = 1 << 20;  // So often; from then on it fails.
  std::multimap<std::string, int> asked;
};
Model& Now() {
  static Model model;
  return model;
}

CUresult CUDAAPI Init(unsigned) { return Now().init; }
CUresult CUDAAPI Version(int* version) {
  if (Now().versions_told-- == 0) return CUDA_ERROR_UNKNOWN;
  *version = Now().newest;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Name(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_MODEL";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Never() { return CUDA_ERROR_NOT_SUPPORTED; }

void* AddressOf(const char* name, int version) {
  Now().asked.emplace(name, version);
  if (Now().missing.count(name) != 0 || version > Now().newest) return nullptr;
  if (std::strcmp(name, "cuInit") == 0) {
    return reinterpret_cast<void*>(&Init);
  }
  if (std::strcmp(name, "cuDriverGetVersion") == 0) {
    return reinterpret_cast<void*>(&Version);
  }
  if (std::strcmp(name, "cuGetErrorName") == 0 ||
      std::strcmp(name, "cuGetErrorString") == 0) {
    return reinterpret_cast<void*>(&Name);
  }
  return reinterpret_cast<void*>(&Never);
}

// The two signatures of cuGetProcAddress, of CUDA 11.3 and 12.0.
CUresult CUDAAPI GetProcAddress11(const char* name, void** address, int version,
                                  cuuint64_t) {
  *address = AddressOf(name, version);
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult CUDAAPI GetProcAddress12(const char* name, void** address, int version,
                                  cuuint64_t, CUdriverProcAddressQueryResult*) {
  // As measured: success, and no address.
  *address = AddressOf(name, version);
  return CUDA_SUCCESS;
}

void* Lookup11(const char* symbol) {
  return std::strcmp(symbol, "cuGetProcAddress") == 0
             ? reinterpret_cast<void*>(&GetProcAddress11)
             : nullptr;
}
void* Lookup12(const char* symbol) {
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) {
    return reinterpret_cast<void*>(&GetProcAddress11);
  }
  return std::strcmp(symbol, "cuGetProcAddress_v2") == 0
             ? reinterpret_cast<void*>(&GetProcAddress12)
             : nullptr;
}

class DriverLoad : public ::testing::Test {
 protected:
  DriverLoad() { Now() = Model(); }
};

TEST_F(DriverLoad, WorksWithTheFirstSignatureOfGetProcAddress) {
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup11);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(driver->version(), 13000);
  EXPECT_THAT(driver->Describe(),
              AllOf(HasSubstr("CUDA 13.0"), HasSubstr("from model"),
                    Not(HasSubstr("host-memory"))));
}

TEST_F(DriverLoad, WorksWithTheSecondSignatureOfGetProcAddress) {
  EXPECT_TRUE(Driver::LoadFromLookup("model", &Lookup12).ok());
}

// CUDA 11.3 lacks what came after it, and nothing that is required.
TEST_F(DriverLoad, WorksWithADriverOfCuda11Point3) {
  Now().newest = 11030;
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup11);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(driver->version(), 11030);
  const absl::Status need = driver->Need<&DriverTable::device_get_mig_uuid>();
  EXPECT_EQ(need.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(need.message()),
              AllOf(HasSubstr("cuDeviceGetUuid"), HasSubstr("CUDA 11.4"),
                    HasSubstr("newer driver")));
  EXPECT_TRUE(driver->Need<&DriverTable::cuMemCreate>().ok());
  // Its own older signature of this one is the same.
  EXPECT_TRUE(driver->Need<&DriverTable::cuStreamWaitValue64>().ok());
}

TEST_F(DriverLoad, NamesEveryEntryPointThatIsMissing) {
  Now().missing = {"cuMemCreate", "cuMemMap", "cuIpcGetEventHandle"};
  const absl::Status status =
      Driver::LoadFromLookup("model", &Lookup12).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model lacks 2 entry points"),
                    HasSubstr("cuMemCreate (CUDA 10.2)"), HasSubstr("cuMemMap"),
                    // Optional, so it is not what is wrong.
                    Not(HasSubstr("cuIpcGetEventHandle"))));
}

TEST_F(DriverLoad, AsksForTheVersionThatEachSignatureCameWith) {
  ASSERT_TRUE(Driver::LoadFromLookup("model", &Lookup12).ok());
  const auto versions_of = [](const std::string& name) {
    std::set<int> versions;
    const auto [begin, end] = Now().asked.equal_range(name);
    for (auto at = begin; at != end; ++at) versions.insert(at->second);
    return versions;
  };
  EXPECT_EQ(versions_of("cuDeviceGetUuid"), (std::set<int>{9020, 11040}));
  EXPECT_EQ(versions_of("cuMemAlloc"), (std::set<int>{3020}));
  EXPECT_EQ(versions_of("cuStreamWaitValue64"), (std::set<int>{11070}));
}

TEST_F(DriverLoad, RefusesALibraryThatIsNoDriver) {
  const absl::Status status =
      Driver::LoadFromLookup("libm.so", [](const char*) -> void* {
        return nullptr;
      }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libm.so"), HasSubstr("cuGetProcAddress"),
                    HasSubstr("11.3")));
}

TEST_F(DriverLoad, TellsHowCuInitFailed) {
  Now().init = CUDA_ERROR_NO_DEVICE;
  const absl::Status status =
      Driver::LoadFromLookup("model", &Lookup12).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResultOf(status), CUDA_ERROR_NO_DEVICE);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cuInit"), HasSubstr("CUDA_VISIBLE_DEVICES"),
                    HasSubstr("device rules")));
}

TEST_F(DriverLoad, SaysWhatToDoWhenCuInitFails) {
  const std::pair<CUresult, const char*> advices[] = {
      {CUDA_ERROR_NO_DEVICE, "in MIG mode needs instances: nvidia-smi -L"},
      {CUDA_ERROR_NOT_INITIALIZED, "forked from one that had initialised CUDA"},
      {CUDA_ERROR_UNKNOWN, "modprobe nvidia_uvm"},
      {CUDA_ERROR_SYSTEM_NOT_READY, "nvidia-fabricmanager"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "of two versions"},
      {CUDA_ERROR_MPS_CONNECTION_FAILED, "docs/mps.md"}};
  for (const auto& [result, advice] : advices) {
    Now().init = result;
    const absl::Status status =
        Driver::LoadFromLookup("model", &Lookup12).status();
    EXPECT_EQ(ResultOf(status), result);
    EXPECT_THAT(std::string(status.message()), HasSubstr(advice));
  }
}

TEST_F(DriverLoad, RefusesADriverThatDoesNotTellItsVersion) {
  for (const bool has_entry : {true, false}) {
    Now() = Model();
    if (has_entry) {
      Now().versions_told = 0;
    } else {
      Now().missing = {"cuDriverGetVersion"};
    }
    const absl::Status status =
        Driver::LoadFromLookup("model", &Lookup12).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("model does not tell its version"));
  }
  // Once, and not again.
  Now() = Model();
  Now().versions_told = 1;
  const absl::Status status =
      Driver::LoadFromLookup("model", &Lookup12).status();
  EXPECT_EQ(ResultOf(status), CUDA_ERROR_UNKNOWN);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuDriverGetVersion()"));
}

// The system's own, should there be one and a GPU.
TEST_F(DriverLoad, OfTheSystemSaysWhatToInstallWhereThereIsNone) {
  const absl::StatusOr<Library> library =
      Library::OpenSystem(SystemDriverName());
  const absl::StatusOr<Driver> driver = Driver::LoadSystem();
  if (driver.ok()) {
    EXPECT_EQ(driver->is_host_memory(), false);
    EXPECT_THAT(driver->Describe(), HasSubstr("CUDA driver, CUDA "));
  } else if (library.ok()) {
    EXPECT_THAT(std::string(driver.status().message()),
                HasSubstr(library->path()));
  } else {
    EXPECT_EQ(driver.status().code(), library.status().code());
    EXPECT_THAT(std::string(driver.status().message()),
                AllOf(HasSubstr(std::string(library.status().message())),
                      HasSubstr("Install the NVIDIA driver"),
                      HasSubstr("in WSL2: on Windows"),
                      HasSubstr("vmmshare.testing.use_host_driver()"),
                      HasSubstr("--driver=host")));
  }
}

TEST_F(DriverLoad, LoadFromTakesNoRelativePath) {
  const absl::Status status = Driver::LoadFrom("libhost.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DriverLoad, AnErrorNamesTheCallAndKeepsTheResult) {
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup12);
  ASSERT_TRUE(driver.ok()) << driver.status();
  const absl::Status status =
      driver->Error(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate(size=7)", "Wait.");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ResultOf(status), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cuMemCreate(size=7)"), HasSubstr("(2: "),
                    HasSubstr("Wait.")));
  EXPECT_TRUE(driver->Error(CUDA_SUCCESS, "cuInit(0)").ok());
  EXPECT_THAT(
      std::string(driver->Error(CUDA_ERROR_INVALID_CONTEXT, "f()").message()),
      HasSubstr("make one of the device current first"));
  EXPECT_EQ(ResultOf(absl::InternalError("of another kind")), std::nullopt);
}

TEST_F(DriverLoad, GivesEachOfItsResultsACode) {
  const std::map<int, absl::StatusCode> codes = {
      {CUDA_SUCCESS, absl::StatusCode::kOk},
      {CUDA_ERROR_INVALID_VALUE, absl::StatusCode::kInvalidArgument},
      {CUDA_ERROR_INVALID_HANDLE, absl::StatusCode::kInvalidArgument},
      {CUDA_ERROR_OUT_OF_MEMORY, absl::StatusCode::kResourceExhausted},
      {47, absl::StatusCode::kResourceExhausted},  // Of CUDA 13.4.
      {CUDA_ERROR_NO_DEVICE, absl::StatusCode::kNotFound},
      {CUDA_ERROR_INVALID_DEVICE, absl::StatusCode::kNotFound},
      {CUDA_ERROR_NOT_FOUND, absl::StatusCode::kNotFound},
      {CUDA_ERROR_FILE_NOT_FOUND, absl::StatusCode::kNotFound},
      {CUDA_ERROR_NOT_INITIALIZED, absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_DEINITIALIZED, absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_INVALID_CONTEXT, absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
       absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_SYSTEM_NOT_READY, absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
       absl::StatusCode::kFailedPrecondition},
      {CUDA_ERROR_NOT_PERMITTED, absl::StatusCode::kPermissionDenied},
      {CUDA_ERROR_NOT_SUPPORTED, absl::StatusCode::kUnimplemented},
      {CUDA_ERROR_NOT_READY, absl::StatusCode::kUnavailable},
      {919, absl::StatusCode::kUnavailable},  // Of CUDA 13.4.
      {CUDA_ERROR_TIMEOUT, absl::StatusCode::kDeadlineExceeded},
      {CUDA_ERROR_UNKNOWN, absl::StatusCode::kUnknown},
      {CUDA_ERROR_LAUNCH_FAILED, absl::StatusCode::kInternal}};
  for (const auto& [result, code] : codes) {
    EXPECT_EQ(CodeOf(static_cast<CUresult>(result)), code) << result;
  }
}

TEST_F(DriverLoad, AResultThatIsNoNumberIsNone) {
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup12);
  ASSERT_TRUE(driver.ok()) << driver.status();
  absl::Status status = driver->Error(CUDA_ERROR_UNKNOWN, "f()");
  ASSERT_EQ(ResultOf(status), CUDA_ERROR_UNKNOWN);
  status.SetPayload("vmmshare/CUresult", absl::Cord("unknown"));
  EXPECT_EQ(ResultOf(status), std::nullopt);
}

// One that fails because the driver has gone leaks nothing.
TEST_F(DriverLoad, TellsOfAReleaseThatFailedUnlessTheDriverHasGone) {
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup12);
  ASSERT_TRUE(driver.ok()) << driver.status();
  ::testing::internal::CaptureStderr();
  ReportReleaseFailure(absl::OkStatus());
  for (const CUresult result :
       {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_INVALID_VALUE}) {
    ReportReleaseFailure(driver->Error(result, "cuMemRelease()"));
  }
  ReportReleaseFailure(absl::InternalError("of another kind"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex(
                  "vmmshare: a release failed, memory may leak: "
                  "INVALID_ARGUMENT: cuMemRelease\\(\\) answered .*\n"
                  "vmmshare: a release failed, memory may leak: "
                  "INTERNAL: of another kind\n"));
}

// What it has is its parent's, which gives it back.
TEST_F(DriverLoad, AForkedChildTellsOfNoReleaseThatFailed) {
  if (!testing::MayFork()) GTEST_SKIP() << "no fork here";
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup12);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(testing::RunInFork([&driver] {
              ::testing::internal::CaptureStderr();
              ReportReleaseFailure(
                  driver->Error(CUDA_ERROR_INVALID_VALUE, "cuMemRelease()"));
              return ::testing::internal::GetCapturedStderr().empty() ? 0 : 1;
            }),
            0);
}

TEST_F(DriverLoad, RemembersNotesOnlyOnceTheyCouldBeMade) {
  const absl::StatusOr<Driver> driver =
      Driver::LoadFromLookup("model", &Lookup12);
  ASSERT_TRUE(driver.ok()) << driver.status();
  const auto fail = []() -> absl::StatusOr<Driver::Notes> {
    return absl::UnavailableError("not now");
  };
  const auto make = []() -> absl::StatusOr<Driver::Notes> {
    return std::make_shared<const int>(7);
  };
  EXPECT_FALSE(driver->RememberedNotes(fail).ok());
  const absl::StatusOr<Driver::Notes> made = driver->RememberedNotes(make);
  ASSERT_TRUE(made.ok());
  // Not asked again: not even to fail.
  EXPECT_EQ(*driver->RememberedNotes(fail), *made);
}

}  // namespace
}  // namespace vmm::platform
