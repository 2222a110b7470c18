// The machine that the environment describes.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "platform/cuda/driver.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using Environment = std::map<std::string, std::string>;

std::string Uuids(const platform::DriverTable& cu) {
  int count = 0;
  cu.cuDeviceGetCount(&count);
  std::string text;
  for (int i = 0; i < count; ++i) {
    CUuuid uuid;
    cu.device_get_gpu_uuid(&uuid, i);
    for (const char byte : uuid.bytes) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x",
                    static_cast<unsigned char>(byte));
      text += digits;
    }
    text += ' ';
  }
  return text;
}

// args: socket. Sends its devices' UUIDs as text.
int UuidSender(const std::vector<std::string>& args) {
  const std::string text = Uuids(DriverWithContext());
  char out[512] = {};
  std::strncpy(out, text.c_str(), sizeof(out) - 1);
  return SendBytes(std::stoi(args[0]), out, sizeof(out)) ? 0 : 1;
}
const bool kUuidSender = RegisterChild("uuid_sender", &UuidSender);

std::string UuidsOf(const Environment& env) {
  const SocketPair sockets = MakeSocketPair();
  Child child =
      Child::Start("uuid_sender", {std::to_string(sockets.childs)}, env);
  CloseDescriptor(sockets.childs);
  char text[512] = {};
  EXPECT_TRUE(ReceiveBytes(sockets.mine, text, sizeof(text)));
  EXPECT_EQ(child.Wait(), 0);
  CloseDescriptor(sockets.mine);
  return text;
}

TEST(Machines, HaveTheSameUuidsInEveryProcess) {
  const std::string uuids = UuidsOf({{"VMMSHARE_HOST_INSTANCE", "uuids-a"}});
  EXPECT_FALSE(uuids.empty());
  EXPECT_EQ(UuidsOf({{"VMMSHARE_HOST_INSTANCE", "uuids-a"}}), uuids);
  EXPECT_NE(UuidsOf({{"VMMSHARE_HOST_INSTANCE", "uuids-b"}}), uuids);
}

TEST(Machines, ShowDevicesInTheOrderOfCudaVisibleDevices) {
  Environment env = {{"VMMSHARE_HOST_INSTANCE", "uuids-a"},
                     {"VMMSHARE_HOST_DEVICES", "3"}};
  const std::string all = UuidsOf(env);
  ASSERT_EQ(all.size(), 3u * 33);
  env["CUDA_VISIBLE_DEVICES"] = "2,0";
  EXPECT_EQ(UuidsOf(env), all.substr(66, 33) + all.substr(0, 33));
  // A prefix of a UUID does, if it fits one device only.
  const std::string second = all.substr(33, 32);
  env["CUDA_VISIBLE_DEVICES"] = "GPU-" + second.substr(0, 8);
  EXPECT_EQ(UuidsOf(env), second + " ");
}

// args: the number of devices, then "a-b" for every pair that can reach each
// other.
int Peers(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  int count = 0;
  checks.Expect("count", cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  checks.ExpectTrue("the stated number", count == std::stoi(args[0]));
  const std::string pairs = " " + args[1] + " ";
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      int can = -1;
      checks.Expect("peer", cu.cuDeviceCanAccessPeer(&can, a, b), CUDA_SUCCESS);
      const bool stated =
          pairs.find(" " + std::to_string(a) + "-" + std::to_string(b) + " ") !=
          std::string::npos;
      checks.ExpectTrue("as stated", (can == 1) == stated);
      if (a == b) continue;
      // Access follows the table.
      const CUmemAllocationProp prop =
          Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, a);
      const CUmemAccessDesc desc = Access(kReadWrite, b);
      CUmemGenericAllocationHandle handle = 0;
      CUdeviceptr address = 0;
      MapNew(cu, &checks, prop, &handle, &address);
      checks.Expect("access", cu.cuMemSetAccess(address, kGranule, &desc, 1),
                    stated ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
      checks.Expect("unmap", cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
      checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
    }
  }
  return checks.failures();
}
const bool kPeers = RegisterChild("peers", &Peers);

int PeersAre(const std::string& table, const std::string& pairs,
             const std::string& visible = "0,1,2") {
  return Child::Start("peers",
                      {std::to_string((visible.size() + 1) / 2), pairs},
                      {{"VMMSHARE_HOST_INSTANCE", "peers"},
                       {"VMMSHARE_HOST_DEVICES", "3"},
                       {"VMMSHARE_HOST_PEERS", table},
                       {"CUDA_VISIBLE_DEVICES", visible}})
      .Wait();
}

TEST(Machines, HaveThePeersThatTheTableNames) {
  EXPECT_EQ(PeersAre("none", ""), 0);
  EXPECT_EQ(PeersAre("all", "0-1 1-0 0-2 2-0 1-2 2-1"), 0);
  EXPECT_EQ(PeersAre("0-1,1-2", "0-1 1-0 1-2 2-1"), 0);
}

TEST(Machines, NamePeersByPhysicalNumber) {
  EXPECT_EQ(PeersAre("0-1", "", "1,2"), 0);
  EXPECT_EQ(PeersAre("0-1", "0-1 1-0", "1,0"), 0);
}

// args: descriptor and what importing it must answer.
int StrangeImporter(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  CUmemGenericAllocationHandle handle = 0;
  Checks checks;
  checks.Expect("import",
                cu.cuMemImportFromShareableHandle(
                    &handle,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd),
                static_cast<CUresult>(std::stoi(args[1])));
  return checks.failures();
}
const bool kStrangeImporter =
    RegisterChild("strange_importer", &StrangeImporter);

class MachineTest : public Conformance {};

TEST_F(MachineTest, HandlesOfOneMachineMeanNothingOnAnother) {
  const int fd = Inheritable(Export(Create()));
  EXPECT_EQ(Child::Start("strange_importer",
                         {std::to_string(fd), std::to_string(CUDA_SUCCESS)})
                .Wait(),
            0);
  EXPECT_EQ(
      Child::Start("strange_importer",
                   {std::to_string(fd), std::to_string(CUDA_ERROR_UNKNOWN)},
                   {{"VMMSHARE_HOST_INSTANCE", "elsewhere"}})
          .Wait(),
      0);
  CloseDescriptor(fd);
}

// A descriptor that looks right but is not sealed could shrink under a reader.
TEST_F(MachineTest, ImpostorsAreNotImported) {
  for (const int fd : ImpostorsOfMemory(Export(Create()))) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu.cuMemImportFromShareableHandle(
                  &handle,
                  reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd),
              CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(handle, 0u);
    CloseDescriptor(fd);
  }
}

// As a program that has it in libcuda's place.
int Starts(const std::vector<std::string>&) {
  return UninitialisedDriver().cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}
const bool kStarts = RegisterChild("starts", &Starts);

// args: a name, its value, and what is wrong with that if it matters. Whether the
// library's error has them.
int IsToldOf(const std::vector<std::string>& args) {
  const absl::Status status =
      platform::Driver::LoadFrom(HostDriverPath()).status();
  const std::string wanted =
      "the environment has " + args[0] + "=" + args[1] + "; expected ";
  if (absl::IsInvalidArgument(status) &&
      absl::StrContains(status.message(), wanted) &&
      (args.size() < 3 || absl::StrContains(status.message(), args[2]))) {
    return 0;
  }
  std::fprintf(stderr, "expected \"%s\", got %s\n",
               absl::StrJoin(args, "\", \"").c_str(),
               status.ToString().c_str());
  return 1;
}
const bool kIsToldOf = RegisterChild("is_told_of", &IsToldOf);

TEST(Machines, AnEnvironmentThatMakesNoSenseIsToldOrStopsTheProgram) {
  constexpr int kAborted = 128 + 6;
  const std::vector<std::pair<std::string, std::string>> nonsense = {
      {"VMMSHARE_HOST_DEVICES", "many"},
      {"VMMSHARE_HOST_DEVICES", "65"},
      {"VMMSHARE_HOST_MEMORY", "4X"},
      {"VMMSHARE_HOST_MEMORY", "-1"},
      {"VMMSHARE_HOST_PEERS", "0"},
      {"VMMSHARE_HOST_PEERS", "0-0"},
      {"VMMSHARE_HOST_INSTANCE", "a/b"},
      {"VMMSHARE_HOST_FAIL", "cuMemMap"},
      {"VMMSHARE_HOST_RDMA", "yes"},
      {"VMMSHARE_HOST_DMA_BUF", "2"},
      {"VMMSHARE_HOST_DELAY", "1ms"},
      {"VMMSHARE_HOST_DELAY", "1000001"},
      {"VMMSHARE_HOST_DELAY", "-1"},
      {"VMMSHARE_HOST_DEVICES", "-1"},
      {"VMMSHARE_HOST_DMA_BUF", "no"},
      {"VMMSHARE_HOST_DMA_BUF", "-1"},
      {"VMMSHARE_HOST_MPS", "2"},
      {"VMMSHARE_HOST_MPS", "-1"},
      {"VMMSHARE_HOST_MPS", "yes"},
      {"VMMSHARE_HOST_CONFIDENTIAL", "2"},
      {"VMMSHARE_HOST_CONFIDENTIAL", "-1"},
      {"VMMSHARE_HOST_CONFIDENTIAL", "yes"},
      {"VMMSHARE_HOST_COMPUTE_MODE", "shared"},
      {"VMMSHARE_HOST_MEMORY", "99999999999999999999"},
      {"VMMSHARE_HOST_MEMORY", "9999999999G"},
      {"VMMSHARE_HOST_PEERS", "x-1"},
      {"VMMSHARE_HOST_PEERS", "0-x"},
      {"VMMSHARE_HOST_PEERS", "-1-0"},
      {"VMMSHARE_HOST_INSTANCE", std::string(33, 'a')},
      {"VMMSHARE_HOST_FAIL", "cuMemMap:0:OUT_OF_MEMORY"},
      {"VMMSHARE_HOST_FAIL", "cuMemMap:x:OUT_OF_MEMORY"},
      {"VMMSHARE_HOST_FAIL", "cuMemMap:1:SUCCESS"},
      {"VMMSHARE_HOST_FAIL", "cuMemMap::OUT_OF_MEMORY"},
      {"VMMSHARE_HOST_FAIL", "cuMemMapp:1:OUT_OF_MEMORY"},
      {"VMMSHARE_HOST_PEERS", "0--1"},
      {"VMMSHARE_HOST_FABRIC_GRANULARITY", "x"},
      {"VMMSHARE_HOST_FABRIC_GRANULARITY", "0"},
      {"VMMSHARE_HOST_FABRIC_GRANULARITY", "3M"},
      {"VMMSHARE_HOST_FABRIC_CLUSTER", std::string(31, '0') + "x"},
      {"VMMSHARE_HOST_FABRIC_CLUSTER", "x" + std::string(31, '0')},
      {"VMMSHARE_HOST_KERNELS", "kernels.so"},
  };
  for (const auto& [name, value] : nonsense) {
    EXPECT_EQ(Child::Start("starts", {}, {{name, value}}).Wait(), kAborted)
        << name << "=" << value;
    EXPECT_EQ(Child::Start("is_told_of", {name, value}, {{name, value}}).Wait(),
              0)
        << name << "=" << value;
  }
  // The second one is of the working directory of a drive.
  for (const std::string path : {"kernels.so", "C:kernels.so", "C:"}) {
    EXPECT_EQ(Child::Start("is_told_of",
                           {"VMMSHARE_HOST_KERNELS", path, "is not absolute"},
                           {{"VMMSHARE_HOST_KERNELS", path}})
                  .Wait(),
              0)
        << path;
  }
}

// args: socket. Makes memory and an interprocess event, says so, and ends when
// told to, without giving them back.
int Litterer(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  CUdeviceptr block = 0;
  CUevent event = nullptr;
  Checks checks;
  checks.Expect("alloc", cu.cuMemAlloc(&block, 1), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, 6), CUDA_SUCCESS);
  char byte = 0;
  SendBytes(socket, &byte, 1);
  ReceiveBytes(socket, &byte, 1);
  return checks.failures();
}
const bool kLitterer = RegisterChild("litterer", &Litterer);

TEST(Machines, LeaveNothingInSharedMemory) {
  for (const bool killed : {false, true}) {
    const std::string name =
        HostInstanceName(killed ? "litter-killed" : "litter-ended");
    const Environment env = {{"VMMSHARE_HOST_INSTANCE", name}};
    const SocketPair sockets = MakeSocketPair();
    Child child =
        Child::Start("litterer", {std::to_string(sockets.childs)}, env);
    CloseDescriptor(sockets.childs);
    char byte = 0;
    ASSERT_TRUE(ReceiveBytes(sockets.mine, &byte, 1));
    EXPECT_EQ(SharedFilesNamed(name).size(), 2u)
        << "of bounds and of events; on Windows of memory and of events";
    if (killed) {
      child.Kill();
      child.Wait();
      // The next program of this user, on whatever machine, tidies up.
      EXPECT_EQ(UuidsOf({{"VMMSHARE_HOST_INSTANCE", "litter-next"}}).empty(),
                false);
    } else {
      ASSERT_TRUE(SendBytes(sockets.mine, &byte, 1));
      EXPECT_EQ(child.Wait(), 0);
    }
    EXPECT_EQ(SharedFilesNamed(name), std::vector<std::string>());
    CloseDescriptor(sockets.mine);
  }
}

// args: the memory that device 0 must have, in bytes.
int Total(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  std::size_t total = 0;
  cu.cuDeviceTotalMem(&total, 0);
  return total == std::stoull(args[0]) ? 0 : 1;
}
const bool kTotal = RegisterChild("total", &Total);

TEST(Machines, TakeSizesWithSuffixes) {
  const auto total = [](const char* text, std::uint64_t bytes) {
    return Child::Start("total", {std::to_string(bytes)},
                        {{"VMMSHARE_HOST_MEMORY", text}})
        .Wait();
  };
  EXPECT_EQ(total("8388608", 8 * kMiB), 0);
  EXPECT_EQ(total("8192K", 8 * kMiB), 0);
  EXPECT_EQ(total("8M", 8 * kMiB), 0);
  EXPECT_EQ(total("3G", 3072 * kMiB), 0);
}

}  // namespace
}  // namespace vmm::testing
