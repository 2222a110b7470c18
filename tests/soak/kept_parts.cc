// A keeper, a trainer that replaces a tensor set in it, and an engine that has
// the newest one. args: where the orders are, a directory.
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/soak/part.h"
#include "tests/soak/soak.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/keeper/keeper.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

using platform::Channel;

constexpr std::array<const char*, 3> kTensors = {"a", "b", "c"};

int KeepMemory(const std::vector<std::string>& args) {
  const auto server =
      Must(keeper::Server::Start({.address = KeeperAddressIn(args[1])},
                                 absl::NotFoundError("none in this test"), {}));
  Channel orders = Dial(args[0]);
  return Play(orders, {});
}
const bool kKeeper = RegisterChild("soak-keeper", &KeepMemory);

KeeperClient ConnectIn(const std::string& directory) {
  return Must(
      KeeperClient::Connect({.address = KeeperAddressIn(directory)}, Late()));
}

class Trainer {
 public:
  explicit Trainer(std::string directory) : directory_(std::move(directory)) {}

  void Step() {
    KeeperClient client = ConnectIn(directory_);
    if (dice_.Below(3) == 0) {
      KeepScratch(client);
    } else {
      Replace(client);
    }
  }

 private:
  // All of its contents follow from the fingerprint.
  void Replace(KeeperClient& client) {
    const std::uint64_t seed = dice_.Below(1u << 30);
    TensorLayout layout({.fingerprint = absl::StrCat(seed)});
    for (const char* name : kTensors) {
      Must(layout.Add(name, DType::kUInt8, {kSoakTensor}));
    }
    const Allocation memory =
        Must(Allocation::Create(here_.device, {.size = layout.size()}));
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        TestDriver(), memory.address(), memory.requested_size(), layout));
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      Must(writer.Write(i, 0, Pattern(seed + i, kSoakTensor)));
    }
    const absl::StatusOr<std::uint64_t> generation =
        PublishTensorSet(client, kSoakSet, memory.shareable(), writer, Late());
    EXPECT_TRUE(generation.ok()) << generation.status();
    if (!generation.ok()) return;
    EXPECT_GT(*generation, last_);
    last_ = *generation;
  }

  void KeepScratch(KeeperClient& client) {
    const std::string name = absl::StrCat("scratch-", dice_.Below(1u << 30));
    const Allocation memory =
        Must(Allocation::Create(here_.device, {.size = kSoakPiece}));
    Must(client.Put(name, memory.shareable(), Late()));
    Must(client.Unlock(name, Late()));
    Must(client.Lock(name, Late()));
    Must(client.Drop(name, Late()));
  }

  const Here here_;
  const std::string directory_;
  Dice dice_;
  std::uint64_t last_ = 0;  // Generation.
};

class Engine {
 public:
  explicit Engine(std::string directory) : directory_(std::move(directory)) {}

  void Step() {
    KeeperClient client = ConnectIn(directory_);
    absl::StatusOr<KeptTensorSet> kept =
        AttachTensorSet(client, kSoakSet, TestDriver(), {}, Late());
    if (absl::IsNotFound(kept.status()) && last_ == 0) return;
    EXPECT_TRUE(kept.ok()) << kept.status();
    if (!kept.ok()) return;
    ExpectWhole(kept->set);
    EXPECT_GE(kept->set.manifest().generation, last_);
    last_ = kept->set.manifest().generation;
    // What is replaced stays as it is for those that have it.
    if (before_.has_value()) ExpectWhole(before_->set);
    before_.emplace(*std::move(kept));
  }
  void Rest() { before_.reset(); }

 private:
  static void ExpectWhole(const TensorSet& set) {
    const TensorManifest& manifest = set.manifest();
    std::uint64_t seed = 0;
    EXPECT_TRUE(absl::SimpleAtoi(manifest.fingerprint, &seed));
    EXPECT_EQ(Must(set.Verify()), kTensors.size());
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      ExpectPattern(set.address(manifest.tensors.at(i)), kSoakTensor, seed + i);
    }
  }

  const Here here_;
  const std::string directory_;
  std::optional<KeptTensorSet> before_;
  std::uint64_t last_ = 0;
};

int Train(const std::vector<std::string>& args) {
  Trainer trainer(args[1]);
  Channel orders = Dial(args[0]);
  return Play(orders, {.step = [&] { trainer.Step(); }});
}
const bool kTrainer = RegisterChild("soak-trainer", &Train);

int Infer(const std::vector<std::string>& args) {
  Engine engine(args[1]);
  Channel orders = Dial(args[0]);
  return Play(orders,
              {.step = [&] { engine.Step(); }, .rest = [&] { engine.Rest(); }});
}
const bool kEngine = RegisterChild("soak-engine", &Infer);

}  // namespace
}  // namespace vmm::testing
