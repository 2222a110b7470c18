// Engines: two engines share one set of weights, and one that is killed is back
// in milliseconds.
//
//   mkdir -m 700 /tmp/here                         (./dev demo weights does all)
//   vmmshare keep --address=/tmp/here/keeper &
//   engines --address=/tmp/here/keeper
//
// Each engine is a process of its own. The first loads the weights, publishes
// them, and is killed; the second has attached them meanwhile. The first is
// started again: it finds them, and loads nothing. Then it publishes a second
// generation: who attaches gets that, and the second engine has the first one
// until it attaches anew.
//
//   --driver=host        without a GPU, on host memory
//   --size=64M           bytes of weights
//   --device=0           the GPU of both
//   --timeout=SECONDS    bounds every wait together (60)
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/process.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"
#include "vmm/weights/tensor_set.h"

ABSL_FLAG(examples::Bytes, size, {64 << 20}, "bytes of the weights");
ABSL_FLAG(std::string, address, "", "the keeper's; by default this user's");
ABSL_FLAG(std::string, connect, "", "where a child connects to");

namespace {

using examples::BytesText;
using examples::ChildProcess;
using examples::Gpu;
using examples::Print;
using examples::TextMessage;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

constexpr char kName[] = "engines/tp0";
constexpr int kLayers = 100;

// What a model is made of: an embedding, which the head uses too, and layers.
absl::StatusOr<vmm::TensorLayout> LayoutOf(std::uint64_t size) {
  const auto rows = static_cast<std::int64_t>(size / (kLayers + 1) / 2048);
  vmm::TensorLayout layout({.fingerprint = absl::StrCat("demo-", size)});
  absl::StatusOr<std::size_t> embed =
      layout.Add("embed.weight", vmm::DType::kBFloat16, {rows, 1024});
  if (!embed.ok()) return embed.status();
  for (int i = 0; i < kLayers; ++i) {
    absl::StatusOr<std::size_t> layer =
        layout.Add(absl::StrCat("layers.", i, ".weight"), vmm::DType::kBFloat16,
                   {1024, rows});
    if (!layer.ok()) return layer.status();
  }
  absl::StatusOr<std::size_t> head = layout.AddAlias(
      "lm_head.weight", *embed, vmm::DType::kBFloat16, {rows, 1024});
  if (!head.ok()) return head.status();
  return layout;
}

// An engine's stand-in for reading files.
absl::Status Load(vmm::TensorSetWriter& writer, std::uint64_t generation) {
  for (std::size_t i = 0; i < writer.manifest().tensors.size(); ++i) {
    const vmm::TensorInfo& tensor = writer.manifest().tensors[i];
    if (tensor.alias_of.has_value()) continue;
    const std::vector<std::uint8_t> bytes(
        static_cast<std::size_t>(tensor.extent()),
        static_cast<std::uint8_t>(generation * 31 + i));
    absl::Status written = writer.Write(i, 0, bytes);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

class Engine {
 public:
  Engine(const Gpu& gpu, Driver driver, vmm::KeeperClient keeper,
         absl::Time deadline)
      : gpu_(gpu),
        driver_(std::move(driver)),
        keeper_(std::move(keeper)),
        deadline_(deadline) {}

  // Attaches what is there, or else loads and publishes it; says which.
  absl::StatusOr<std::string> Start(std::uint64_t size) {
    const absl::Time begin = absl::Now();
    absl::Status attached = Attach();
    if (attached.ok()) return Describe("attached", begin);
    if (!absl::IsNotFound(attached)) return attached;
    absl::StatusOr<std::uint64_t> published = Publish(size, 1);
    if (!published.ok()) return published.status();
    attached = Attach();
    if (!attached.ok()) return attached;
    return Describe("loaded and published", begin);
  }

  // What the main process asks for.
  absl::StatusOr<std::string> Do(const std::string& word, std::uint64_t size) {
    const absl::Time begin = absl::Now();
    if (word == "publish") {
      absl::StatusOr<std::uint64_t> published =
          Publish(size, weights_->set.manifest().generation + 1);
      if (!published.ok()) return published.status();
      return absl::StrCat("published generation ", *published);
    }
    if (word == "attach") {
      absl::Status attached = Attach();
      if (!attached.ok()) return attached;
      return Describe("attached", begin);
    }
    absl::StatusOr<std::size_t> right = weights_->set.Verify();
    if (!right.ok()) return right.status();
    return absl::StrCat("still has generation ",
                        weights_->set.manifest().generation, ": all ", *right,
                        " tensors are right");
  }

 private:
  absl::Status Attach() {
    absl::StatusOr<vmm::KeptTensorSet> kept =
        vmm::AttachTensorSet(keeper_, kName, driver_, {}, deadline_);
    if (!kept.ok()) return kept.status();
    weights_ = *std::move(kept);
    return absl::OkStatus();
  }
  absl::StatusOr<std::uint64_t> Publish(std::uint64_t size,
                                        std::uint64_t generation) {
    absl::StatusOr<vmm::TensorLayout> layout = LayoutOf(size);
    if (!layout.ok()) return layout.status();
    absl::StatusOr<vmm::Allocation> memory =
        vmm::Allocation::Create(gpu_.device, {.size = layout->size()});
    if (!memory.ok()) return memory.status();
    absl::StatusOr<vmm::TensorSetWriter> writer = vmm::TensorSetWriter::Begin(
        driver_, memory->address(), memory->requested_size(), *layout);
    if (!writer.ok()) return writer.status();
    absl::Status loaded = Load(*writer, generation);
    if (!loaded.ok()) return loaded;
    return vmm::PublishTensorSet(keeper_, kName, memory->shareable(), *writer,
                                 deadline_);
  }
  std::string Describe(absl::string_view how, absl::Time begin) const {
    const vmm::TensorManifest& manifest = weights_->set.manifest();
    return absl::StrFormat("%s generation %d, %d tensors, %s, in %.1f ms", how,
                           manifest.generation, manifest.tensors.size(),
                           BytesText(manifest.data_bytes),
                           absl::ToDoubleMilliseconds(absl::Now() - begin));
  }

  const Gpu& gpu_;
  const Driver driver_;
  vmm::KeeperClient keeper_;
  const absl::Time deadline_;
  std::optional<vmm::KeptTensorSet> weights_;
};

// An engine: says how it started, and then does as it is told until the main
// process hangs up.
absl::Status RunEngine(absl::Time deadline) {
  absl::StatusOr<Channel> channel =
      Channel::Connect(absl::GetFlag(FLAGS_connect), {}, deadline);
  if (!channel.ok()) return channel.status();
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(*driver);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<vmm::KeeperClient> keeper = vmm::KeeperClient::Connect(
      {.address = absl::GetFlag(FLAGS_address)}, deadline);
  if (!keeper.ok()) return keeper.status();
  Engine engine(*gpu, *driver, *std::move(keeper), deadline);
  absl::StatusOr<std::string> answer = engine.Start(size);
  for (;;) {
    if (!answer.ok()) return answer.status();
    absl::Status said = examples::Say(*channel, {.text = *answer}, deadline);
    if (!said.ok()) return said;
    absl::StatusOr<TextMessage> word = examples::Hear(*channel, deadline);
    if (absl::IsUnavailable(word.status())) return absl::OkStatus();
    if (!word.ok()) return word.status();
    answer = engine.Do(word->text, size);
  }
}

// An engine as the main process sees it.
struct Seat {
  std::string name;
  ChildProcess process;
  Channel channel;
};

absl::Status HearFrom(Seat& seat, absl::Time deadline) {
  absl::StatusOr<TextMessage> heard = examples::Hear(seat.channel, deadline);
  if (!heard.ok()) return heard.status();
  Print(absl::StrCat(seat.name, ": ", heard->text));
  return absl::OkStatus();
}

absl::Status Tell(Seat& seat, const std::string& word, absl::Time deadline) {
  absl::Status said = examples::Say(seat.channel, {.text = word}, deadline);
  return said.ok() ? HearFrom(seat, deadline) : said;
}

absl::StatusOr<Seat> StartEngine(const std::string& name, Listener& listener,
                                 absl::Time deadline) {
  std::vector<std::string> words =
      examples::Flags({"address", "driver", "device", "size", "timeout"});
  words.push_back(absl::StrCat("--connect=", listener.address()));
  absl::StatusOr<ChildProcess> process = ChildProcess::StartSelf(words);
  if (!process.ok()) return process.status();
  absl::StatusOr<Channel> channel = process->Accept(listener, deadline);
  if (!channel.ok()) return channel.status();
  Seat seat{name, *std::move(process), *std::move(channel)};
  absl::Status started = HearFrom(seat, deadline);
  if (!started.ok()) return started;
  return seat;
}

absl::Status RunBoth(absl::Time deadline) {
  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  absl::StatusOr<Seat> a = StartEngine("engine A", *listener, deadline);
  if (!a.ok()) return a.status();
  absl::StatusOr<Seat> b = StartEngine("engine B", *listener, deadline);
  if (!b.ok()) return b.status();
  {
    const Seat killed = *std::move(a);  // By the end of this scope.
    Print("engine A is killed");
  }
  absl::Status done = Tell(*b, "verify", deadline);
  if (!done.ok()) return done;
  absl::StatusOr<Seat> again = StartEngine("engine A", *listener, deadline);
  if (!again.ok()) return again.status();
  struct Step {
    Seat& seat;
    const char* word;
  };
  for (const Step& step : {Step{*again, "publish"}, Step{*b, "verify"},
                           Step{*b, "attach"}, Step{*b, "verify"}}) {
    done = Tell(step.seat, step.word, deadline);
    if (!done.ok()) return done;
  }
  Print("OK: one set of weights, whoever comes and goes");
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  if (!examples::ParseCommandLine(argc, argv).empty()) {
    return absl::InvalidArgumentError(
        "usage: engines [--address=KEEPER] [--driver=host]");
  }
  const absl::Time deadline = examples::Deadline();
  return absl::GetFlag(FLAGS_connect).empty() ? RunBoth(deadline)
                                              : RunEngine(deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("engines", Run(argc, argv));
}
