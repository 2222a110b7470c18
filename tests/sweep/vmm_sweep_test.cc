// The fail-Nth sweep over vmm/: every driver call and every system call of each
// operation failed in turn. Nothing may be left behind, and every failure told.
#include "tests/sweep/vmm_sweep.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/stderr_tap.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/restorable_region.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/restorable.h"
#include "vmm/share/retire.h"
#include "vmm/share/transfer.h"
#include "vmm/vmm.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::Driver;

TEST_F(VmmSweep, FindDevices) {
  ExpectSwept(
      Plan("find devices", [this] { return Device::All(driver_).status(); }));
}

TEST_F(VmmSweep, ProbeAHandleKind) {
  ExpectSwept(Plan("probe", [this]() -> absl::Status {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    return device->Probe(SharePolicy::Native().kinds().front());
  }));
}

TEST_F(VmmSweep, ProbeAndTouchWhereAContextIsActive) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*device);
  ASSERT_TRUE(context.ok()) << context.status();
  ExpectSwept(Plan("probe with a context", [this]() -> absl::Status {
    absl::StatusOr<Device> probed = Device::ByOrdinal(driver_, 0);
    if (!probed.ok()) return probed.status();
    return probed->Probe(SharePolicy::Native().kinds().front());
  }));
}

TEST_F(VmmSweep, Allocate) {
  ExpectSwept(WithPairs(Plan(
      "allocate", [this] { return Allocate({.size = 3 * kMiB}).status(); })));
}

TEST_F(VmmSweep, AllocateInChunks) {
  ExpectSwept(WithPairs(Plan("allocate 3 chunks", [this] {
    return Allocate({.size = 6 * kMiB, .max_chunk_size = 2 * kMiB}).status();
  })));
}

TEST_F(VmmSweep, AllocateWithKindsThatArePassedOver) {
  SweepPlan plan = Plan("allocate with fallback", [this]() -> absl::Status {
    absl::StatusOr<Allocation> made = Allocate(
        {.size = 2 * kMiB,
         .sharing = SharePolicy::AnyOf(
             {SharePolicy::Native().kinds().front(), HandleKind::kFabric})});
    if (!made.ok()) return made.status();
    // A fault that made a kind unusable is told here instead.
    for (const PassedOver& passed : made->passed_over()) {
      if (platform::ResultOf(passed.reason) != CUDA_ERROR_NOT_PERMITTED) {
        return passed.reason;
      }
    }
    return absl::OkStatus();
  });
  // Told from the driver's own answer for fabric handles by nothing.
  std::erase(plan.results, CUDA_ERROR_NOT_PERMITTED);
  // Looked at only to explain why there are no fabric handles: what cannot be
  // seen is said in that reason.
  plan.may_fail_silently = {"opendir"};
  ExpectSwept(plan);
}

TEST_F(VmmSweep, MapForSeveralDevices) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs two devices";
  ExpectSwept(Plan("map for two devices", [this]() -> absl::Status {
    absl::StatusOr<Device> other = Device::ByOrdinal(driver_, 1);
    if (!other.ok()) return other.status();
    return Allocate({.size = 2 * kMiB,
                     .also = {{Location::On(*other), Access::kRead}}})
        .status();
  }));
}

TEST_F(VmmSweep, AllocateOnTheHost) {
  ExpectSwept(Plan("allocate on the host", [this]() -> absl::Status {
    absl::StatusOr<Allocation> made =
        Allocate({.size = 2 * kMiB,
                  .host_numa_node = 0,
                  .also = {{Location::HostNuma(0), Access::kReadWrite}}});
    if (!made.ok()) return made.status();
    *reinterpret_cast<volatile int*>(made->address()) = 1;
    return absl::OkStatus();
  }));
}

// A negative control: the same context once more on top is the current one still.
TEST_F(VmmSweep, AContextThatIsLeftOnTheStackIsFound) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*device);
  ASSERT_TRUE(context.ok()) << context.status();
  absl::StatusOr<CurrentContext> current = context->MakeCurrent();
  ASSERT_TRUE(current.ok()) << current.status();
  CUcontext raw = nullptr;
  ASSERT_EQ(TestDriver()->cuCtxGetCurrent(&raw), CUDA_SUCCESS);
  const std::size_t before = CountContexts(TestDriver());
  const SweepResult result = Sweep(Plan("push and forget", [&] {
    EXPECT_EQ(TestDriver()->cuCtxPushCurrent(raw), CUDA_SUCCESS);
    return absl::OkStatus();
  }));
  EXPECT_GT(CountContexts(TestDriver()), before);
  DropContexts(TestDriver(), before);
  EXPECT_EQ(CountContexts(TestDriver()), before);
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_NE(
      result.problems[0].find("contexts of the thread: 2 before, 3 after"),
      std::string::npos)
      << result.problems[0];
}

TEST_F(VmmSweep, UnmapAndRemap) {
  SweepPlan plan = Plan("unmap and remap", [this]() -> absl::Status {
    absl::Status unmapped = made_->Unmap();
    // Counts as unmapped even if the driver says that it failed, so that the
    // memory can be mapped again.
    absl::Status remapped = made_->Remap();
    return unmapped.ok() ? remapped : unmapped;
  });
  plan.setup = [this] {
    Renew();
    Made({.size = 4 * kMiB, .max_chunk_size = 2 * kMiB});
  };
  // What the run keeps is what was there before: the setup's allocation. A run
  // that failed leaves it unmapped, which is the documented outcome. It can be
  // mapped again unless the driver refused to unmap it: the inventory shows
  // whether it is.
  plan.inventory = [this] {
    if (made_ != nullptr && !made_->is_mapped()) made_->Remap().IgnoreError();
    return TakeInventory(faults_.real());
  };
  // With the way back of a remap refused, it stays unmapped: less than before.
  plan.pairs = 0;
  ExpectSwept(plan);
}

TEST_F(VmmSweep, DiscardAndRemap) {
  ExpectSwept(Plan("discard and remap", [this]() -> absl::Status {
    absl::StatusOr<Allocation> made = Allocate({.size = 2 * kMiB});
    if (!made.ok()) return made.status();
    absl::Status discarded = made->Discard();
    if (!discarded.ok()) return discarded;
    return made->Remap();
  }));
}

TEST_F(VmmSweep, ExportAndImport) {
  SweepPlan plan = Plan("export and import", [this]() -> absl::Status {
    absl::StatusOr<protocol::Outgoing> outgoing =
        protocol::MakeOutgoing(made_->shareable());
    if (!outgoing.ok()) return outgoing.status();
    std::vector<ExportedHandle> handles;
    for (std::size_t i = 0; i < outgoing->ticket.layout.count(); ++i) {
      absl::StatusOr<ExportedHandle> handle = outgoing->handle(i);
      if (!handle.ok()) return handle.status();
      handles.push_back(*std::move(handle));
    }
    return ImportedAllocation::Open(driver_, outgoing->ticket, handles, {})
        .status();
  });
  plan.setup = [this] {
    Renew();
    if (made_ == nullptr) Made({.size = 4 * kMiB, .max_chunk_size = 2 * kMiB});
  };
  ExpectSwept(WithPairs(plan));
}

using FabricSweep = VmmSweep;

TEST_F(FabricSweep, ExportAndImportATicket) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::Status fabric = device->Probe(HandleKind::kFabric);
  if (!fabric.ok()) GTEST_SKIP() << fabric;
  SweepPlan plan = Plan("export and import a ticket", [this]() -> absl::Status {
    absl::StatusOr<std::vector<std::uint8_t>> ticket =
        ExportFabricTicket(made_->shareable());
    if (!ticket.ok()) return ticket.status();
    return ImportFabricTicket(driver_, *ticket, {}).status();
  });
  plan.setup = [this] {
    Renew();
    if (made_ == nullptr) {
      Made({.size = 4 * kMiB,
            .sharing = SharePolicy::Require(HandleKind::kFabric),
            .max_chunk_size = 2 * kMiB});
    }
  };
  // Looked at only to say which channels there are, in the reason.
  plan.may_fail_silently = {"opendir"};
  ExpectSwept(plan);
}

TEST_F(VmmSweep, AdoptAPointer) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*device);
  ASSERT_TRUE(context.ok()) << context.status();
  absl::StatusOr<CurrentContext> current = context->MakeCurrent();
  ASSERT_TRUE(current.ok()) << current.status();
  Made({.size = 4 * kMiB, .max_chunk_size = 2 * kMiB});
  SweepPlan plan = Plan("adopt", [this] {
    return AdoptedMemory::Adopt(driver_, made_->address() + 5, 3 * kMiB)
        .status();
  });
  // That VMM memory is there is learnt from this answer; "no" is told as what
  // the pointer is instead.
  plan.told_in_words.push_back("cuMemRetainAllocationHandle");
  ExpectSwept(plan);
}

TEST_F(VmmSweep, RetireAfterAStream) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*device);
  ASSERT_TRUE(context.ok()) << context.status();
  absl::StatusOr<CurrentContext> current = context->MakeCurrent();
  ASSERT_TRUE(current.ok()) << current.status();
  ExpectSwept(WithPairs(Plan("retire", [this]() -> absl::Status {
    absl::StatusOr<Allocation> made = Allocate({.size = 2 * kMiB});
    if (!made.ok()) return made.status();
    RetireQueue queue(driver_);
    absl::Status retired = queue.Retire(*std::move(made), nullptr);
    if (!retired.ok()) return retired;
    return queue.Drain(Soon());
  })));
}

// Both ends of a channel, the receiving one on a thread of its own.
absl::Status SendToThread(const Driver& driver, const Shareable& memory) {
  absl::StatusOr<std::pair<Channel, Channel>> ends = Channel::Pair();
  if (!ends.ok()) return ends.status();
  absl::Status received;
  std::thread importer;
  try {
    importer = std::thread([&] {
      received = ReceiveAllocations(ends->second, driver, {}, Soon()).status();
      ends->second.Close();
    });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(error.what());
  }
  absl::Status sent = SendAllocation(ends->first, memory, Soon());
  ends->first.Close();
  importer.join();
  return sent.ok() ? received : sent;
}

TEST_F(VmmSweep, SendAndReceive) {
  SweepPlan plan = Plan("send and receive", [this] {
    return SendToThread(driver_, made_->shareable());
  });
  plan.setup = [this] {
    Renew();
    if (made_ == nullptr) Made({.size = 4 * kMiB, .max_chunk_size = 2 * kMiB});
  };
  // The other side meets some of the failures, and its word, or its hanging
  // up, is what this side says.
  plan.status_names_call = false;
  // The sender's last word is thanks; the memory is there without it. A peer's
  // close that discards it is said once and read past.
  plan.may_fail_silently = {
      "setsockopt:ENOPROTOOPT", "sendmsg",         "poll",    "ppoll",
      "recvmsg:ECONNRESET",     "recv:ECONNRESET", "shutdown"};
  ExpectSwept(WithPairs(plan));
}

TEST_F(VmmSweep, ServeAndOpenATicket) {
  SweepPlan plan = Plan("serve and open a ticket", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Start(
        {.request_timeout = kLongEnough, .transfer_timeout = kLongEnough});
    if (!endpoint.ok()) return endpoint.status();
    absl::StatusOr<Share> published = (*endpoint)->Publish(made_->shareable());
    if (!published.ok()) return published.status();
    return OpenTicket(driver_, published->ticket(), {}, Soon()).status();
  });
  plan.setup = [this] {
    Renew();
    if (made_ == nullptr) Made({.size = 2 * kMiB});
  };
  plan.status_names_call = false;
  // The acceptor tries again, and so does an importer that it had no room for;
  // a session that fails after the importer has all is counted, not told.
  plan.may_fail_silently = {"accept4", "sendmsg", "poll", "ppoll", "fstat",
                            "getsockopt", "setsockopt", "recvmsg", "lstat",
                            "shutdown", "recv", "fcntl", "std::thread",
                            // Asked of what is being closed, when fcntl() did
                            // not say that it is memory: another thread closes
                            // what cannot be seen.
                            "statx",
                            // A kernel that has no such descriptors does not
                            // tell of a process's end.
                            "syscall(pidfd_open):ENOSYS",
                            // Of a lifeline: whoever looks for an end asks
                            // anew.
                            "pread",
                            // The directory for sockets is there, and nothing
                            // need be swept from it.
                            "mkdir:EEXIST", "opendir", "readdir"};
  ExpectSwept(WithPairs(plan));
}

// After a failure the memory is mapped and has its contents, or is released and
// comes back with them.
absl::Status ReleaseAndRestore(RestorableAllocation& memory) {
  absl::Status status = memory.Release(Keep::kHostMemory, Soon());
  if (status.ok() && !memory.is_released()) {
    return absl::InternalError("not released");
  }
  if (memory.is_released()) {
    const absl::Status restored = memory.Restore();
    if (status.ok()) status = restored;
    if (restored.ok() == memory.is_released()) {
      return absl::InternalError("neither released nor restored");
    }
  }
  if (memory.is_released()) return status;
  std::vector<std::uint8_t> bytes(4096);
  EXPECT_EQ(TestDriver()->cuMemcpyDtoH(bytes.data(), memory.address(), 4096),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(4096, 0x5a));
  return status;
}

TEST_F(VmmSweep, ReleaseAndRestore) {
  absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*device);
  ASSERT_TRUE(context.ok()) << context.status();
  absl::StatusOr<CurrentContext> current = context->MakeCurrent();
  ASSERT_TRUE(current.ok()) << current.status();
  const std::unique_ptr<Endpoint> endpoint =
      Endpoint::Start({.request_timeout = kLongEnough}).value();
  ExpectSwept(WithPairs(Plan("release and restore", [&]() -> absl::Status {
    absl::StatusOr<Allocation> made = Allocate({.size = 4 * kMiB});
    if (!made.ok()) return made.status();
    EXPECT_EQ(TestDriver()->cuMemsetD8(made->address(), 0x5a, made->size()),
              CUDA_SUCCESS);
    EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
    absl::StatusOr<RestorableAllocation> memory =
        RestorableAllocation::Share(*endpoint, *std::move(made));
    if (!memory.ok()) return memory.status();
    return ReleaseAndRestore(*memory);
  })));
}

// After a failure all of it is there, with its contents, or none is and all of
// it comes back.
TEST_F(VmmSweep, ReleaseAndRestoreARegion) {
  absl::StatusOr<Device> here = Device::ByOrdinal(TestDriver(), 0);
  ASSERT_TRUE(here.ok()) << here.status();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(*here);
  ASSERT_TRUE(context.ok()) << context.status();
  absl::StatusOr<CurrentContext> current = context->MakeCurrent();
  ASSERT_TRUE(current.ok()) << current.status();
  ExpectSwept(
      WithPairs(Plan("release and restore a region", [&]() -> absl::Status {
        absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
        if (!device.ok()) return device.status();
        RestorableRegion region(*device);
        std::vector<CUdeviceptr> at;
        for (int i = 0; i < 3; ++i) {
          const absl::StatusOr<CUdeviceptr> made = region.Allocate(4 * kMiB);
          if (!made.ok()) return made.status();
          EXPECT_EQ(TestDriver()->cuMemsetD8(*made, 0x5a, 4096), CUDA_SUCCESS);
          EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
          at.push_back(*made);
        }
        absl::Status status = region.Release(Keep::kHostMemory);
        if (region.statistics().is_released) status.Update(region.Restore());
        EXPECT_EQ(region.statistics().bytes, 12 * kMiB);
        if (region.statistics().is_released) return status;
        for (const CUdeviceptr address : at) {
          std::vector<std::uint8_t> bytes(4096);
          EXPECT_EQ(TestDriver()->cuMemcpyDtoH(bytes.data(), address, 4096),
                    CUDA_SUCCESS);
          EXPECT_EQ(bytes, std::vector<std::uint8_t>(4096, 0x5a));
        }
        return status;
      })));
}

// Found by pairs: what it could not give back was not told to anybody.
TEST_F(VmmSweep, ARestoreThatCannotGiveBackWhatItMadeSaysSo) {
  const std::unique_ptr<Endpoint> endpoint =
      Endpoint::Start({.request_timeout = kLongEnough}).value();
  RestorableAllocation memory =
      RestorableAllocation::Share(*endpoint, Allocate({.size = 1}).value())
          .value();
  ASSERT_EQ(memory.Release(Keep::kNothing, Soon()), absl::OkStatus());
  BeginTap("restore");
  faults_.Arm({.entry = "cuMemUnmap",
               .result = CUDA_ERROR_ILLEGAL_ADDRESS,
               .effect = FaultEffect::kPerformedButReported});
  const absl::Status restored = memory.Restore(
      [](const Allocation&) { return absl::DataLossError("no such file"); });
  const DriverFaults::Outcome outcome = faults_.Disarm();
  const std::vector<std::string> reports = EndTap();
  EXPECT_TRUE(absl::IsDataLoss(restored)) << restored;
  EXPECT_TRUE(memory.is_released());
  EXPECT_EQ(outcome.fired, 1u);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].find("cuMemUnmap"), std::string::npos) << reports[0];
}

TEST_F(VmmSweep, LetGoOfAnImportAndRestoreIt) {
  SweepPlan plan = Plan("release and restore an import", [&]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Start(
        {.request_timeout = kLongEnough, .transfer_timeout = kLongEnough});
    if (!endpoint.ok()) return endpoint.status();
    const absl::StatusOr<Share> share =
        (*endpoint)->Publish(made_->shareable());
    if (!share.ok()) return share.status();
    absl::StatusOr<RestorableImport> import =
        RestorableImport::Open(driver_, share->ticket(), {}, Soon());
    if (!import.ok()) return import.status();
    const CUdeviceptr address = import->address();
    const absl::Status released = import->Release();
    EXPECT_TRUE(import->is_released());
    const absl::Status restored = import->Restore(Soon());
    EXPECT_EQ(restored.ok(), !import->is_released());
    EXPECT_EQ(import->address(), address);
    return released.ok() ? restored : released;
  });
  plan.setup = [this] {
    Renew();
    if (made_ == nullptr) Made({.size = 2 * kMiB});
  };
  plan.system_calls = false;  // As in ServeAndOpenATicket.
  plan.status_names_call = false;
  ExpectSwept(WithPairs(plan));
}

}  // namespace
}  // namespace vmm::testing
