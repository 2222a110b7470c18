// A keeper with a tensor set, and a client that replaces it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

constexpr char kName[] = "weights";
constexpr std::uint64_t kBytes = 20'000;  // Of each of its tensors.

// Generation `generation` is told from all others by its contents.
absl::StatusOr<std::uint64_t> Publish(Party& me, KeeperClient& client,
                                      std::uint64_t generation) {
  TensorLayout layout({.fingerprint = absl::StrCat(generation)});
  for (const char* name : {"a", "b", "c"}) {
    Must(layout.Add(name, DType::kUInt8, {kBytes}));
  }
  absl::StatusOr<Allocation> memory =
      Allocation::Create(me.device(), {.size = layout.size()});
  if (!memory.ok()) return memory.status();
  absl::StatusOr<TensorSetWriter> writer = TensorSetWriter::Begin(
      me.driver(), memory->address(), memory->requested_size(), layout);
  if (!writer.ok()) return writer.status();
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    absl::Status written =
        writer->Write(tensor, 0, Pattern(10 * generation + tensor, kBytes));
    if (!written.ok()) return written;
  }
  return me.Try("PublishTensorSet", Again::kNo, [&](absl::Time deadline) {
    return PublishTensorSet(client, kName, memory->shareable(), *writer,
                            deadline);
  });
}

// Attaches it. Whoever has died, all of one generation is there.
absl::StatusOr<KeptTensorSet> AttachWhole(Party& me, KeeperClient& client) {
  absl::StatusOr<KeptTensorSet> kept =
      me.Try("AttachTensorSet", Again::kNo, [&](absl::Time deadline) {
        return AttachTensorSet(client, kName, me.driver(), {}, deadline);
      });
  if (!kept.ok()) return kept;
  const std::uint64_t generation = kept->set.manifest().generation;
  EXPECT_TRUE(generation == 1 || generation == 2) << generation;
  EXPECT_EQ(kept->set.manifest().fingerprint, absl::StrCat(generation));
  EXPECT_EQ(Must(kept->set.Verify()), 3u);
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    ExpectPattern(kept->set.address(kept->set.manifest().tensors[tensor]),
                  kBytes, 10 * generation + tensor);
  }
  return kept;
}

}  // namespace

absl::Status RunWeights(Party& me) {
  absl::StatusOr<std::unique_ptr<keeper::Server>> server =
      keeper::Server::Start({.address = KeeperAddressIn(me.directory())},
                            absl::NotFoundError("none in this test"), {});
  if (!server.ok()) return server.status();
  absl::StatusOr<KeeperClient> client =
      me.Try("KeeperClient::Connect", Again::kYes, [&](absl::Time deadline) {
        return KeeperClient::Connect({.address = (*server)->address()},
                                     deadline);
      });
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::uint64_t> first = Publish(me, *client, 1);
  if (!first.ok()) return first.status();
  EXPECT_EQ(*first, 1u);
  const absl::StatusOr<KeptTensorSet> before = AttachWhole(me, *client);
  if (!before.ok()) return before.status();
  absl::Status done = me.Tell((*server)->address());
  if (done.ok()) done = me.Hear().status();  // "done"
  const absl::StatusOr<KeptTensorSet> after = AttachWhole(me, *client);
  if (!after.ok()) return after.status();
  // What was answered is so, and who has the old set keeps it.
  if (me.HasHeard("done")) {
    EXPECT_EQ(after->set.manifest().generation, 2u);
  }
  EXPECT_EQ(before->set.manifest().generation, 1u);
  EXPECT_EQ(Must(before->set.Verify()), 3u);
  // Nothing but the set, and no writer in anybody's way.
  EXPECT_EQ((*server)->names(), 1u);
  return done.ok() ? me.Tell("gone") : done;
}

absl::Status ReplaceWeights(Party& me) {
  const absl::StatusOr<std::string> address = me.Hear();
  if (!address.ok()) return address.status();
  absl::StatusOr<KeeperClient> client =
      me.Try("KeeperClient::Connect", Again::kNo, [&](absl::Time deadline) {
        return KeeperClient::Connect({.address = *address}, deadline);
      });
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::uint64_t> second = Publish(me, *client, 2);
  if (!second.ok()) return second.status();
  EXPECT_EQ(*second, 2u);
  const absl::StatusOr<KeptTensorSet> kept = AttachWhole(me, *client);
  if (!kept.ok()) return kept.status();
  absl::Status done = me.Tell("done");
  if (done.ok()) done = me.Hear().status();  // "gone"
  return done;
}

}  // namespace vmm::testing
