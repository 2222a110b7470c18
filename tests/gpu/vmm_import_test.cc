// Importing within one process: what ImportedAllocation::Open takes and what
// it refuses. Processes are in tests/ipc.
#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

struct Exported {
  Ticket ticket;
  std::vector<ExportedHandle> handles;
};

Exported Export(const Shareable& memory) {
  const protocol::Outgoing out = Must(protocol::MakeOutgoing(memory));
  Exported exported{out.ticket, {}};
  for (std::size_t i = 0; i < out.ticket.layout.count(); ++i) {
    exported.handles.push_back(Must(out.handle(i)));
  }
  return exported;
}

class ImportTest : public DriverTest {
 protected:
  absl::StatusOr<ImportedAllocation> Open(const Exported& exported,
                                          const ImportOptions& options = {}) {
    return ImportedAllocation::Open(driver(), exported.ticket, exported.handles,
                                    options);
  }
  Allocation Make(std::uint64_t size, std::uint64_t max_chunk = 0) {
    return Must(Allocation::Create(
        device, {.size = size, .max_chunk_size = max_chunk}));
  }
};

TEST_F(ImportTest, InTheSameProcessSeesTheSameBytesAtAnotherAddress) {
  const Allocation memory = Make(3 * kGranule, kGranule);
  Fill(memory.address(), 0x31, memory.size());
  const ImportedAllocation imported =
      Must(Open(Export(memory.shareable()), {.access = Access::kReadWrite}));
  EXPECT_NE(imported.address(), memory.address());
  EXPECT_EQ(imported.size(), memory.size());
  EXPECT_TRUE(Holds(imported.address(), 0x31, imported.size()));
  Write(imported.address() + kGranule - 2, {1, 2, 3, 4});
  EXPECT_EQ(Read(memory.address() + kGranule - 2, 4),
            (std::vector<std::uint8_t>{1, 2, 3, 4}));
}

TEST_F(ImportTest, IsReadOnlyUnlessItAsksForMore) {
  const Allocation memory = Make(kGranule);
  Fill(memory.address(), 5, kGranule);
  ImportedAllocation imported = Must(Open(Export(memory.shareable())));
  EXPECT_TRUE(Holds(imported.address(), 5, 64));
  EXPECT_EQ(driver()->cuMemsetD8(imported.address(), 1, 64),
            CUDA_ERROR_INVALID_VALUE);
  // A guard against stray writes and no wall: documented so.
  ASSERT_TRUE(
      imported.SetAccess({{Location::On(device), Access::kReadWrite}}).ok());
  Fill(imported.address(), 1, 64);
  EXPECT_TRUE(Holds(memory.address(), 1, 64));
}

TEST_F(ImportTest, UnmapAndRemapKeepAddressContentAndAccess) {
  const Allocation memory = Make(2 * kGranule, kGranule);
  Fill(memory.address(), 6, memory.size());
  ImportedAllocation imported = Must(Open(Export(memory.shareable())));
  const CUdeviceptr address = imported.address();
  ASSERT_TRUE(imported.Unmap().ok());
  EXPECT_FALSE(imported.is_mapped());
  EXPECT_TRUE(absl::IsFailedPrecondition(imported.Unmap()));
  Fill(memory.address(), 7, memory.size());
  ASSERT_TRUE(imported.Remap().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(imported.Remap()));
  EXPECT_EQ(imported.address(), address);
  EXPECT_TRUE(Holds(address, 7, imported.size()));
  EXPECT_EQ(driver()->cuMemsetD8(address, 1, 64), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ImportTest, KeepsTheMemoryWhenTheOwnerReleasesIt) {
  std::optional<Allocation> memory = Make(2 * kGranule, kGranule);
  Fill(memory->address(), 0x5c, memory->size());
  const ImportedAllocation imported = Must(Open(Export(memory->shareable())));
  memory.reset();
  EXPECT_TRUE(Holds(imported.address(), 0x5c, imported.size()));
}

TEST_F(ImportTest, KeepsTheOldMemoryWhenTheOwnerDiscardsIt) {
  Allocation memory = Make(kGranule);
  Fill(memory.address(), 0x5d, kGranule);
  const ImportedAllocation imported = Must(Open(Export(memory.shareable())));
  ASSERT_TRUE(memory.Discard().ok());
  ASSERT_TRUE(memory.Remap().ok());
  Fill(memory.address(), 0x01, kGranule);
  EXPECT_TRUE(Holds(imported.address(), 0x5d, kGranule));
}

TEST_F(ImportTest, NeedsTheBytesOfAFabricTicket) {
  const std::vector<std::uint8_t> bytes(100, 1);
  const absl::Status status = ImportFabricTicket(driver(), bytes, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fabric ticket"));
}

TEST_F(ImportTest, OfFabricMemoryNeedsMemoryOfThatKind) {
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = kGranule, .sharing = SharePolicy::Require(kNativeKind)}));
  const absl::Status status = ExportFabricTicket(memory.shareable()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be shared as"));
}

TEST_F(ImportTest, IsAlignedAsAsked) {
  const Allocation memory = Make(kGranule);
  const ImportedAllocation imported =
      Must(Open(Export(memory.shareable()), {.alignment = 64 * kMiB}));
  EXPECT_EQ(imported.address() % (64 * kMiB), 0u);
}

TEST_F(ImportTest, OfHostMemoryIsMappedByDeviceAndCpu) {
  const Allocation memory = Must(Allocation::Create(
      device, {.size = kGranule,
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  const Exported exported = Export(memory.shareable());
  EXPECT_EQ(exported.ticket.host_numa_node, 0u);
  const ImportedAllocation imported = Must(
      Open(exported, {.grants = {{Location::On(device), Access::kReadWrite},
                                 {Location::HostNuma(0), Access::kRead}}}));
  Fill(imported.address(), 0x2a, kGranule);
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  const auto at = [](CUdeviceptr address) {
    return *reinterpret_cast<volatile std::uint8_t*>(
        static_cast<std::uintptr_t>(address));
  };
  EXPECT_EQ(at(memory.address() + 77), 0x2a);
  EXPECT_EQ(at(imported.address() + kGranule - 1), 0x2a);
}

TEST_F(ImportTest, OfADevicesMemoryForTheCpuIsRefusedWhateverTheTicketSays) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  const ImportOptions options = {.access = Access::kReadWrite,
                                 .host_access = Access::kReadWrite,
                                 .host_memory_only = true};
  absl::Status refused = Open(exported, options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the CPU cannot access"));
  exported.ticket.host_numa_node = 0;
  refused = Open(exported, options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not the host's"));
}

TEST_F(ImportTest, WithAnotherNumberOfHandlesIsRefused) {
  const Allocation memory = Make(3 * kGranule, kGranule);
  Exported exported = Export(memory.shareable());
  exported.handles.push_back(Must(platform::Duplicate(
      std::get<platform::OsHandle>(exported.handles.front()))));
  for (std::size_t count : {4, 2, 0}) {
    exported.handles.resize(count);
    const absl::Status status = Open(exported).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(count, " handles came for ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected 3"));
  }
}

TEST_F(ImportTest, OfHandlesInTheWrongPlaceOrOfWrongSizeIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  for (std::uint64_t size : {2 * kGranule, 64 * kGranule}) {
    exported.ticket.layout = {size, size};
    exported.ticket.requested_size = size;
    const absl::Status status = Open(exported).status();
    EXPECT_FALSE(status.ok());
    if (OnHostMemoryDriver()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("2097152 bytes; expected ", size)));
    }
  }
}

TEST_F(ImportTest, OfATicketForTheOtherDriverIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.host_memory_driver = !exported.ticket.host_memory_driver;
  const absl::Status status = Open(exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(OnHostMemoryDriver() ? "belongs to a CUDA driver"
                                             : "host-memory driver"));
}

TEST_F(ImportTest, OfATicketOfAnotherMachineIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.boot_id[3] ^= 1;
  exported.ticket.host_name = "elsewhere";
  const absl::Status status = Open(exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("made on host elsewhere"));
}

TEST_F(ImportTest, ATicketSaysWhatTheMemoryIs) {
  for (const Rdma rdma : {Rdma::kOff, Rdma::kTry}) {
    const Allocation memory =
        Must(Allocation::Create(device, {.size = 3 * kGranule - 7,
                                         .max_chunk_size = 2 * kGranule,
                                         .rdma = rdma}));
    const Ticket ticket = Must(MakeTicket(memory.shareable(), kNativeKind));
    EXPECT_EQ(ticket.kind, kNativeKind);
    EXPECT_EQ(ticket.id, memory.id());
    EXPECT_EQ(ticket.device, device.uuid());
    EXPECT_EQ(ticket.layout, memory.shareable().layout());
    EXPECT_EQ(ticket.requested_size, 3 * kGranule - 7);
    EXPECT_EQ(ticket.rdma_capable, Must(memory.IsRdmaCapable()));
    EXPECT_EQ(ticket.host_memory_driver, driver().is_host_memory());
    EXPECT_EQ(ticket.host_numa_node, std::nullopt);
  }
}

TEST_F(ImportTest, ATicketIsOfAKindThatTheMemoryWasMadeFor) {
  const Allocation memory = Make(kGranule);
  ASSERT_FALSE(memory.shareable().kinds().Has(kForeignKind));
  const absl::Status status =
      MakeTicket(memory.shareable(), kForeignKind).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be shared as"));
}

TEST_F(ImportTest, OfAKindThatThisBuildLacksIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.kind = kForeignKind;
  EXPECT_TRUE(absl::IsUnimplemented(Open(exported).status()));
}

TEST_F(ImportTest, OfADescriptorWhereAFabricHandleBelongsIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.kind = HandleKind::kFabric;
  const absl::Status status = Open(exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("where a fabric handle was expected"));
}

TEST_F(ImportTest, OfAFabricHandleWhereADescriptorBelongsIsRefused) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.handles[0] = fabric::Handle{};
  const absl::Status status = Open(exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a fabric handle came where"));
}

TEST_F(ImportTest, OfAFabricHandleThatMeansNothingFailsWithAdvice) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.kind = HandleKind::kFabric;
  exported.handles[0] = fabric::Handle{};
  const absl::Status status = Open(exported).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(platform::ResultOf(status).has_value()) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fabric handle"));
}

TEST_F(ImportTest, OfMemoryOfADeviceThatIsNotSeenNeedsAGrant) {
  const Allocation memory = Make(kGranule);
  Exported exported = Export(memory.shareable());
  exported.ticket.device.bytes.fill(0x77);
  const absl::Status status = Open(exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("does not see GPU-77777777"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ImportOptions::grants"));
  const auto granted =
      Open(exported, {.grants = {{Location::On(device), Access::kRead}}});
  ASSERT_TRUE(granted.ok()) << granted.status();
  EXPECT_TRUE(Holds(granted->address(), 0, 64));
}

TEST_F(ImportTest, OnAPeerSeesTheSameBytes) {
  const Device* const peer = Peer();
  if (peer == nullptr) GTEST_SKIP();
  const Allocation memory = Make(2 * kGranule, kGranule);
  Fill(memory.address(), 0x19, memory.size());
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  const ImportedAllocation imported =
      Must(Open(Export(memory.shareable()),
                {.grants = {{Location::On(*peer), Access::kReadWrite}}}));
  {
    const PrimaryContext context = Must(PrimaryContext::Retain(*peer));
    const CurrentContext current = Must(context.MakeCurrent());
    EXPECT_TRUE(Holds(imported.address(), 0x19, imported.size()));
    Fill(imported.address(), 0x20, imported.size());
    EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_TRUE(Holds(memory.address(), 0x20, memory.size()));
}

class Pitfall14 : public DriverTest {};
TEST_F(Pitfall14, DescriptorsOfAnExportLiveAsLongAsTheirOwnerAndNoLonger) {
  Allocation memory = Must(Allocation::Create(
      device, {.size = 4 * kGranule, .max_chunk_size = kGranule}));
  // On the host-memory driver every allocation takes a descriptor as well.
  const std::size_t before = OpenHandles().size();
  {
    const Exported exported = Export(memory.shareable());
    EXPECT_EQ(OpenHandles().size(), before + 4);
    const ImportedAllocation imported = Must(ImportedAllocation::Open(
        driver(), exported.ticket, exported.handles, {}));
  }
  EXPECT_EQ(OpenHandles().size(), before);
}

class Pitfall22 : public DriverTest {};
TEST_F(Pitfall22, EveryReferenceOfCreateRetainAndImportIsGivenBack) {
  // DriverTest compares the driver's own count of what is owed.
  for (int i = 0; i < 3; ++i) {
    const Allocation memory = Must(Allocation::Create(
        device, {.size = 2 * kGranule, .max_chunk_size = kGranule}));
    const Exported exported = Export(memory.shareable());
    const ImportedAllocation once = Must(ImportedAllocation::Open(
        driver(), exported.ticket, exported.handles, {}));
    const ImportedAllocation twice = Must(ImportedAllocation::Open(
        driver(), exported.ticket, exported.handles, {}));
    EXPECT_NE(once.address(), twice.address());
  }
}

class Pitfall17 : public DriverTest {};
TEST_F(Pitfall17, EveryChunkOfARangeIsExportedByAHandleOfItsOwn) {
  const Allocation memory = Must(Allocation::Create(
      device, {.size = 3 * kGranule, .max_chunk_size = kGranule}));
  for (std::uint64_t i = 0; i < 3; ++i) {
    Fill(memory.address() + i * kGranule, static_cast<std::uint8_t>(i + 1),
         kGranule);
  }
  const Exported exported = Export(memory.shareable());
  ASSERT_EQ(exported.handles.size(), 3u);
  const ImportedAllocation imported = Must(ImportedAllocation::Open(
      driver(), exported.ticket, exported.handles, {}));
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(Holds(imported.address() + i * kGranule,
                      static_cast<std::uint8_t>(i + 1), kGranule));
  }
}

class Pitfall23 : public DriverTest {};
TEST_F(Pitfall23, AnImportThatFailsAtAnyCallLeavesNothingImported) {
  const Allocation memory = Must(Allocation::Create(
      device, {.size = 3 * kGranule, .max_chunk_size = kGranule}));
  const Exported exported = Export(memory.shareable());
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  int failed = 0;
  for (std::uint64_t nth = 0;; ++nth) {
    const ExpectNoNewHandles no_new_handles;
    const ExpectDriverUnchanged driver_unchanged;
    faults.Arm({.point = {.nth = nth}, .result = CUDA_ERROR_OUT_OF_MEMORY});
    const auto imported =
        ImportedAllocation::Open(faulty, exported.ticket, exported.handles, {});
    const DriverFaults::Outcome outcome = faults.Disarm();
    if (outcome.fired == 0) {
      EXPECT_TRUE(imported.ok());
      break;
    }
    // That mode is changed where it can be: here nobody captures.
    if (outcome.failed[0] == "cuThreadExchangeStreamCaptureMode") {
      EXPECT_TRUE(imported.ok()) << imported.status();
      continue;
    }
    EXPECT_FALSE(imported.ok()) << "call " << nth;
    ++failed;
  }
  // Three imports, three maps, a reservation, access, and the look-up of the
  // device before them.
  EXPECT_GE(failed, 8);
}

}  // namespace
}  // namespace vmm::testing
