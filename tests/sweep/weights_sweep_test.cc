// Tensor sets with every call failed in turn: whatever fails, a reader has all of a
// set or none, and nothing is left behind.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/keeper_address.h"
#include "tests/support/must.h"
#include "tests/support/private_directory.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/weights/manifest.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

// Enough for the device to take their checksums.
constexpr std::uint64_t kTensor = kMiB;
constexpr std::uint64_t kSmall = 1000;

class WeightsSweep : public VmmSweep {
 protected:
  WeightsSweep() : bytes_(kTensor, std::uint8_t{0x5a}) {
    context_.emplace(
        Must(PrimaryContext::Retain(Must(Device::ByOrdinal(TestDriver(), 0)))));
    current_.emplace(Must(context_->MakeCurrent()));
    Must(layout_.Add("large", DType::kUInt8, {std::int64_t{kTensor}}));
    Must(layout_.Add("small", DType::kUInt8, {std::int64_t{kSmall}}));
  }

  SweepPlan PlanOfSets(const std::string& name,
                       std::function<absl::Status()> run) {
    SweepPlan plan = Plan(name, std::move(run));
    // A run takes 10 ms: all of them at night.
    if (!SweepsAll()) plan.every *= 3;
    // How the driver says of memory that it is not cuMemCreate()'s.
    plan.told_in_words.push_back("cuMemRetainAllocationHandle");
    // A handle of the memory is made ahead, which saves whoever publishes it 0.6 ms;
    // where it cannot be had, that one is told.
    plan.may_fail_silently = {
        "cuCtxPushCurrent", "cuPointerGetAttributes",
        "cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle",
        "cuMemGetAddressRange", "cuPointerGetAttribute",
        "cuMemExportToShareableHandle", "getrandom",
        // Where the device has no room for a kernel, the CPU
        // takes the checksums.
        "cuDeviceGetAttribute", "cuLibraryGetKernel", "cuLaunchKernel",
        "cuStreamSynchronize",
        // Asked before that wait, which then says what it can.
        "cuStreamIsCapturing"};
    return plan;
  }

  // Makes memory, has `fill` write to it, and seals that.
  absl::Status MakeSetBy(
      const std::function<absl::Status(TensorSetWriter&)>& fill) {
    absl::StatusOr<Allocation> memory = Allocate({.size = layout_.size()});
    if (!memory.ok()) return memory.status();
    absl::Status status;
    {
      absl::StatusOr<TensorSetWriter> writer = Begin(*memory);
      status = writer.status();
      if (status.ok()) status = fill(*writer);
      if (status.ok()) status = writer->Seal({});
    }
    // Where no context can be made current, or the wait for the copies fails, the
    // writer cannot wait for them. The memory may go only after they have.
    EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
    ExpectAllOrNothing(memory->address(), memory->requested_size(),
                       status.ok());
    return status;
  }

  absl::StatusOr<TensorSetWriter> Begin(const Allocation& memory) {
    return TensorSetWriter::Begin(driver_, memory.address(),
                                  memory.requested_size(), layout_);
  }
  absl::Status Fill(TensorSetWriter& writer) {
    absl::Status written = writer.Write(0, 0, bytes_);
    if (!written.ok()) return written;
    return writer.Write(1, 0, absl::MakeConstSpan(bytes_).first(kSmall));
  }

  // What another process finds in the memory.
  static void ExpectAllOrNothing(CUdeviceptr address, std::uint64_t size,
                                 bool is_sealed) {
    const absl::StatusOr<TensorSet> set =
        TensorSet::Open(TestDriver(), address, size);
    if (!set.ok()) {
      EXPECT_TRUE(absl::IsFailedPrecondition(set.status())) << set.status();
      EXPECT_FALSE(is_sealed);
      return;
    }
    EXPECT_EQ(set->manifest().tensors.size(), 2u);
    const absl::StatusOr<std::size_t> verified = set->Verify();
    EXPECT_TRUE(verified.ok()) << verified.status();
  }

  // A set that was made once, with nothing failing.
  void MakeSet() {
    Made({.size = layout_.size()});
    TensorSetWriter writer = Must(Begin(*made_));
    Must(Fill(writer));
    Must(writer.Seal({}));
  }

  // `*set` is the new one, if all of that was done.
  absl::Status PutAndAttach(KeeperClient& client, const Allocation& memory,
                            std::optional<KeptTensorSet>& set) {
    absl::StatusOr<TensorSetWriter> writer = Begin(memory);
    if (!writer.ok()) return writer.status();
    const absl::Status filled = Fill(*writer);
    if (!filled.ok()) return filled;
    const absl::StatusOr<std::uint64_t> generation =
        PublishTensorSet(client, "w", memory.shareable(), *writer, Soon());
    if (!generation.ok()) return generation.status();
    absl::StatusOr<KeptTensorSet> kept =
        AttachTensorSet(client, "w", driver_, {}, Soon());
    if (!kept.ok()) return kept.status();
    const absl::Status verified = kept->set.Verify().status();
    set.emplace(*std::move(kept));
    return verified;
  }
  void PublishAndAttach(const std::string& name, int count);

  const PrivateDirectory directory_;
  std::vector<std::uint8_t> bytes_;
  TensorLayout layout_{TensorSetNotes{}};
  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
};

TEST_F(WeightsSweep, WriteAndSeal) {
  ExpectSwept(WithPairs(PlanOfSets("write and seal a set", [this] {
    return MakeSetBy([this](TensorSetWriter& writer) { return Fill(writer); });
  })));
}

TEST_F(WeightsSweep, OpenAndVerify) {
  MakeSet();
  ExpectSwept(
      WithPairs(PlanOfSets("open and verify a set", [this]() -> absl::Status {
        const absl::StatusOr<TensorSet> set =
            TensorSet::Open(driver_, made_->address(), made_->requested_size());
        if (!set.ok()) return set.status();
        const absl::StatusOr<std::size_t> verified = set->Verify();
        EXPECT_EQ(verified.value_or(2), 2u);
        return verified.status();
      })));
}

TEST_F(WeightsSweep, CopyAll) {
  Made({.size = kTensor});
  ExpectSwept(WithPairs(PlanOfSets("copy all into a set", [this] {
    return MakeSetBy([this](TensorSetWriter& writer) {
      const TensorSetWriter::Source sources[] = {{0, made_->address()},
                                                 {1, made_->address()}};
      const absl::Status copied = writer.CopyAll(sources, nullptr);
      return copied.ok() ? writer.TakeChecksums() : copied;
    });
  })));
}

// A header, and the files' bytes by a thread that reads.
TEST_F(WeightsSweep, ReadFiles) {
  const std::string json = absl::StrCat(
      R"({"large":{"dtype":"U8","shape":[)", kTensor, R"(],"data_offsets":[0,)",
      kTensor, R"(]},"small":{"dtype":"U8","shape":[)", kSmall,
      R"(],"data_offsets":[)", kTensor, ",", kTensor + kSmall, "]}}");
  const std::string path = directory_.path() + "/x.safetensors";
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 8; ++i) {
      file.put(static_cast<char>(std::uint64_t{json.size()} >> (8 * i)));
    }
    file << json << std::string(kTensor + kSmall, 'w');
  }
  SweepPlan plan = PlanOfSets("read files into a set", [&]() -> absl::Status {
    const absl::StatusOr<SafetensorsHeader> header =
        ReadSafetensorsHeader(path);
    if (!header.ok()) return header.status();
    std::vector<TensorSetWriter::FileRead> reads;
    for (std::size_t i = 0; i < header->tensors.size(); ++i) {
      const TensorInfo& tensor = header->tensors[i];
      reads.push_back(
          {i, 0, {tensor.offset, tensor.extent(), tensor.extent()}});
    }
    return MakeSetBy([&](TensorSetWriter& writer) {
      return writer.ReadFiles({path}, reads, {.threads = 1});
    });
  });
  ExpectSwept(WithPairs(plan));
}

// A keeper of this process, and a client that puts `count` sets in turn and has each
// again.
void WeightsSweep::PublishAndAttach(const std::string& name, int count) {
  const std::string address = KeeperAddressIn(directory_.path());
  SweepPlan plan = PlanOfSets(name, [&]() -> absl::Status {
    const auto server = keeper::Server::Start(
        {.address = address}, absl::NotFoundError("none in this test"), {});
    if (!server.ok()) return server.status();
    absl::StatusOr<KeeperClient> client =
        KeeperClient::Connect({.address = address}, Soon());
    if (!client.ok()) return client.status();
    std::optional<KeptTensorSet> old;
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<Allocation> memory = Allocate({.size = layout_.size()});
      if (!memory.ok()) return memory.status();
      const absl::Status status = PutAndAttach(*client, *memory, old);
      EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
      // A reader of the one before has it still.
      if (old.has_value()) {
        ExpectAllOrNothing(old->memory.address(), old->memory.requested_size(),
                           true);
      }
      if (!status.ok()) return status;
    }
    EXPECT_EQ(old->set.manifest().generation,
              static_cast<std::uint64_t>(count));
    return absl::OkStatus();
  });
  // Both sides meet the failures, and what the keeper met, it says in its words.
  plan.status_names_call = false;
  plan.system_calls = false;
  ExpectSwept(WithPairs(plan));
}

TEST_F(WeightsSweep, PublishAndAttachOne) {
  PublishAndAttach("publish and attach a set", 1);
}

TEST_F(WeightsSweep, ReplaceOneThatIsRead) {
  PublishAndAttach("replace a set that is read", 2);
}

}  // namespace
}  // namespace vmm::testing
