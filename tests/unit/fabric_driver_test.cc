// What a driver says of its fabric; the drivers here are look-up functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fabric/driver_fabric.h"
#include "tests/support/must.h"

namespace vmm::fabric {
namespace {

using platform::CliqueInfo;
using platform::Driver;
using ::testing::HasSubstr;
using testing::Must;

constexpr int kMulticast = 1;  // Of CUcliqueType.

// What the driver of the current test answers.
struct Model {
  CUresult cluster_result = CUDA_SUCCESS;
  CUresult count_result = CUDA_SUCCESS;
  CUresult info_result = CUDA_SUCCESS;
  std::vector<CliqueInfo> cliques = {};
  std::size_t counted = 0;  // Beyond those that there are.
};
Model& Now() {
  static Model model;
  return model;
}

CUresult CUDAAPI Version(int* version) {
  *version = 13040;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Text(CUresult, const char** text) {
  *text = "TEXT";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Succeed() { return CUDA_SUCCESS; }
CUresult CUDAAPI ClusterUuid(CUuuid* cluster, CUdevice) {
  std::memset(cluster->bytes, 0x22, sizeof(cluster->bytes));
  return Now().cluster_result;
}
CUresult CUDAAPI CliqueCount(std::size_t* count, CUdevice) {
  *count = Now().cliques.size() + Now().counted;
  return Now().count_result;
}
CUresult CUDAAPI CliqueInfos(CliqueInfo* infos, std::size_t* count, CUdevice) {
  std::copy(Now().cliques.begin(), Now().cliques.end(), infos);
  *count = Now().cliques.size();
  return Now().info_result;
}

CUresult CUDAAPI GetProcAddress(const char* name, void** address, int,
                                cuuint64_t, CUdriverProcAddressQueryResult*) {
  static const std::map<std::string, void*> entries = {
      {"cuDriverGetVersion", reinterpret_cast<void*>(&Version)},
      {"cuGetErrorName", reinterpret_cast<void*>(&Text)},
      {"cuGetErrorString", reinterpret_cast<void*>(&Text)},
      {"cuDeviceGetFabricClusterUuid", reinterpret_cast<void*>(&ClusterUuid)},
      {"cuDeviceGetCliqueCount", reinterpret_cast<void*>(&CliqueCount)},
      {"cuDeviceGetCliqueInfo", reinterpret_cast<void*>(&CliqueInfos)}};
  const auto found = entries.find(name);
  *address = found == entries.end() ? reinterpret_cast<void*>(&Succeed)
                                    : found->second;
  return CUDA_SUCCESS;
}

void* LookUp(const char* symbol) {
  return std::strcmp(symbol, "cuGetProcAddress_v2") == 0
             ? reinterpret_cast<void*>(&GetProcAddress)
             : nullptr;
}

absl::StatusOr<FabricInfo> Ask(const Model& model) {
  Now() = model;
  return FabricOfDriver(Must(Driver::LoadFromLookup("model", &LookUp)), 3);
}

CliqueInfo Clique(int type, unsigned id) { return {type, id}; }

TEST(DriverFabric, IsTheCliqueOfPointersToOneDevice) {
  const FabricInfo info =
      Must(Ask({.cliques = {Clique(kMulticast, 5), Clique(0, 7)}}));
  EXPECT_TRUE(info.of_driver);
  EXPECT_TRUE(info.joined());
  EXPECT_EQ(info.clique, 7u);
  EXPECT_EQ(UuidText(info.cluster), "22222222-2222-2222-2222-222222222222");
}

TEST(DriverFabric, OfADeviceInNoSuchCliqueIsNotFound) {
  const absl::Status none = Ask({}).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("cuDeviceGetCliqueInfo(3) names 0 cliques"));
  const absl::Status other = Ask({.cliques = {Clique(kMulticast, 5)}}).status();
  EXPECT_TRUE(absl::IsNotFound(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("names 1 cliques"));
}

// The number is the driver's word, and so are the ones that it fills in.
TEST(DriverFabric, BelievesNoNumberThatNoDeviceHas) {
  const absl::Status status = Ask({.counted = 4097}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("answered 4097 cliques, which no device has"));
  // Of those counted only some are told.
  EXPECT_EQ(Must(Ask({.cliques = {Clique(0, 9)}, .counted = 2})).clique, 9u);
}

TEST(DriverFabric, NamesTheCallThatFailed) {
  const std::vector<CliqueInfo> one = {Clique(0, 7)};
  for (const auto& [model, call] :
       {std::pair{Model{.cluster_result = CUDA_ERROR_NOT_PERMITTED},
                  "cuDeviceGetFabricClusterUuid(3)"},
        {Model{.count_result = CUDA_ERROR_NOT_PERMITTED},
         "cuDeviceGetCliqueCount(3)"},
        {Model{.info_result = CUDA_ERROR_NOT_PERMITTED, .cliques = one},
         "cuDeviceGetCliqueInfo(3)"}}) {
    const absl::Status status = Ask(model).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(call));
  }
}

}  // namespace
}  // namespace vmm::fabric
