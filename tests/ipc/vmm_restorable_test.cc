// Memory that is released and restored at the same addresses, by its owner and
// by who imported it.
#include <gmock/gmock.h>

#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/fill_graph.h"
#include "tests/ipc/restorable_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr std::uint64_t kBytes = 3 * kGranule;

// Opens a ticket and plays the importer: lets go when it is recalled, restores, and
// replays the graph that it captured before. args: address, ticket.
int LetGoAndRestore(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  RestorableImport memory = Must(RestorableImport::Open(
      TestDriver(), args[1], {.access = Access::kReadWrite}, Late()));
  const CUdeviceptr address = memory.address();
  ExpectPattern(address, kBytes, 1);
  FillGraph graph(address, kGranule, 0x5a);
  WritePattern(address, kBytes, 2);
  Tell(boss);
  ExpectSoon([&] { return memory.lease().return_by.has_value(); });
  Must(memory.Release());
  EXPECT_TRUE(memory.is_released());
  Must(memory.Restore(Late()));  // Waits for the owner.
  EXPECT_EQ(memory.address(), address);
  EXPECT_EQ(memory.memory().address(), address);
  ExpectPattern(address, kBytes, 2);
  if (FillGraph::Supported()) graph.Replay();
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kLetGoAndRestore =
    RegisterChild("let-go-and-restore", &LetGoAndRestore);

// Opens a ticket and does not let go until it is told to. args: as above.
int HoldOn(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  std::optional<RestorableImport> memory =
      Must(RestorableImport::Open(TestDriver(), args[1], {}, Late()));
  Tell(boss);
  Hear(boss);
  ExpectPattern(memory->address(), kBytes, 1);
  memory.reset();
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kHoldOn = RegisterChild("hold-on", &HoldOn);

// Fills memory from a file that ends early, and frees it at once. args: the file,
// of as many bytes as the memory.
int FreesWhatAFileDidNotFill(const Args& args) {
  const Here here;
  std::optional<Allocation> memory = Must(Allocation::Create(
      Must(Device::ByOrdinal(TestDriver(), 0)), {.size = kBytes}));
  EXPECT_EQ(FillFromFile(args[0], 1)(*memory).code(),
            absl::StatusCode::kDataLoss);
  memory.reset();
  EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kFreesWhatAFileDidNotFill =
    RegisterChild("frees-what-a-file-did-not-fill", &FreesWhatAFileDidNotFill);

using Restorable = RestorableIpcTest;

TEST_F(Restorable, ComesBackAtTheSameAddressesInBothProcesses) {
  RestorableAllocation memory = MakeRestorable(1, kBytes);
  const CUdeviceptr address = memory.address();
  const std::string ticket = memory.ticket();
  Child child = Child::Start("let-go-and-restore", {this->address(), ticket});
  platform::Channel channel = Accept();
  Hear(channel);
  const std::uint64_t before = FreeMemory();
  Must(memory.Release(Keep::kHostMemory, Late()));
  EXPECT_TRUE(memory.is_released());
  // The importer has let go too, or this would not be so.
  ExpectFree(before + kBytes);
  Must(memory.Restore());
  EXPECT_EQ(memory.address(), address);
  EXPECT_EQ(memory.ticket(), ticket);
  Hear(channel);
  ExpectFree(before);
  if (FillGraph::Supported()) {
    EXPECT_TRUE(Holds(address, 0x5a, kGranule));
  } else {
    ExpectPattern(address, kBytes, 2);
  }
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(Restorable, MovedIntoAnotherGivesBackWhatThatHad) {
  RestorableAllocation one = MakeRestorable(1);
  const std::uint64_t before = FreeMemory();
  RestorableAllocation other = MakeRestorable(2);
  const CUdeviceptr address = other.address();
  const std::string ticket = other.ticket();
  one = std::move(other);
  ExpectFree(before);
  EXPECT_EQ(one.address(), address);
  EXPECT_EQ(one.ticket(), ticket);
  Must(one.Release(Keep::kHostMemory, Late()));
  Must(one.Restore());
  ExpectPattern(address, 4096, 2);
}

TEST_F(Restorable, AnImportComesBackInAddressesOfTheProgram) {
  RestorableAllocation memory = MakeRestorable(1);
  const auto range = std::make_shared<const AddressRange>(
      Must(AddressRange::Reserve(driver(), 2 * kGranule)));
  ImportOptions options;
  options.at = Placement{range, kGranule};
  RestorableImport import =
      Must(RestorableImport::Open(driver(), memory.ticket(), options, Late()));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(import.address(), range->base() + kGranule);
    ExpectPattern(import.address(), 4096, 1);
    Must(import.Release());
    Must(import.Restore(Late()));
  }
}

TEST_F(Restorable, ACapturedGraphReplaysAsBefore) {
  if (!FillGraph::Supported()) GTEST_SKIP() << "this driver has no graphs";
  RestorableAllocation memory = MakeRestorable(1, kBytes);
  FillGraph owners(memory.address(), kGranule, 0x11);
  RestorableImport import = Open(memory);
  FillGraph importers(import.address(), kGranule, 0x22);
  for (int i = 0; i < 3; ++i) {
    Must(import.Release());
    Must(memory.Release(Keep::kHostMemory, Late()));
    Must(memory.Restore());
    Must(import.Restore(Late()));
    owners.Replay();
    EXPECT_TRUE(Holds(import.address(), 0x11, kGranule));
    importers.Replay();
    EXPECT_TRUE(Holds(memory.address(), 0x22, kGranule));
  }
}

TEST_F(Restorable, WhoNeverLetsGoIsNamedInTimeAndNothingChanges) {
  RestorableAllocation memory = MakeRestorable(1, kBytes);
  const MemoryId id = memory.memory().id();
  Child child = Child::Start("hold-on", {address(), memory.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  const std::uint64_t before = FreeMemory();
  const absl::Time start = absl::Now();
  const absl::Status released =
      memory.Release(Keep::kHostMemory, start + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(released)) << released;
  EXPECT_THAT(std::string(released.message()),
              HasSubstr(absl::StrCat("process ", child.pid())));
  EXPECT_THAT(std::string(released.message()),
              HasSubstr("The memory is as it was."));
  EXPECT_GE(absl::Now(), start + absl::Milliseconds(49));  // By another clock.
  EXPECT_FALSE(memory.is_released());
  EXPECT_EQ(memory.memory().id(), id);
  ExpectFree(before);
  ExpectPattern(memory.address(), kBytes, 1);
  // It is served as before, to others too.
  {
    const RestorableImport other = Open(memory);
    ExpectPattern(other.address(), kBytes, 1);
  }
  Tell(channel);
  Hear(channel);
  Must(memory.Release(Keep::kHostMemory, Late()));
  Must(memory.Restore());
  ExpectPattern(memory.address(), kBytes, 1);
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(Restorable, AnImporterThatIsKilledLetsGoByThat) {
  RestorableAllocation memory = MakeRestorable(1, kBytes);
  Child child = Child::Start("hold-on", {address(), memory.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  child.Kill();
  Must(memory.Release(Keep::kHostMemory, Late()));
  Must(memory.Restore());
  ExpectPattern(memory.address(), kBytes, 1);
  EXPECT_EQ(child.Wait(), Child::kKilled);
}

TEST_F(Restorable, IsFilledByTheProgram) {
  RestorableAllocation memory = MakeRestorable(1);
  Must(memory.Release(Keep::kNothing, Late()));
  const absl::Status nothing = memory.Restore();
  EXPECT_TRUE(absl::IsFailedPrecondition(nothing)) << nothing;
  EXPECT_THAT(std::string(nothing.message()),
              HasSubstr("in Python fill= or path="));
  EXPECT_TRUE(memory.is_released());
  Must(memory.Restore([](const Allocation& there) {
    WritePattern(there.address(), there.size(), 3);
    return absl::OkStatus();
  }));
  const RestorableImport import = Open(memory);
  ExpectPattern(import.address(), kGranule, 3);
}

TEST_F(Restorable, IsNotSeenBeforeItIsFilled) {
  RestorableAllocation memory = MakeRestorable(1);
  Must(memory.Release(Keep::kNothing, Late()));
  Must(memory.Restore([&](const Allocation& there) {
    // With an infinite deadline it is tried once.
    const absl::Status opened =
        OpenTicket(driver(), memory.ticket(), {}, absl::InfiniteFuture())
            .status();
    EXPECT_TRUE(absl::IsResourceExhausted(opened)) << opened;
    WritePattern(there.address(), there.size(), 3);
    return absl::OkStatus();
  }));
  ExpectPattern(Open(memory).address(), kGranule, 3);
}

TEST_F(Restorable, IsFilledFromAFile) {
  // One byte less than is mapped.
  RestorableAllocation memory =
      Must(RestorableAllocation::Share(endpoint(), Make(kBytes - 1)));
  const std::string path = absl::StrCat(directory(), "/contents");
  const std::vector<std::uint8_t> bytes = Pattern(4, kBytes - 1);
  {
    std::ofstream file(path, std::ios::binary);
    file << "seven b";
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.flush());
  }
  Must(memory.Release(Keep::kNothing, Late()));
  const absl::Status missing =
      memory.Restore(FillFromFile(absl::StrCat(directory(), "/none")));
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  const absl::Status cut = memory.Restore(FillFromFile(path, 8));
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss) << cut;
  EXPECT_THAT(std::string(cut.message()),
              HasSubstr(absl::StrCat("ends after ", kBytes + 6,
                                     " bytes; expected ", kBytes + 7)));
  EXPECT_TRUE(memory.is_released());
  Must(memory.Restore(FillFromFile(path, 7)));
  ExpectPattern(memory.address(), kBytes - 1, 4);
}

TEST_F(Restorable, AFileThatEndsEarlyLeavesNoCopyUnderWay) {
  const std::string path = absl::StrCat(directory(), "/contents");
  std::ofstream(path, std::ios::binary) << std::string(kBytes, 'x');
  Child late = Child::Start("frees-what-a-file-did-not-fill", {path},
                            {{"VMMSHARE_HOST_DELAY", "100000"}});
  EXPECT_EQ(late.Wait(), 0);
}

TEST_F(Restorable, AnOffsetThatNoFileReachesIsRefused) {
  RestorableAllocation memory = MakeRestorable(1, kBytes);
  const std::string path = absl::StrCat(directory(), "/contents");
  std::ofstream(path, std::ios::binary) << std::string(kBytes, 'x');
  Must(memory.Release(Keep::kNothing, Late()));
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 63) - kBytes;
  for (const std::uint64_t offset :
       {kFirst, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    const absl::Status refused = memory.Restore(FillFromFile(path, offset));
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("offset ", offset)));
  }
  EXPECT_TRUE(memory.is_released());
  Must(memory.Restore(FillFromFile(path)));
}

TEST_F(Restorable, AFillThatFailsLeavesItReleasedAndWhatWasKeptIsKept) {
  RestorableAllocation memory = MakeRestorable(1);
  const std::uint64_t before = FreeMemory();
  Must(memory.Release(Keep::kHostMemory, Late()));
  const absl::Status failed = memory.Restore([](const Allocation& there) {
    WritePattern(there.address(), there.size(), 9);
    return absl::AbortedError("the program gave up");
  });
  EXPECT_TRUE(absl::IsAborted(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()),
              HasSubstr("The memory is released as before."));
  EXPECT_TRUE(memory.is_released());
  ExpectFree(before + kGranule);
  Must(memory.Restore());
  ExpectPattern(memory.address(), kGranule, 1);
}

// Nothing that is thrown leaves it in between.
TEST_F(Restorable, AFillThatThrowsLeavesItReleasedAndWhatWasKeptIsKept) {
  RestorableAllocation memory = MakeRestorable(1);
  const std::uint64_t before = FreeMemory();
  Must(memory.Release(Keep::kHostMemory, Late()));
  const auto throws = [](const Allocation&) -> absl::Status {
    throw std::bad_alloc();
  };
  EXPECT_THROW(memory.Restore(throws).IgnoreError(), std::bad_alloc);
  EXPECT_TRUE(memory.is_released());
  ExpectFree(before + kGranule);
  Must(memory.Restore());
  ExpectPattern(Open(memory).address(), kGranule, 1);
}

TEST_F(Restorable, AReleaseThatThrowsLeavesItServed) {
  DriverFaults faults;
  const Device there =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  RestorableAllocation memory = Must(RestorableAllocation::Share(
      endpoint(), Must(Allocation::Create(there, {.size = kGranule}))));
  WritePattern(memory.address(), kGranule, 1);
  faults.Arm({.entry = "cuMemcpyDtoHAsync", .then = [] {
                throw std::bad_alloc();  // As the host has no memory left.
              }});
  EXPECT_THROW(memory.Release(Keep::kHostMemory, Late()).IgnoreError(),
               std::bad_alloc);
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_FALSE(memory.is_released());
  ExpectPattern(Open(memory).address(), kGranule, 1);
  Must(memory.Release(Keep::kHostMemory, Late()));
  Must(memory.Restore());
  ExpectPattern(Open(memory).address(), kGranule, 1);
}

TEST_F(Restorable, ADeviceThatIsFullLeavesItReleased) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "others may want its memory";
  RestorableAllocation memory = MakeRestorable(1);
  Must(memory.Release(Keep::kHostMemory, Late()));
  std::optional<Allocation> rest = Make(FreeMemory());
  const absl::Status full = memory.Restore();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(memory.is_released());
  rest.reset();
  Must(memory.Restore());
  ExpectPattern(memory.address(), kGranule, 1);
}

TEST_F(Restorable, OfSeveralChunksComesBackWithTheAccessItHad) {
  RestorableAllocation memory = MakeRestorable(1, kBytes, kGranule);
  RestorableImport import = Open(memory, Access::kRead);
  const CUdeviceptr address = import.address();
  Must(import.Release());
  Must(memory.Release(Keep::kHostMemory, Late()));
  Must(memory.Restore());
  Must(import.Restore(Late()));
  EXPECT_EQ(import.address(), address);
  EXPECT_EQ(memory.memory().size(), kBytes);
  ExpectPattern(address, kBytes, 1);
  if (OnHostMemoryDriver()) ExpectReadOnly(address);
}

TEST_F(Restorable, WhatItsDeviceMayOnlyReadComesBackSoWithItsContents) {
  Allocation made = MakePattern(kBytes, 1, kGranule);
  Must(made.SetAccess({{Location::On(device), Access::kRead}}));
  RestorableAllocation memory =
      Must(RestorableAllocation::Share(endpoint(), std::move(made)));
  const auto expect = [&](std::uint64_t seed) {
    ExpectPattern(memory.address(), kBytes, seed);
    unsigned long long access = 0;
    const CUmemLocation here = Location::On(device).ToCuda();
    EXPECT_EQ(driver()->cuMemGetAccess(&access, &here, memory.address()),
              CUDA_SUCCESS);
    EXPECT_EQ(access, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ExpectPattern(Open(memory).address(), kBytes, seed);
  };
  // Also where it fails first.
  for (int i = 0; i < 2; ++i) {
    Must(memory.Release(Keep::kHostMemory, Late()));
    EXPECT_TRUE(absl::IsAborted(memory.Restore([](const Allocation& there) {
      WritePattern(there.address(), there.size(), 9);
      return absl::AbortedError("the program gave up");
    })));
    Must(memory.Restore());
    expect(1);
  }
  Must(memory.Release(Keep::kNothing, Late()));
  Must(memory.Restore([](const Allocation& there) {
    WritePattern(there.address(), there.size(), 2);
    return absl::OkStatus();
  }));
  expect(2);
}

TEST_F(Restorable, AnImporterCanLetGoWithoutBeingAsked) {
  RestorableAllocation memory = MakeRestorable(1);
  RestorableImport import = Open(memory);
  Must(import.Release());
  Must(endpoint().WaitUntilAllReturned(Late()));
  EXPECT_TRUE(absl::IsFailedPrecondition(import.lease().connection));
  Must(import.Restore(Late()));
  EXPECT_TRUE(import.lease().connection.ok());
  ExpectPattern(import.address(), kGranule, 1);
}

TEST_F(Restorable, SaysWhatIsCalledOutOfTurn) {
  RestorableAllocation memory = MakeRestorable(1);
  RestorableImport import = Open(memory);
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.Restore()));
  EXPECT_TRUE(absl::IsFailedPrecondition(import.Restore(Late())));
  Must(import.Release());
  EXPECT_TRUE(absl::IsFailedPrecondition(import.Release()));
  Must(memory.Release(Keep::kNothing, Late()));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(memory.Release(Keep::kHostMemory, Late())));
  // With an infinite deadline it is asked once.
  const absl::Status early = import.Restore(absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsResourceExhausted(early)) << early;
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("its owner has released the memory"));
  EXPECT_TRUE(import.is_released());
}

TEST_F(Restorable, AnImporterWhoseOwnerHasGoneStaysReleased) {
  std::optional<RestorableAllocation> memory = MakeRestorable(1);
  RestorableImport import = Open(*memory);
  Must(import.Release());
  memory.reset();
  const absl::Status gone = import.Restore(Late());
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_TRUE(import.is_released());
}

TEST_F(Restorable, ATicketOpensWhatIsThereByThen) {
  RestorableAllocation memory = MakeRestorable(1);
  const std::uint32_t first = memory.memory().id().generation;
  Must(memory.Release(Keep::kHostMemory, Late()));
  Must(memory.Restore());
  const ImportedAllocation opened =
      Must(OpenTicket(driver(), memory.ticket(), {}, Late()));
  EXPECT_GT(opened.ticket().id.generation, first);
  EXPECT_EQ(opened.ticket().id, memory.memory().id());
  // Its lease is of that, too.
  ASSERT_EQ(endpoint().Leases().size(), 1u);
  EXPECT_EQ(endpoint().Leases()[0].memory, memory.memory().id());
  ExpectPattern(opened.address(), kGranule, 1);
}

TEST_F(Restorable, CanBeMoved) {
  std::optional<RestorableAllocation> memory = MakeRestorable(1);
  std::optional<RestorableImport> import = Open(*memory);
  Must(import->Release());
  Must(memory->Release(Keep::kHostMemory, Late()));
  RestorableAllocation moved = *std::move(memory);
  RestorableImport import_moved = *std::move(import);
  memory.reset();
  import.reset();
  Must(moved.Restore());
  Must(import_moved.Restore(Late()));
  ExpectPattern(import_moved.address(), kGranule, 1);
}

}  // namespace
}  // namespace vmm::testing
