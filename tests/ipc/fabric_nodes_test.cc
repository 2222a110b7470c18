// Memory of another node through fabric handles: several nodes on this machine,
// on the host-memory driver. Each is a process that does what the test asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/os/machine.h"
#include "platform/os/process.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/nodes.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Bytes = std::vector<std::uint8_t>;
using Env = std::map<std::string, std::string>;

constexpr std::uint64_t kSize = 3 * kGranule - 100;

// What a node answers: "ok", or the CUDA result (0 if it has none), the
// absl::StatusCode and the message.
std::string Word(const absl::Status& status) {
  if (status.ok()) return "ok";
  return absl::StrCat(
      static_cast<int>(platform::ResultOf(status).value_or(CUDA_SUCCESS)), " ",
      static_cast<int>(status.code()), " ", status.message());
}

// "fd" or "fabric", each of the words from number `first` on.
SharePolicy KindsOf(const std::vector<std::string>& words, std::size_t first) {
  std::vector<HandleKind> kinds;
  for (std::size_t i = first; i < words.size(); ++i) {
    kinds.push_back(words[i] == "fd" ? HandleKind::kPosixFd
                                     : HandleKind::kFabric);
  }
  return SharePolicy::AnyOf(kinds);
}

// What a node keeps between the test's requests.
struct Node {
  explicit Node(const std::string& address) : channel(Dial(address)) {}

  absl::Status Create(const AllocationOptions& options) {
    absl::StatusOr<Allocation> made = Allocation::Create(here.device, options);
    if (!made.ok()) return made.status();
    own.emplace(*std::move(made));
    // All kinds, or the reason why the first that lacks was passed over.
    return own->passed_over().empty() ? absl::OkStatus()
                                      : own->passed_over().front().reason;
  }

  // A block that the CPU reaches, so that it is a segment by itself.
  absl::Status AllocateOnTheHost(std::uint64_t size, const SharePolicy& kinds) {
    const std::unique_ptr<Pool> pool = Must(Pool::Create(
        here.device, {.sharing = kinds,
                      .also = {{Location::HostNuma(0), Access::kReadWrite}},
                      .host_numa_node = 0}));
    return pool->Allocate(size, nullptr).status();
  }

  absl::Status Import(const platform::Message& message) {
    absl::StatusOr<ImportedAllocation> memory = ImportFabricTicket(
        TestDriver(), message.payload,
        {.grants = {{Location::On(here.device), Access::kReadWrite}}});
    if (!memory.ok()) return memory.status();
    imported.emplace(*std::move(memory));
    return absl::OkStatus();
  }

  static CUresult ImportDescriptor(const platform::Message& message) {
    CUmemGenericAllocationHandle memory = 0;
    return TestDriver()->cuMemImportFromShareableHandle(
        &memory, reinterpret_cast<void*>(message.handles.at(0).get()),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }

  // False at the end.
  bool Serve() {
    const platform::Message message = Must(channel.Receive(Late()));
    const std::string text(message.payload.begin(), message.payload.end());
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    const auto seed = [&words] {
      std::uint64_t number = 0;
      EXPECT_TRUE(absl::SimpleAtoi(words.at(1), &number));
      return number;
    };
    const Allocation* mine = own ? &*own : nullptr;
    if (message.type == kRawMemory) {  // A fabric ticket, or a descriptor.
      Tell(channel,
           message.handles.empty()
               ? Word(Import(message))
               : absl::StrCat(static_cast<int>(ImportDescriptor(message))));
    } else if (words[0] == "create") {
      Tell(channel,
           Word(Create({.size = kSize,
                        .sharing = SharePolicy::AnyOf(
                            {HandleKind::kFabric, HandleKind::kPosixFd}),
                        .max_chunk_size =
                            words.size() > 1 ? seed() * kMiB : kGranule})));
    } else if (words[0] == "create-on-host") {  // On that node, of those kinds.
      Tell(channel, Word(Create({.size = kSize,
                                 .sharing = KindsOf(words, 2),
                                 .host_numa_node = static_cast<int>(seed())})));
    } else if (words[0] == "export") {
      const absl::StatusOr<Bytes> ticket =
          ExportFabricTicket(mine->shareable());
      Tell(channel, Word(ticket.status()));
      if (ticket.ok()) Tell(channel, {ticket->begin(), ticket->end()});
    } else if (words[0] == "descriptor") {
      const protocol::Outgoing outgoing =
          Must(protocol::MakeOutgoing(mine->shareable()));
      const ExportedHandle handle = Must(outgoing.handle(0));
      const platform::OsHandle* fd = &std::get<platform::OsHandle>(handle);
      Must(channel.Send(kRawMemory, EncodeTicket(outgoing.ticket),
                        absl::MakeConstSpan(&fd, 1), Late()));
    } else if (words[0] == "usable") {  // The ticket of a descriptor, here.
      Tell(channel,
           Word(CheckUsableHere(
               Must(DecodeTicket(Must(channel.Receive(Late())).payload)),
               TestDriver())));
    } else if (words[0] == "kinds") {
      std::string kinds =
          absl::StrCat(own->kinds().ToString(), "; ", own->size(), " bytes");
      for (const PassedOver& each : own->passed_over()) {
        absl::StrAppend(&kinds, "; not ", NameOf(each.kind), ": ",
                        each.reason.message());
      }
      Tell(channel, kinds);
    } else if (words[0] == "publish") {  // As fabric handles alone.
      own.emplace(Must(Allocation::Create(
          here.device, {.size = kSize,
                        .sharing = SharePolicy::Require(HandleKind::kFabric),
                        .max_chunk_size = kGranule})));
      endpoint = Must(Endpoint::Start({}));
      publication.emplace(Must(endpoint->Publish(own->shareable())));
      Tell(channel, publication->ticket());
    } else if (words[0] == "open") {
      absl::StatusOr<ImportedAllocation> memory = OpenTicket(
          TestDriver(), words.at(1), {.access = Access::kReadWrite}, Late());
      Tell(channel, Word(memory.status()));
      if (memory.ok()) imported.emplace(*std::move(memory));
    } else if (words[0] == "write") {
      WritePattern(mine->address(), kSize, seed());
      Tell(channel, "ok");
    } else if (words[0] == "expect") {
      ExpectPattern(mine->address(), kSize, seed());
      Tell(channel, ::testing::Test::HasFailure() ? "differs" : "ok");
    } else if (words[0] == "write-imported") {
      WritePattern(imported->address(), imported->requested_size(), seed());
      Tell(channel, "ok");
    } else if (words[0] == "expect-imported") {
      ExpectPattern(imported->address(), imported->requested_size(), seed());
      Tell(channel, ::testing::Test::HasFailure() ? "differs" : "ok");
    } else if (words[0] == "pool-block") {  // Of that many MiB, of those kinds.
      Tell(channel, Word(AllocateOnTheHost(seed() * kMiB, KindsOf(words, 2))));
    } else if (words[0] == "drop") {
      own.reset();
      imported.reset();
      Tell(channel, "ok");
    } else if (words[0] == "free") {
      std::size_t free = 0;
      std::size_t total = 0;
      EXPECT_EQ(TestDriver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
      Tell(channel, absl::StrCat(free));
    } else {
      EXPECT_EQ(words[0], "end");
      return false;
    }
    return true;
  }

  Here here;
  platform::Channel channel;
  std::optional<Allocation> own;
  std::optional<ImportedAllocation> imported;
  std::unique_ptr<Endpoint> endpoint;
  std::optional<Share> publication;
};

// args: the test's address; the name of the node to enter, if any; "obey".
int RunNode(const std::vector<std::string>& args) {
  if (!args[1].empty()) Must(EnterNode(args[1]));
  if (args[2] == "obey") ObeyPermissionBits();
  UseTheHostMemoryDriver();
  Node node(args[0]);
  while (node.Serve()) {
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kRunNode = RegisterChild("fabric-node", &RunNode);

// The test's end of a node.
class RemoteNode {
 public:
  RemoteNode(Child child, platform::Listener& listener)
      : child_(std::make_unique<Child>(std::move(child))),
        channel_(Must(listener.Accept(Late()))) {}
  RemoteNode(RemoteNode&&) = default;
  ~RemoteNode() {
    if (child_ == nullptr) return;
    Tell(channel_, "end");
    EXPECT_EQ(child_->Wait(), 0);
  }

  std::string Ask(const std::string& request) {
    Tell(channel_, request);
    return Hear(channel_);
  }
  // The ticket of its memory, newly made and with the pattern `seed`.
  Bytes Share(std::uint64_t seed) {
    EXPECT_EQ(Ask("create"), "ok");
    EXPECT_EQ(Ask(absl::StrCat("write ", seed)), "ok");
    return Export();
  }
  Bytes Export() {
    EXPECT_EQ(Ask("export"), "ok");
    const std::string ticket = Hear(channel_);
    return {ticket.begin(), ticket.end()};
  }
  std::string Import(const Bytes& ticket) {
    Must(channel_.Send(kRawMemory, ticket, {}, Late()));
    return Hear(channel_);
  }
  // The ticket and descriptor of its memory; what another node makes of them.
  platform::Message Descriptor() {
    Tell(channel_, "descriptor");
    return Must(channel_.Receive(Late()));
  }
  std::string ImportDescriptor(const platform::Message& message) {
    const platform::OsHandle* fd = &message.handles.at(0);
    Must(channel_.Send(kRawMemory, {}, absl::MakeConstSpan(&fd, 1), Late()));
    return Hear(channel_);
  }
  std::string Usable(const platform::Message& message) {
    Tell(channel_, "usable");
    Must(channel_.Send(kText, message.payload, {}, Late()));
    return Hear(channel_);
  }
  std::uint64_t pid() const {
    return static_cast<std::uint64_t>(child_->pid());
  }
  void Kill() {
    child_->Kill();
    EXPECT_EQ(std::exchange(child_, nullptr)->Wait(), Child::kKilled);
  }

 private:
  std::unique_ptr<Child> child_;  // Null once it has ended.
  platform::Channel channel_;
};

void ExpectError(const std::string& word, CUresult result,
                 const std::string& part) {
  EXPECT_THAT(
      word, ::testing::StartsWith(absl::StrCat(static_cast<int>(result), " ")));
  EXPECT_THAT(word, HasSubstr("fabric handle"));
  EXPECT_THAT(word, HasSubstr(part));
}

std::string NewInstance() {
  std::array<std::uint8_t, 8> bytes{};
  Must(platform::FillRandom(absl::MakeSpan(bytes)));
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

class NodesTest : public ::testing::Test {
 protected:
  // Whether nodes are namespaces; else they only have names, which needs no
  // rights.
  explicit NodesTest(bool namespaces = false) : namespaces_(namespaces) {}

  void SetUp() override {
    if (!OnHostMemoryDriver()) {
      GTEST_SKIP() << "nodes are the host-memory driver's";
    }
    if (namespaces_ && !WhyNoNodes().empty()) GTEST_SKIP() << WhyNoNodes();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    // What a process that was killed has left, the next one removes.
    Start("last", ImexRoot());
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_THAT(file.path().string(),
                  Not(HasSubstr(absl::StrCat(instance_, "@"))));
    }
  }

  RemoteNode Start(const std::string& name, const ImexRoot& imex, Env env = {},
                   const std::string& obey = "") {
    Env all = imex.Environment();
    all["VMMSHARE_HOST_INSTANCE"] = instance_;
    if (!namespaces_) all["VMMSHARE_HOST_NODE"] = name;
    for (const auto& [variable, value] : env) all[variable] = value;
    return RemoteNode(
        Child::Start("fabric-node",
                     {listener_.address(), namespaces_ ? name : "", obey}, all),
        listener_);
  }

 private:
  const bool namespaces_;
  // Of this test alone: others may run at the same time.
  const std::string instance_ = absl::StrCat("nodes-", NewInstance());
  PrivateDirectory directory_;
  platform::Listener listener_ = Must(
      platform::Listener::Bind({.directory = directory_.for_listeners()}, {}));
};
class FabricNodes : public NodesTest,
                    public ::testing::WithParamInterface<bool> {
 protected:
  FabricNodes() : NodesTest(GetParam()) {}
};
std::string NameOfNodes(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Namespaces" : "Names";
}
INSTANTIATE_TEST_SUITE_P(On, FabricNodes, ::testing::Bool(), &NameOfNodes);

TEST_P(FabricNodes, MemoryOfOneNodeIsReadAndWrittenOnTheOthers) {
  const std::array<ImexRoot, 4> imex;
  std::vector<RemoteNode> nodes;
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(Start(absl::StrCat("node", i), imex[i]));
  }
  std::vector<Bytes> tickets;
  for (std::uint64_t i = 0; i < 4; ++i) tickets.push_back(nodes[i].Share(i));
  // Each reads what each other wrote, and then writes for the next to read.
  for (int owner = 0; owner < 4; ++owner) {
    std::uint64_t seed = owner;
    for (int importer = 0; importer < 4; ++importer) {
      if (importer == owner) continue;
      RemoteNode& node = nodes[importer];
      ASSERT_EQ(node.Import(tickets[owner]), "ok");
      EXPECT_EQ(node.Ask(absl::StrCat("expect-imported ", seed)), "ok");
      seed += 100;
      EXPECT_EQ(node.Ask(absl::StrCat("write-imported ", seed)), "ok");
    }
    EXPECT_EQ(nodes[owner].Ask(absl::StrCat("expect ", seed)), "ok");
  }
}

TEST_P(FabricNodes, ADescriptorLeadsToNoOtherNode) {
  const ImexRoot imex_a;
  const ImexRoot imex_b;
  RemoteNode a = Start("a", imex_a);
  RemoteNode b = Start("b", imex_b);
  EXPECT_EQ(a.Ask("create"), "ok");
  const platform::Message descriptor = a.Descriptor();
  EXPECT_EQ(b.ImportDescriptor(descriptor),
            absl::StrCat(static_cast<int>(CUDA_ERROR_UNKNOWN)));
  EXPECT_EQ(a.ImportDescriptor(descriptor), "0");
  EXPECT_EQ(a.Usable(descriptor), "ok");
  if (GetParam()) {  // Not even tried: the ticket says where it is from.
    EXPECT_THAT(b.Usable(descriptor),
                HasSubstr("the ticket was made on host a, on another machine"));
  }
}

// --- Which kinds memory gets ------------------------------------------------

TEST_P(FabricNodes, MemoryHasBothKindsWhereBothWork) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex);
  EXPECT_EQ(a.Ask("create"), "ok");
  EXPECT_EQ(a.Ask("kinds"), "POSIX fd + fabric handle; 6291456 bytes");
}

class Pitfall18 : public NodesTest {};

TEST_F(Pitfall18, TheSizeIsRoundedAsTheDriverAsksForTheKinds) {
  ImexRoot imex;
  const Env coarse = {{"VMMSHARE_HOST_FABRIC_GRANULARITY", "16M"}};
  // Chunks of 2 MiB cannot be: they are what the limit allows, rounded down.
  EXPECT_THAT(Start("a", imex, coarse).Ask("create"),
              HasSubstr("at least the granularity of 16777216 bytes"));
  RemoteNode b = Start("b", imex, coarse);
  EXPECT_EQ(b.Ask("create 100"), "ok");
  EXPECT_EQ(b.Ask("kinds"), "POSIX fd + fabric handle; 16777216 bytes");
  RemoteNode c = Start("c", imex, coarse);
  imex.KillDaemon();  // No fabric handles, then, and no need to round.
  ExpectError(c.Ask("create 100"), CUDA_ERROR_NOT_PERMITTED, "nvidia-imex");
  EXPECT_THAT(c.Ask("kinds"), ::testing::StartsWith("POSIX fd; 6291456 bytes"));
}

// The largest block there is becomes, rounded up, larger than what keeps the books
// of a segment can be.
TEST_F(Pitfall18, ABlockThatIsTooLargeWhenItIsRoundedIsRefused) {
  const ImexRoot imex;
  RemoteNode a =
      Start("a", imex, {{"VMMSHARE_HOST_FABRIC_GRANULARITY", "16M"}});
  EXPECT_EQ(a.Ask("pool-block 1 fd fabric"), "ok");
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 40) / kMiB;
  EXPECT_THAT(a.Ask(absl::StrCat("pool-block ", kMost - 2, " fd fabric")),
              HasSubstr("are more than a range of the pool can have"));
}

class Pitfall05 : public NodesTest {};

// Each kind works alone, both together are refused: the third cuMemCreate,
// after the two kinds were tried.
TEST_F(Pitfall05, KindsAreDroppedOneAtATimeTheLeastWantedFirst) {
  const ImexRoot imex;
  RemoteNode a =
      Start("a", imex, {{"VMMSHARE_HOST_FAIL", "cuMemCreate:3:NOT_SUPPORTED"}});
  EXPECT_THAT(a.Ask("create"), HasSubstr("POSIX fd + fabric handle"));
  EXPECT_THAT(a.Ask("kinds"),
              ::testing::StartsWith(
                  "fabric handle; 6291456 bytes; not POSIX fd: cuMemCreate"));
  RemoteNode b = Start("b", imex);
  EXPECT_EQ(b.Import(a.Export()), "ok");
}

// The sixth cuMemCreate: the first of a second allocation of three chunks.
TEST_F(Pitfall05, NoKindIsDroppedForWhatPasses) {
  const ImexRoot imex;
  RemoteNode a =
      Start("a", imex, {{"VMMSHARE_HOST_FAIL", "cuMemCreate:6:TIMEOUT"}});
  EXPECT_EQ(a.Ask("create"), "ok");
  EXPECT_THAT(a.Ask("create"), ::testing::StartsWith(absl::StrCat(
                                   static_cast<int>(CUDA_ERROR_TIMEOUT), " ")));
  // Nothing was made: it has what it had.
  EXPECT_EQ(a.Ask("kinds"), "POSIX fd + fabric handle; 6291456 bytes");
  EXPECT_EQ(a.Ask("create"), "ok");
  EXPECT_EQ(a.Ask("kinds"), "POSIX fd + fabric handle; 6291456 bytes");
}

// Alone each worked when it was tried, and then only the less wanted one does.
TEST_F(Pitfall05, AKindIsTakenUpAgainWhereTheMoreWantedOnesAreRefused) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex,
                       {{"VMMSHARE_HOST_FAIL",
                         "cuMemCreate:3:NOT_SUPPORTED;"
                         "cuMemCreate:4:NOT_PERMITTED"}});
  EXPECT_THAT(a.Ask("create"), HasSubstr("handle kinds=fabric handle)"));
  EXPECT_THAT(a.Ask("kinds"),
              AllOf(::testing::StartsWith(
                        "POSIX fd; 6291456 bytes; not fabric handle: "),
                    HasSubstr("NOT_PERMITTED"), Not(HasSubstr("not POSIX"))));
  EXPECT_EQ(a.ImportDescriptor(a.Descriptor()), "0");
}

// What is tried first is memory of the device, which has both.
class FabricHostMemory : public NodesTest {};

TEST_F(FabricHostMemory, HasTheKindsThatItCanHaveWhicheverIsWantedMost) {
  const ImexRoot imex;
  for (const char* kinds : {"fabric fd", "fd fabric", "fabric fd fabric"}) {
    RemoteNode a = Start("a", imex);
    ExpectError(a.Ask(absl::StrCat("create-on-host 0 ", kinds)),
                CUDA_ERROR_NOT_SUPPORTED, "cuMemCreate");
    EXPECT_THAT(a.Ask("kinds"),
                AllOf(::testing::StartsWith(
                          "POSIX fd; 6291456 bytes; not fabric handle: "),
                      Not(::testing::ContainsRegex("; not .*; not "))));
    EXPECT_EQ(a.ImportDescriptor(a.Descriptor()), "0");
  }
}

TEST_F(FabricHostMemory, OfAPoolHasThemToo) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex);
  EXPECT_EQ(a.Ask("pool-block 1 fabric fd"), "ok");
  EXPECT_EQ(a.Ask("pool-block 1 fd fabric"), "ok");
}

TEST_F(FabricHostMemory, FailsForWhatIsAskedForAlone) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex);
  for (const char* request :
       {"create-on-host 0 fabric", "pool-block 1 fabric"}) {
    ExpectError(a.Ask(request), CUDA_ERROR_NOT_SUPPORTED,
                "handle kinds=fabric handle)");
  }
}

// A NUMA node that is not there: whatever the kinds.
TEST_F(FabricHostMemory, NamesTheRefusalOfEachKindTheFirstOnesFirst) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex);
  const std::string word = a.Ask("create-on-host 7 fabric fd");
  ExpectError(word, CUDA_ERROR_INVALID_VALUE, "handle kinds=fabric handle)");
  EXPECT_THAT(word.substr(word.find("handle kinds=fabric handle)")),
              HasSubstr("handle kinds=POSIX fd)"));
  EXPECT_THAT(word, Not(HasSubstr("POSIX fd + fabric handle")));
}

// --- Over a connection ------------------------------------------------------

class FabricProcesses : public NodesTest {};  // Of one node.

TEST_F(FabricProcesses, AnEndpointServesFabricHandles) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex);
  RemoteNode b = Start("a", imex);
  const std::string ticket = a.Ask("publish");
  EXPECT_EQ(Must(ParseTicketString(ticket)).ticket.kind, HandleKind::kFabric);
  EXPECT_EQ(a.Ask("write 3"), "ok");
  EXPECT_EQ(b.Ask(absl::StrCat("open ", ticket)), "ok");
  EXPECT_EQ(b.Ask("expect-imported 3"), "ok");
  EXPECT_EQ(b.Ask("write-imported 4"), "ok");
  EXPECT_EQ(a.Ask("expect 4"), "ok");
}

// A real driver answers so to processes that see one GPU each (nccl#1647).
TEST_F(FabricProcesses, TheImporterMustSeeTheOwnersDevice) {
  const ImexRoot imex;
  RemoteNode a = Start("a", imex, {{"CUDA_VISIBLE_DEVICES", "0"}});
  RemoteNode b = Start("a", imex, {{"CUDA_VISIBLE_DEVICES", "1"}});
  RemoteNode c = Start("c", imex, {{"CUDA_VISIBLE_DEVICES", "1"}});
  const Bytes ticket = a.Share(1);
  ExpectError(b.Import(ticket), CUDA_ERROR_INVALID_DEVICE, "Within a node");
  EXPECT_EQ(c.Import(ticket), "ok");
}

// --- What can be wrong, on either side --------------------------------------

TEST_P(FabricNodes, WithoutAChannelNodeNeitherSideIsPermitted) {
  const ImexRoot good;
  ImexRoot bad;
  bad.RemoveChannel(0);
  RemoteNode a = Start("a", good);
  RemoteNode b = Start("b", bad);
  const Bytes ticket = a.Share(1);
  ExpectError(b.Ask("create"), CUDA_ERROR_NOT_PERMITTED, "IMEX channel");
  ExpectError(b.Import(ticket), CUDA_ERROR_NOT_PERMITTED, "IMEX channel");
  bad.MakeChannel(0);  // Mended while it runs.
  EXPECT_EQ(b.Import(ticket), "ok");
  EXPECT_EQ(b.Ask("expect-imported 1"), "ok");
}

TEST_P(FabricNodes, AChannelThatMayNotBeOpenedIsNone) {
  const ImexRoot good;
  ImexRoot bad;
  bad.MakeChannel(0, 0);
  RemoteNode a = Start("a", good);
  RemoteNode b = Start("b", bad, {}, "obey");
  const Bytes ticket = a.Share(1);
  ExpectError(b.Ask("create"), CUDA_ERROR_NOT_PERMITTED, "IMEX channel");
  ExpectError(b.Import(ticket), CUDA_ERROR_NOT_PERMITTED, "IMEX channel");
  bad.MakeChannel(0, 0600);
  EXPECT_EQ(b.Import(ticket), "ok");
}

TEST_P(FabricNodes, TheImporterNeedsTheOwnersChannel) {
  const ImexRoot good;
  ImexRoot bad;
  bad.MakeChannel(5);
  bad.RemoveChannel(0);
  RemoteNode a = Start("a", good);
  RemoteNode b = Start("b", bad);
  const Bytes ticket = a.Share(1);
  ExpectError(b.Import(ticket), CUDA_ERROR_NOT_PERMITTED, "same number");
  // It has one of its own all the same.
  const Bytes other = b.Share(2);
  ExpectError(a.Import(other), CUDA_ERROR_NOT_PERMITTED, "same number");
  bad.MakeChannel(0);
  EXPECT_EQ(b.Import(ticket), "ok");
}

TEST_P(FabricNodes, ADaemonThatDiesEndsCreationExportAndImport) {
  ImexRoot imex_a;
  ImexRoot imex_b;
  RemoteNode a = Start("a", imex_a);
  RemoteNode b = Start("b", imex_b);
  const Bytes ticket = a.Share(1);
  imex_b.KillDaemon();
  ExpectError(b.Ask("create"), CUDA_ERROR_NOT_PERMITTED, "nvidia-imex");
  ExpectError(b.Import(ticket), CUDA_ERROR_INVALID_HANDLE, "nvidia-imex");
  imex_a.KillDaemon();
  ExpectError(a.Ask("export"), CUDA_ERROR_NOT_PERMITTED, "nvidia-imex");
  // What is mapped stays; what is asked for anew works with a new daemon.
  EXPECT_EQ(a.Ask("expect 1"), "ok");
  imex_b.StartDaemon();
  EXPECT_EQ(b.Import(ticket), "ok");
  EXPECT_EQ(b.Ask("expect-imported 1"), "ok");
}

TEST_P(FabricNodes, AnotherCliqueOrClusterIsOutOfReach) {
  const std::array<ImexRoot, 4> imex;
  RemoteNode a = Start("a", imex[0]);
  RemoteNode clique =
      Start("clique", imex[1], {{"VMMSHARE_HOST_FABRIC_CLIQUE", "2"}});
  RemoteNode cluster = Start("cluster", imex[2],
                             {{"VMMSHARE_HOST_FABRIC_CLUSTER", kOtherCluster}});
  RemoteNode none = Start("none", imex[3],
                          {{"VMMSHARE_HOST_FABRIC_CLUSTER",
                            "00000000-0000-0000-0000-000000000000"}});
  const Bytes ticket = a.Share(1);
  ExpectError(clique.Import(ticket), CUDA_ERROR_INVALID_HANDLE, "clique");
  ExpectError(cluster.Import(ticket), CUDA_ERROR_INVALID_HANDLE, "clique");
  ExpectError(none.Import(ticket), CUDA_ERROR_NOT_SUPPORTED, "NVLink fabric");
  ExpectError(none.Ask("create"), CUDA_ERROR_NOT_PERMITTED, "multi-node");
  // All but the last pass every test of their own, and see nothing wrong.
  EXPECT_EQ(clique.Ask("create"), "ok");
  EXPECT_EQ(cluster.Ask("create"), "ok");
}

// Device 0 of the importer is in the owner's clique, or only device 1 is.
TEST_P(FabricNodes, OnlyDevicesOfTheOwnersCliqueMapTheMemory) {
  const std::array<ImexRoot, 3> imex;
  RemoteNode a = Start("a", imex[0]);
  RemoteNode first =
      Start("first", imex[1], {{"VMMSHARE_HOST_FABRIC_CLIQUE", "1,2"}});
  RemoteNode second =
      Start("second", imex[2], {{"VMMSHARE_HOST_FABRIC_CLIQUE", "2,1"}});
  const Bytes ticket = a.Share(1);
  EXPECT_EQ(first.Import(ticket), "ok");
  EXPECT_THAT(second.Import(ticket),
              ::testing::StartsWith(
                  absl::StrCat(static_cast<int>(CUDA_ERROR_INVALID_DEVICE))));
}

TEST_P(FabricNodes, AHandleOfRandomBytesLeadsNowhere) {
  const ImexRoot imex_a;
  const ImexRoot imex_b;
  RemoteNode a = Start("a", imex_a);
  RemoteNode b = Start("b", imex_b);
  FabricTicket ticket = Must(DecodeFabricTicket(a.Share(1)));
  const fabric::Handle right = ticket.handles[1];
  for (int i = 0; i < 100; ++i) {
    Must(platform::FillRandom(absl::MakeSpan(ticket.handles[1].bytes)));
    ExpectError(b.Import(EncodeFabricTicket(ticket)), CUDA_ERROR_INVALID_HANDLE,
                "chunk 2 of 3");
  }
  // Nor does one of which a single bit is wrong.
  for (std::size_t bit = 0; bit < 8 * right.bytes.size(); ++bit) {
    ticket.handles[1] = right;
    ticket.handles[1].bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ExpectError(b.Import(EncodeFabricTicket(ticket)), CUDA_ERROR_INVALID_HANDLE,
                "chunk 2 of 3");
  }
  ticket.handles[1] = right;
  EXPECT_EQ(b.Import(EncodeFabricTicket(ticket)), "ok");
}

// The host-memory driver's handles say where to look: a process and one of its
// descriptors, at these bytes. Whatever stands there, nothing but the memory of
// that very handle is opened.
TEST_P(FabricNodes, AHandleThatPointsElsewhereLeadsNowhere) {
  constexpr std::size_t kProcess = 24;
  constexpr std::size_t kDescriptor = 32;
  const ImexRoot imex_a;
  const ImexRoot imex_b;
  RemoteNode a = Start("a", imex_a);
  RemoteNode b = Start("b", imex_b);
  a.Ask("publish");  // So that it has a thread.
  const FabricTicket right = Must(DecodeFabricTicket(a.Share(1)));
  const auto with = [&](std::size_t at, std::uint64_t value) {
    FabricTicket ticket = right;
    for (std::size_t i = 0; i < 8; ++i) {
      ticket.handles[0].bytes[at + i] =
          static_cast<std::uint8_t>(value >> (8 * i));
    }
    return ticket == right ? Bytes() : EncodeFabricTicket(ticket);
  };
  constexpr std::uint64_t kTelling[] = {
      0,         1, 1u << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 63,
      UINT64_MAX};
  for (const std::size_t at : {kProcess, kDescriptor}) {
    for (const std::uint64_t value : kTelling) {
      ExpectError(b.Import(with(at, value)), CUDA_ERROR_INVALID_HANDLE,
                  "chunk 1 of 3");
    }
  }
  // The test's own process, b's, and each descriptor that a may have open: its
  // sockets, its library, and the other chunks.
  ExpectError(b.Import(with(kProcess, static_cast<std::uint64_t>(
                                          platform::CurrentProcessId()))),
              CUDA_ERROR_INVALID_HANDLE, "chunk 1 of 3");
  ExpectError(b.Import(with(kProcess, b.pid())), CUDA_ERROR_INVALID_HANDLE,
              "chunk 1 of 3");
  // A thread of a's: by its number, too, /proc leads to a's descriptors.
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator(
           absl::StrCat("/proc/", a.pid(), "/task"))) {
    std::uint64_t number = 0;
    ASSERT_TRUE(absl::SimpleAtoi(task.path().filename().string(), &number));
    if (number == a.pid()) continue;
    ++threads;
    ExpectError(b.Import(with(kProcess, number)), CUDA_ERROR_INVALID_HANDLE,
                "chunk 1 of 3");
  }
  EXPECT_GE(threads, 1);
  int right_ones = 0;
  for (std::uint64_t descriptor = 0; descriptor < 64; ++descriptor) {
    const Bytes ticket = with(kDescriptor, descriptor);
    if (ticket.empty()) {
      ++right_ones;
      continue;
    }
    ExpectError(b.Import(ticket), CUDA_ERROR_INVALID_HANDLE, "chunk 1 of 3");
  }
  EXPECT_EQ(right_ones, 1);
}

TEST_P(FabricNodes, AStaleHandleLeadsNowhere) {
  const ImexRoot imex_a;
  const ImexRoot imex_b;
  RemoteNode a = Start("a", imex_a);
  RemoteNode b = Start("b", imex_b);
  const Bytes freed = a.Share(1);
  EXPECT_EQ(a.Ask("drop"), "ok");
  const Bytes present = a.Share(2);  // In the old one's place.
  ExpectError(b.Import(freed), CUDA_ERROR_INVALID_HANDLE, "freed");
  EXPECT_EQ(b.Import(present), "ok");
  a.Kill();
  ExpectError(b.Import(present), CUDA_ERROR_INVALID_HANDLE, "freed");
  EXPECT_EQ(b.Ask("expect-imported 2"), "ok");
}

// --- Life and death ---------------------------------------------------------

class FabricLifetime : public NodesTest {};

TEST_F(FabricLifetime, TheMemoryGoesWithTheLastProcessThatHasIt) {
  const std::array<ImexRoot, 2> imex;
  RemoteNode meter = Start("a", imex[0]);  // Sees how much the node has left.
  const std::string all = meter.Ask("free");
  RemoteNode owner = Start("a", imex[0]);
  RemoteNode importer = Start("b", imex[1]);
  EXPECT_EQ(importer.Import(owner.Share(1)), "ok");
  const std::string used = meter.Ask("free");
  EXPECT_NE(used, all);
  owner.Kill();
  EXPECT_EQ(meter.Ask("free"), used);
  EXPECT_EQ(importer.Ask("expect-imported 1"), "ok");
  importer.Kill();
  EXPECT_EQ(meter.Ask("free"), all);
}

TEST_F(FabricLifetime, AProcessImportsItsOwnMemory) {
  const ImexRoot imex;
  RemoteNode node = Start("a", imex);
  EXPECT_EQ(node.Import(node.Share(7)), "ok");
  EXPECT_EQ(node.Ask("expect-imported 7"), "ok");
}

}  // namespace
}  // namespace vmm::testing
