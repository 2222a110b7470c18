// Memory that is not cuMemCreate()'s, shared where it is by consent: one suite for
// cuMemAlloc()'s, by legacy IPC, and for cuMemAllocAsync()'s, by its pool.
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/keeper/internal/store.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/raw_handle.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr std::size_t kSize = 5000;
const ImportOptions kWritable = {.access = Access::kReadWrite};
constexpr std::chrono::seconds kPatience(20);

// Where the driver puts one allocation.
CUmemoryPool MakeExportablePool(const Device& device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = static_cast<CUmemAllocationHandleType>(kNativeKind);
  props.location = Location::On(device).ToCuda();
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(TestDriver()->cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  return pool;
}

std::string KindName(const ::testing::TestParamInfo<HandleKind>& kind) {
  return kind.param == HandleKind::kLegacyIpc ? "LegacyIpc" : "StreamPool";
}

class DriverBlockTest : public IpcTest,
                        public ::testing::WithParamInterface<HandleKind> {
 protected:
  ~DriverBlockTest() override {
    for (const CUdeviceptr address : allocated_) {
      EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
    }
    for (const CUmemoryPool pool : pools_) {
      EXPECT_EQ(driver()->cuMemPoolDestroy(pool), CUDA_SUCCESS);
    }
  }

  CUdeviceptr AllocateUnowned(std::size_t size = kSize) {
    CUdeviceptr address = 0;
    if (GetParam() == HandleKind::kLegacyIpc) {
      EXPECT_EQ(driver()->cuMemAlloc(&address, size), CUDA_SUCCESS);
      return address;
    }
    if (pools_.empty()) UseAnotherPool();
    EXPECT_EQ(driver()->cuMemAllocFromPoolAsync(&address, size, pools_.back(),
                                                nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return address;
  }
  // For what is allocated from now on.
  void UseAnotherPool() { pools_.push_back(MakeExportablePool(device)); }
  CUdeviceptr Allocate(std::size_t size = kSize) {
    allocated_.push_back(AllocateUnowned(size));
    return allocated_.back();
  }
  AdoptedMemory Adopt(CUdeviceptr address, std::size_t size = kSize) {
    return Must(AdoptedMemory::Adopt(driver(), address, size,
                                     {.accept = {GetParam()}}));
  }
  std::unique_ptr<Endpoint> Start() {
    EndpointOptions options;
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  // In a file, for a child.
  std::string Write(const std::string& text) {
    const std::string file = absl::StrCat(directory(), "/ticket", files_++);
    std::ofstream(file) << text;
    return file;
  }

 private:
  std::vector<CUmemoryPool> pools_;
  std::vector<CUdeviceptr> allocated_;
  int files_ = 0;
};

std::string ReadFileOf(const std::string& name) {
  std::string text;
  std::getline(std::ifstream(name), text, '\0');
  return text;
}

TEST_P(DriverBlockTest, IsNotSharedUnasked) {
  const CUdeviceptr address = Allocate();
  const HandleKind other = GetParam() == HandleKind::kLegacyIpc
                               ? HandleKind::kStreamPool
                               : HandleKind::kLegacyIpc;
  const PointerInfo info = Must(Classify(driver(), address + 10));
  EXPECT_FALSE(info.adoptable);
  EXPECT_EQ(info.kinds, HandleKindSet{GetParam()});
  for (const HandleKindSet accept :
       {HandleKindSet{}, HandleKindSet{other, kNativeKind}}) {
    const absl::Status refused =
        AdoptedMemory::Adopt(driver(), address, kSize, {.accept = accept})
            .status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("not shared unasked"));
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(GetParam() == HandleKind::kLegacyIpc
                              ? "HandleKind::kLegacyIpc"
                              : "HandleKind::kStreamPool"));
  }
}

TEST_P(DriverBlockTest, SaysWhatItIs) {
  const CUdeviceptr address = Allocate();
  const AdoptedMemory adopted = Adopt(address + 100, 50);
  ASSERT_NE(adopted.block(), nullptr);
  EXPECT_EQ(adopted.block()->span, (AddressSpan{address, kSize}));
  EXPECT_EQ(adopted.offset(), 100u);
  EXPECT_EQ(adopted.size(), kSize);
  EXPECT_EQ(adopted.shareable().kinds(), HandleKindSet{GetParam()});
  const AddressSpan disclosed = adopted.disclosed();
  EXPECT_EQ(disclosed, adopted.block()->Disclosed());
  EXPECT_EQ(adopted.weakness(), DescribeWeakness(GetParam(), disclosed));
  EXPECT_LE(disclosed.base, address);
  EXPECT_GE(disclosed.base + disclosed.size, address + kSize);
  EXPECT_THAT(DescribeWeakness(GetParam(), disclosed),
              HasSubstr(absl::StrCat(disclosed.size, " bytes at 0x",
                                     absl::Hex(disclosed.base))));
  EXPECT_EQ(DescribeWeakness(kNativeKind, disclosed), "");
}

// Makes the call with its first driver call refused, with its second, and so on
// until it succeeds. `forget` gives back what the call made where nothing was lost.
void ExpectEachRefusalIsTold(DriverFaults& faults,
                             const std::function<absl::Status()>& call,
                             const std::function<void()>& forget) {
  for (std::uint64_t nth = 0;; ++nth) {
    const Inventory before = TakeInventory(TestDriver());
    faults.Arm({.point = {.nth = nth}, .result = CUDA_ERROR_UNKNOWN});
    const absl::Status status = call();
    const DriverFaults::Outcome outcome = faults.Disarm();
    if (outcome.fired == 0) {
      EXPECT_GT(nth, 0u);
      EXPECT_EQ(status, absl::OkStatus());
      return;
    }
    // That mode is changed where it can be: here nobody captures.
    const bool is_mode =
        outcome.failed[0] == "cuThreadExchangeStreamCaptureMode";
    if (is_mode) forget();
    EXPECT_THAT(Differences(before, TakeInventory(TestDriver())),
                ::testing::IsEmpty())
        << outcome.failed[0];
    if (is_mode) {
      EXPECT_EQ(status, absl::OkStatus());
      continue;
    }
    EXPECT_EQ(platform::ResultOf(status), CUDA_ERROR_UNKNOWN)
        << outcome.failed[0] << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(outcome.failed[0]));
  }
}

TEST_P(DriverBlockTest, WhatTheDriverRefusesIsToldByItsCall) {
  const CUdeviceptr address = Allocate();
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  Must(Device::ByOrdinal(faulty, 0));  // Asked for once.
  std::optional<AdoptedMemory> adopted;
  ExpectEachRefusalIsTold(
      faults,
      [&] {
        absl::StatusOr<AdoptedMemory> made = AdoptedMemory::Adopt(
            faulty, address, kSize, {.accept = {GetParam()}});
        if (made.ok()) adopted = *std::move(made);
        return made.status();
      },
      [&] { adopted.reset(); });
  ASSERT_TRUE(adopted.has_value());
  ExpectEachRefusalIsTold(
      faults,
      [&] { return ExportChunk(adopted->shareable(), GetParam(), 0).status(); },
      [] {});
}

// args: file.
int OpenBlockRefused(const Args& args) {
  const Here here;
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(TestDriver(), &faults);
  Must(Device::ByOrdinal(faulty, 0));
  const std::string text = ReadFileOf(args[0]);
  // For two at once, or for the CPU, no driver is asked.
  const AccessGrant device{Location::On(here.device), Access::kReadWrite};
  const AccessGrant host{Location::HostNuma(0), Access::kReadWrite};
  for (const std::vector<AccessGrant>& grants :
       {std::vector{device, device}, std::vector{host}}) {
    ImportOptions options = kWritable;
    options.grants = grants;
    const absl::Status refused =
        OpenTicket(faulty, text, options, Late()).status();
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(refused.message(), HasSubstr("is opened for one device"));
  }
  std::optional<ImportedAllocation> opened;
  ExpectEachRefusalIsTold(
      faults,
      [&] {
        absl::StatusOr<ImportedAllocation> memory =
            OpenTicket(faulty, text, kWritable, Late());
        if (memory.ok()) opened = *std::move(memory);
        return memory.status();
      },
      [&] { opened.reset(); });
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kOpenBlockRefused =
    RegisterChild("open-block-refused", &OpenBlockRefused);

TEST_P(DriverBlockTest, AnOpeningThatTheDriverRefusesIsToldAndLeavesNothing) {
  const CUdeviceptr address = Allocate();
  const std::unique_ptr<Endpoint> endpoint = Start();
  const AdoptedMemory adopted = Adopt(address);
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start("open-block-refused", {Write(share.ticket())}).Wait(),
            0);
}

TEST_P(DriverBlockTest, ARangeThatLeavesItIsRefused) {
  const CUdeviceptr address = Allocate();
  for (const auto& [at, size] : {std::pair(address, std::uint64_t{kSize + 1}),
                                 std::pair(address + 4999, std::uint64_t{2}),
                                 std::pair(address, std::uint64_t{0}),
                                 std::pair(address + 1, ~std::uint64_t{0})}) {
    const absl::Status refused =
        AdoptedMemory::Adopt(driver(), at, size, {.accept = {GetParam()}})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
}

// args: file, offset of the pattern, its size.
int OpenBlockAndWrite(const Args& args) {
  const Here here;
  std::size_t offset = 0;
  std::size_t size = 0;
  EXPECT_TRUE(absl::SimpleAtoi(args[1], &offset));
  EXPECT_TRUE(absl::SimpleAtoi(args[2], &size));
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), ReadFileOf(args[0]), kWritable, Late()));
  EXPECT_FALSE(IsVmm(memory.ticket().kind));
  EXPECT_EQ(memory.size(), kSize);
  EXPECT_TRUE(memory.is_mapped());
  EXPECT_NE(memory.weakness(), "");
  EXPECT_LE(memory.disclosed().base, memory.address());
  EXPECT_GE(memory.disclosed().size, kSize);
  EXPECT_TRUE(memory.lease().connection.ok()) << memory.lease().connection;
  ExpectPattern(memory.address() + offset, size, 1);
  WritePattern(memory.address() + offset, size, 2);
  return 0;
}
const bool kOpenBlockAndWrite =
    RegisterChild("open-block-and-write", &OpenBlockAndWrite);

TEST_P(DriverBlockTest, IsSharedWhereItIs) {
  const CUdeviceptr address = Allocate();
  WritePattern(address + 300, 1000, 1);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const AdoptedMemory adopted = Adopt(address + 300, 1000);
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start(
                "open-block-and-write",
                {Write(share.ticket()), absl::StrCat(adopted.offset()), "1000"})
                .Wait(),
            0);
  ExpectPattern(address + 300, 1000, 2);
  ExpectSoon([&] { return endpoint->Leases().empty(); });
}

// While it lives, a stream is captured in the global mode: a thread that is not
// relaxed breaks it by asking anything of pools.
class GlobalCapture {
 public:
  GlobalCapture() {
    EXPECT_EQ(TestDriver()->cuStreamBeginCapture(stream_.get(),
                                                 CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
  }
  ~GlobalCapture() {
    CUgraph graph = nullptr;
    EXPECT_EQ(TestDriver()->cuStreamEndCapture(stream_.get(), &graph),
              CUDA_SUCCESS);
    if (graph != nullptr) {
      EXPECT_EQ(TestDriver()->cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
  GlobalCapture(const GlobalCapture&) = delete;
  GlobalCapture& operator=(const GlobalCapture&) = delete;

 private:
  const Stream stream_;
};

// args: file.
int OpenBlockBesideACapture(const Args& args) {
  const Here here;
  std::optional<ImportedAllocation> memory;
  {
    const GlobalCapture capture;
    memory =
        Must(OpenTicket(TestDriver(), ReadFileOf(args[0]), kWritable, Late()));
  }
  ExpectPattern(memory->address(), kSize, 1);
  const GlobalCapture capture;
  memory.reset();
  return 0;
}
const bool kOpenBlockBesideACapture =
    RegisterChild("open-block-beside-a-capture", &OpenBlockBesideACapture);

TEST_P(DriverBlockTest, IsSharedBesideACapture) {
  const CUdeviceptr address = Allocate();
  WritePattern(address, kSize, 1);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const GlobalCapture capture;
  const AdoptedMemory adopted = Adopt(address);
  const absl::Status exported =
      ExportBlock(driver(), *adopted.block()).status();
  EXPECT_TRUE(exported.ok()) << exported;
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start("open-block-beside-a-capture", {Write(share.ticket())})
                .Wait(),
            0);
  ExpectSoon([&] { return endpoint->Leases().empty(); });
}

// args: file. Opens it twice.
int OpenBlockTwice(const Args& args) {
  const Here here;
  const std::string text = ReadFileOf(args[0]);
  const std::vector<std::string> both = {text, text};
  std::vector<ImportedAllocation> memory =
      Must(OpenTickets(TestDriver(), both, kWritable, Late()));
  std::optional<ImportedAllocation> third =
      Must(OpenTicket(TestDriver(), text, kWritable, Late()));
  const CUdeviceptr address = third->address();
  EXPECT_EQ(memory[0].address(), address);
  EXPECT_EQ(memory[1].address(), address);
  third.reset();
  ExpectPattern(address, kSize, 1);
  memory.pop_back();
  ExpectPattern(address, kSize, 1);
  memory.clear();
  EXPECT_EQ(TestDriver()->cuMemsetD8(address, 1, 1), CUDA_ERROR_INVALID_VALUE)
      << "it is open still";
  return 0;
}
const bool kOpenBlockTwice = RegisterChild("open-block-twice", &OpenBlockTwice);

TEST_P(DriverBlockTest, OpenedOftenItStaysUntilTheLastIsClosed) {
  const CUdeviceptr address = Allocate();
  WritePattern(address, kSize, 1);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const AdoptedMemory adopted = Adopt(address);
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start("open-block-twice", {Write(share.ticket())}).Wait(),
            0);
}

// args: files. Two allocations that the driver may have put into one block.
int OpenNeighbours(const Args& args) {
  const Here here;
  std::optional<ImportedAllocation> a =
      Must(OpenTicket(TestDriver(), ReadFileOf(args[0]), kWritable, Late()));
  const ImportedAllocation b =
      Must(OpenTicket(TestDriver(), ReadFileOf(args[1]), kWritable, Late()));
  ExpectPattern(a->address(), kSize, 1);
  a.reset();
  ExpectPattern(b.address(), kSize, 2);
  return 0;
}
const bool kOpenNeighbours = RegisterChild("open-neighbours", &OpenNeighbours);

TEST_P(DriverBlockTest, NeighboursAreOpenedAndClosedEachForItself) {
  const CUdeviceptr a = Allocate();
  const CUdeviceptr b = Allocate();
  WritePattern(a, kSize, 1);
  WritePattern(b, kSize, 2);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const AdoptedMemory of_a = Adopt(a);
  const AdoptedMemory of_b = Adopt(b);
  const Share share_a = Must(endpoint->Publish(of_a.shareable()));
  const Share share_b = Must(endpoint->Publish(of_b.shareable()));
  EXPECT_EQ(Child::Start("open-neighbours",
                         {Write(share_a.ticket()), Write(share_b.ticket())})
                .Wait(),
            0);
  const AddressSpan disclosed = of_a.block()->Disclosed();
  bool b_is_inside = false;
  for (const AddressSpan& one : Must(Neighbours(driver(), *of_a.block()))) {
    EXPECT_NE(one.base, a);
    EXPECT_GE(one.base + one.size, disclosed.base);
    EXPECT_LT(one.base, disclosed.base + disclosed.size);
    b_is_inside |= one == AddressSpan{b, kSize};
  }
  EXPECT_EQ(b_is_inside,
            b >= disclosed.base && b < disclosed.base + disclosed.size);
}

// args: file. What it cannot do is refused with a reason.
int OpenBlockWrongly(const Args& args) {
  const Here here;
  const auto refused = [&](const ImportOptions& options,
                           const std::string& why) {
    const absl::Status status =
        OpenTicket(TestDriver(), ReadFileOf(args[0]), options, Late()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused({}, "Access::kReadWrite");
  ImportOptions aligned = kWritable;
  aligned.alignment = kGranule;
  refused(aligned, "alignment");
  ImportOptions placed = kWritable;
  placed.at = Placement{std::make_shared<AddressRange>(
      Must(AddressRange::Reserve(TestDriver(), kGranule)))};
  refused(placed, "no place");
  refused(
      {.grants = {{Location::On(here.device)}, {Location::On(here.device)}}},
      "one device");
  refused({.grants = {{Location::On(here.device), Access::kRead}}},
          "Access::kReadWrite");
  ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), ReadFileOf(args[0]), kWritable, Late()));
  EXPECT_TRUE(absl::IsUnimplemented(memory.Unmap()));
  EXPECT_TRUE(absl::IsUnimplemented(memory.Remap()));
  EXPECT_TRUE(absl::IsUnimplemented(
      memory.SetAccess({{Location::On(here.device), Access::kRead}})));
  ExpectPattern(memory.address(), kSize, 1);
  return 0;
}
const bool kOpenBlockWrongly =
    RegisterChild("open-block-wrongly", &OpenBlockWrongly);

TEST_P(DriverBlockTest, WhatItCannotDoIsRefused) {
  const CUdeviceptr address = Allocate();
  WritePattern(address, kSize, 1);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const AdoptedMemory adopted = Adopt(address);
  const absl::Status for_reading =
      endpoint->Publish(adopted.shareable(), {.access = Access::kRead})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(for_reading)) << for_reading;
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start("open-block-wrongly", {Write(share.ticket())}).Wait(),
            0);
}

TEST_P(DriverBlockTest, ATicketOfAnotherBootIsRefusedBeforeAnybodyIsAsked) {
  const AdoptedMemory adopted = Adopt(Allocate());
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  AddressedTicket ticket = Must(ParseTicketString(share.ticket()));
  ticket.ticket.boot_id[0] ^= 1;
  const absl::Status refused =
      OpenTicket(driver(), FormatTicketString(ticket), kWritable, Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("on another machine or before a restart"));
  EXPECT_EQ(endpoint->statistics().served, 0u);
}

// args: file. For a device that cannot reach the memory's.
int OpenBlockWithoutPeerAccess(const Args& args) {
  const Here here;
  const Device other = Must(Device::ByOrdinal(TestDriver(), 1));
  const absl::Status refused =
      OpenTicket(TestDriver(), ReadFileOf(args[0]),
                 {.grants = {{Location::On(other), Access::kReadWrite}}},
                 Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(absl::StrCat(other.Describe(), " has no peer access to ",
                             here.device.Describe())));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kOpenBlockWithoutPeerAccess = RegisterChild(
    "open-block-without-peer-access", &OpenBlockWithoutPeerAccess);

TEST_P(DriverBlockTest, IsNotOpenedForADeviceWithoutPeerAccess) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "the host-memory driver alone can be told to have no peers";
  }
  const AdoptedMemory adopted = Adopt(Allocate());
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(
      Child::Start("open-block-without-peer-access", {Write(share.ticket())},
                   {{"VMMSHARE_HOST_PEERS", "none"}})
          .Wait(),
      0);
}

// args: file. A process that does not see the device.
int OpenBlockUnseen(const Args& args) {
  const Here here;
  for (const ImportOptions& options :
       {ImportOptions{.grants = {{Location::On(here.device)}}}, kWritable}) {
    const absl::Status refused =
        OpenTicket(TestDriver(), ReadFileOf(args[0]), options, Late()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is seen"));
  }
  return 0;
}
const bool kOpenBlockUnseen =
    RegisterChild("open-block-unseen", &OpenBlockUnseen);

TEST_P(DriverBlockTest, IsNotOpenedWhereItsDeviceIsNotSeen) {
  if (Must(Device::All(driver())).size() < 2) {
    GTEST_SKIP() << "there is one device only";
  }
  const AdoptedMemory adopted = Adopt(Allocate());
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(Child::Start("open-block-unseen", {Write(share.ticket())},
                         {{"CUDA_VISIBLE_DEVICES", "1"}})
                .Wait(),
            0);
}

TEST_P(DriverBlockTest, WhatWasFreedSinceIsNotShared) {
  const CUdeviceptr address = AllocateUnowned();
  const AdoptedMemory adopted = Adopt(address);
  EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
  const std::unique_ptr<Endpoint> endpoint = Start();
  absl::Status refused = endpoint->Publish(adopted.shareable()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("were freed"));
  // As likely as not at the same address.
  Allocate();
  refused = endpoint->Publish(adopted.shareable()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
}

// Its allocator need not know that anybody serves it, and may have put something
// else at the address, with the same handle.
TEST_P(DriverBlockTest, WhatIsFreedWhileItIsServedIsNotGivenToAnybody) {
  const CUdeviceptr address = AllocateUnowned();
  const AdoptedMemory adopted = Adopt(address);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
  Allocate();
  const absl::Status refused =
      OpenTicket(driver(), share.ticket(), kWritable, Late()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("were freed"));
  EXPECT_TRUE(endpoint->Leases().empty());
}

// args: file. Opens it and is killed.
int HoldBlock(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[1]);
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), ReadFileOf(args[0]), kWritable, Late()));
  Tell(channel);
  Hear(channel);
  return 1;
}
const bool kHoldBlock = RegisterChild("hold-block", &HoldBlock);

TEST_P(DriverBlockTest, IsALeaseThatEndsWithItsHolder) {
  const AdoptedMemory adopted = Adopt(Allocate());
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  Child holder = Child::Start("hold-block", {Write(share.ticket()), address()});
  platform::Channel channel = Accept();
  Hear(channel);
  const MemoryId id = adopted.shareable().id();
  ASSERT_EQ(endpoint->Leases().size(), 1u);
  EXPECT_EQ(endpoint->Leases()[0].memory, id);
  EXPECT_EQ(endpoint->Leases()[0].lease.size, kSize);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      endpoint->WaitUntilReturned(id, absl::InfinitePast())));
  holder.Kill();
  EXPECT_EQ(holder.Wait(), Child::kKilled);
  const absl::Status returned = endpoint->WaitUntilReturned(id, Late());
  EXPECT_TRUE(returned.ok()) << returned;
}

// args: address, which kind. Shares a block, and is killed.
int OwnBlock(const Args& args) {
  const Here here;
  const platform::Driver& driver = TestDriver();
  platform::Channel channel = Dial(args[0]);
  const bool legacy = args[1] == "legacy";
  CUdeviceptr address = 0;
  if (legacy) {
    EXPECT_EQ(driver->cuMemAlloc(&address, kSize), CUDA_SUCCESS);
  } else {
    EXPECT_EQ(driver->cuMemAllocFromPoolAsync(
                  &address, kSize, MakeExportablePool(here.device), nullptr),
              CUDA_SUCCESS);
  }
  WritePattern(address, kSize, 1);
  const AdoptedMemory adopted = Must(AdoptedMemory::Adopt(
      driver, address, kSize,
      {.accept = {HandleKind::kLegacyIpc, HandleKind::kStreamPool}}));
  EndpointOptions options;
  options.listener.directory = args[2];
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Share share = Must(endpoint->Publish(adopted.shareable()));
  Tell(channel, share.ticket());
  Hear(channel);
  return 1;
}
const bool kOwnBlock = RegisterChild("own-block", &OwnBlock);

TEST_P(DriverBlockTest, TheEndOfItsOwnerIsKnown) {
  Child owner = Child::Start(
      "own-block",
      {address(), GetParam() == HandleKind::kLegacyIpc ? "legacy" : "pool",
       listener_directory()});
  platform::Channel channel = Accept();
  const std::string ticket = Hear(channel);
  const ImportedAllocation memory =
      Must(OpenTicket(driver(), ticket, kWritable, Late()));
  ExpectPattern(memory.address(), kSize, 1);
  EXPECT_TRUE(memory.lease().connection.ok());
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);
  ExpectSoon([&] { return absl::IsUnavailable(memory.lease().connection); });
  EXPECT_TRUE(absl::IsNotFound(
      OpenTicket(driver(), ticket, kWritable, Late()).status()));
}

// args: address. Receives VMM memory and blocks in one exchange, and patterns.
int ReceiveMixed(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const std::vector<ImportedAllocation> all =
      Must(ReceiveAllocations(channel, TestDriver(), kWritable, Late()));
  EXPECT_EQ(all.size(), 6u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(IsVmm(all[i].ticket().kind), i % 3 == 0) << i;
    ExpectPattern(all[i].address(), kSize, i);
  }
  return 0;
}
const bool kReceiveMixed = RegisterChild("receive-mixed", &ReceiveMixed);

TEST_P(DriverBlockTest, GoesTogetherWithOtherMemory) {
  std::vector<Allocation> vmm;
  std::vector<AdoptedMemory> blocks;
  vmm.reserve(2);
  blocks.reserve(4);
  std::vector<Shareable> all;
  for (std::size_t i = 0; i < 6; ++i) {
    if (i % 3 == 0) {
      vmm.push_back(Make(kSize));
      WritePattern(vmm.back().address(), kSize, i);
      all.push_back(vmm.back().shareable());
    } else {
      const CUdeviceptr address = Allocate();
      WritePattern(address, kSize, i);
      blocks.push_back(Adopt(address));
      all.push_back(blocks.back().shareable());
    }
  }
  Child receiver = Child::Start("receive-mixed", {address()});
  platform::Channel channel = Accept();
  const absl::Status sent = SendAllocations(channel, all, Late());
  EXPECT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(receiver.Wait(), 0);
}

TEST_P(DriverBlockTest, AKeeperDoesNotKeepIt) {
  const AdoptedMemory adopted = Adopt(Allocate());
  const absl::Status refused = keeper::CheckTicketIsOfHere(
      Must(MakeTicket(adopted.shareable(), GetParam())));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ends with its owner"));
  EXPECT_FALSE(MakeTicket(adopted.shareable(), kNativeKind).ok());
}

// args: files of two blocks. While the driver frees one, memory of the other's
// pool is opened and closed, and whoever opens the one again waits for that.
int CloseSlowly(const Args& args) {
  const Here here;
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(TestDriver(), &faults);
  const auto open = [&](std::size_t i) {
    return Must(OpenTicket(faulty, ReadFileOf(args[i]), kWritable, Late()));
  };
  std::promise<void> entered;
  std::promise<void> go_on;
  DriverFault slow;
  slow.entry = "cuMemFree";
  slow.result = CUDA_ERROR_UNKNOWN;  // Which closing reports, and no more.
  slow.effect = FaultEffect::kPerformedButReported;
  slow.then = [&] {
    entered.set_value();
    go_on.get_future().wait_for(kPatience);
  };
  std::optional<ImportedAllocation> slowly = open(0);
  faults.Arm(slow);
  std::thread closes([&] { slowly.reset(); });
  EXPECT_EQ(entered.get_future().wait_for(kPatience),
            std::future_status::ready);
  std::future<void> other = std::async(std::launch::async, [&] {
    const ImportedAllocation memory = open(1);
    const CurrentContext current = Must(here.context.MakeCurrent());
    ExpectPattern(memory.address(), kSize, 2);
  });
  EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready)
      << "it waits for another pool";
  const std::string import = "cuMemPoolImportFromShareableHandle";
  const std::uint64_t before = faults.CallsByEntry()[import];
  std::future<void> same = std::async(std::launch::async, [&] {
    const ImportedAllocation memory = open(0);
    const CurrentContext current = Must(here.context.MakeCurrent());
    ExpectPattern(memory.address(), kSize, 1);
  });
  ExpectSoon([&] { return faults.CallsByEntry()[import] > before; });
  go_on.set_value();
  closes.join();
  same.get();
  other.get();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kCloseSlowly = RegisterChild("close-slowly", &CloseSlowly);

TEST_P(DriverBlockTest, ClosingOneWaitsForTheDriverAndKeepsNobodyElse) {
  if (GetParam() == HandleKind::kLegacyIpc) {
    GTEST_SKIP() << "the driver counts how often it is open: no books of ours";
  }
  const CUdeviceptr first = Allocate();
  WritePattern(first, kSize, 1);
  UseAnotherPool();
  const CUdeviceptr second = Allocate();
  WritePattern(second, kSize, 2);
  const AdoptedMemory a = Adopt(first);
  const AdoptedMemory b = Adopt(second);
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share_a = Must(endpoint->Publish(a.shareable()));
  const Share share_b = Must(endpoint->Publish(b.shareable()));
  EXPECT_EQ(Child::Start("close-slowly",
                         {Write(share_a.ticket()), Write(share_b.ticket())})
                .Wait(),
            0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DriverBlockTest,
                         ::testing::Values(HandleKind::kLegacyIpc,
                                           HandleKind::kStreamPool),
                         KindName);

class LegacyIpcMemory : public IpcTest {};

// args: the handle in hexadecimal, its size. Handles of other software.
int ImportRawLegacy(const Args& args) {
  const Here here;
  const std::string bytes = absl::HexStringToBytes(args[0]);
  LegacyHandle handle;
  std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
  const auto import = [&](std::uint64_t size, int count) {
    std::vector<RawHandle> raw;
    for (int i = 0; i < count; ++i) {
      raw.push_back({HandleKind::kLegacyIpc, size, handle});
    }
    return ImportRaw(here.device, Location::On(here.device), std::move(raw),
                     kWritable);
  };
  for (const auto& [size, count] : {std::pair<std::uint64_t, int>{kSize - 1, 1},
                                    {kSize + 1, 1},
                                    {kSize, 2}}) {
    const absl::Status refused = import(size, count).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  const ImportedAllocation memory = Must(import(kSize, 1));
  ExpectPattern(memory.address(), kSize, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.lease().connection));
  handle.bytes.fill(0);
  const absl::Status nothing = import(kSize, 1).status();
  EXPECT_FALSE(nothing.ok());
  EXPECT_THAT(std::string(nothing.message()),
              HasSubstr("The owner has freed it or ended"));
  const absl::Status as_fd =
      ImportedAllocation::Open(TestDriver(), memory.ticket(),
                               {{ExportedHandle(fabric::Handle{})}}, kWritable)
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(as_fd)) << as_fd;
  return 0;
}
const bool kImportRawLegacy =
    RegisterChild("import-raw-legacy", &ImportRawLegacy);

TEST_F(LegacyIpcMemory, GoesByItsRawHandle) {
  CUdeviceptr address = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&address, kSize), CUDA_SUCCESS);
  WritePattern(address, kSize, 1);
  const AdoptedMemory adopted = Must(AdoptedMemory::Adopt(
      driver(), address, kSize, {.accept = {HandleKind::kLegacyIpc}}));
  const RawHandle raw =
      Must(ExportRaw(adopted.shareable(), 0, HandleKind::kLegacyIpc));
  const HandleBytes& bytes = std::get<LegacyHandle>(raw.handle).bytes;
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_EQ(Child::Start("import-raw-legacy", {hex}).Wait(), 0);
  EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
}

// args: the handle in hexadecimal. The memory is no more.
int ImportRawFreed(const Args& args) {
  const Here here;
  const std::string bytes = absl::HexStringToBytes(args[0]);
  LegacyHandle handle;
  std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
  std::vector<RawHandle> raw;
  raw.push_back({HandleKind::kLegacyIpc, kSize, handle});
  const absl::Status refused = ImportRaw(here.device, Location::On(here.device),
                                         std::move(raw), kWritable)
                                   .status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("owner has freed"));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kImportRawFreed = RegisterChild("import-raw-freed", &ImportRawFreed);

TEST_F(LegacyIpcMemory, AHandleOfWhatWasFreedIsRefused) {
  CUdeviceptr address = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&address, kSize), CUDA_SUCCESS);
  std::string hex;
  {
    const AdoptedMemory adopted = Must(AdoptedMemory::Adopt(
        driver(), address, kSize, {.accept = {HandleKind::kLegacyIpc}}));
    const RawHandle raw =
        Must(ExportRaw(adopted.shareable(), 0, HandleKind::kLegacyIpc));
    const HandleBytes& bytes = std::get<LegacyHandle>(raw.handle).bytes;
    hex = absl::BytesToHexString(absl::string_view(
        reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("import-raw-freed", {hex}).Wait(), 0);
}

TEST_F(LegacyIpcMemory, ItsOwnProcessCannotOpenIt) {
  CUdeviceptr address = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&address, kSize), CUDA_SUCCESS);
  {
    const AdoptedMemory adopted = Must(AdoptedMemory::Adopt(
        driver(), address, kSize, {.accept = {HandleKind::kLegacyIpc}}));
    EndpointOptions options;
    options.listener.directory = listener_directory();
    const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
    const Share share = Must(endpoint->Publish(adopted.shareable()));
    const absl::Status refused =
        OpenTicket(driver(), share.ticket(), kWritable, Late()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("this process made the memory"));
  }
  EXPECT_EQ(driver()->cuMemFree(address), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
