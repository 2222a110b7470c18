// What a fence costs between two processes, beside the bare calls and beside an
// interprocess event, in one run.
//
//   bench_fence                       on the installed NVIDIA driver
//   bench_fence --driver=host         on the host-memory driver
//   bench_fence --peer=1              with the other process on device 1
//
// round trip  One process's stream signals, the other's waits and signals back:
//             by fences; by cuStreamWriteValue64 and cuStreamWaitValue64 on the
//             same kind of memory (the host's), twice, so that the noise shows;
//             and on memory of the first device. In turns, --rounds at a time.
// a new one   Until a peer can wait for it. Made: New() and Export();
//             cuEventCreate() and cuIpcGetEventHandle(). Opened: Import();
//             cuIpcOpenEventHandle(). Fences are timed by the lot of 600, whose
//             mean is a sample; of the handles that brought their memory
//             nothing is in these figures. Events are timed one by one, and all
//             stay open. The first: of that lot, or event, made and opened.
// live        How many fences are made at once, and what memory they take.
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/driver.h"
#include "bench/must.h"
#include "bench/report.h"
#include "docs/examples/process.h"
#include "vmm/vmm.h"

namespace {

using bench::Must;
using vmm::Fence;
using vmm::platform::Channel;
using vmm::platform::Driver;

constexpr std::uint16_t kText = 1;
constexpr std::uint16_t kTickets = 2;
constexpr std::uint16_t kEventHandles = 3;
constexpr std::size_t kFences = 600;  // Tickets that one message has room for.
constexpr std::size_t kEvents = 60;
constexpr std::size_t kMostEvents = 4000;  // In a process: measured, 4,095.

struct Options {
  std::string driver = "system";
  std::string child;  // The address of the process that started this one.
  int peer = 0;
  std::uint64_t rounds = 100;
  std::uint64_t samples = 40;
  std::uint64_t live = 100'000;
};

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

void Say(Channel& channel, const std::string& text) {
  Must(channel.Send(
      kText, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
      {}, Soon()));
}

std::string Hear(Channel& channel) {
  const vmm::platform::Message message = Must(channel.Receive(Soon()));
  return {message.payload.begin(), message.payload.end()};
}

double MicrosecondsSince(absl::Time start) {
  return absl::ToDoubleMicroseconds(absl::Now() - start);
}

// A process's device, its context current, and a stream.
struct Side {
  Side(const Driver& loaded, int ordinal)
      : driver(loaded), device(Must(vmm::Device::ByOrdinal(loaded, ordinal))) {
    Check(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
          "cuStreamCreate()");
  }
  void Check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) Must(driver.Error(result, call));
  }
  void Sync() const {
    Check(driver->cuStreamSynchronize(stream), "cuStreamSynchronize()");
  }

  const Driver driver;
  const vmm::Device device;
  const vmm::PrimaryContext context = Must(vmm::PrimaryContext::Retain(device));
  const vmm::CurrentContext current = Must(context.MakeCurrent());
  CUstream stream = nullptr;
};

// One way to signal and to wait.
struct Way {
  Fence* fence;      // Or null:
  CUdeviceptr word;  // by the bare calls.
};

void Signal(const Side& side, const Way& way, std::uint64_t value) {
  if (way.fence != nullptr) {
    Must(way.fence->Signal(side.stream, value));
  } else {
    side.Check(side.driver->cuStreamWriteValue64(side.stream, way.word, value,
                                                 CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue64()");
  }
}

void Wait(const Side& side, const Way& way, std::uint64_t value) {
  if (way.fence != nullptr) {
    Must(way.fence->Wait(side.stream, value));
  } else {
    side.Check(side.driver->cuStreamWaitValue64(side.stream, way.word, value,
                                                CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue64()");
  }
}

// --- The other process -------------------------------------------------------

std::string ImportAll(vmm::ImportedFencePool& pool,
                      const std::vector<std::uint8_t>& bytes) {
  std::vector<Fence> fences;
  fences.reserve(kFences);
  const absl::Time start = absl::Now();
  for (std::size_t at = 0; at < bytes.size(); at += vmm::kFenceTicketBytes) {
    fences.push_back(
        Must(pool.Import(Must(vmm::DecodeFenceTicket(
                             {bytes.data() + at, vmm::kFenceTicketBytes})),
                         Soon())));
  }
  return absl::StrCat(MicrosecondsSince(start) /
                      static_cast<double>(fences.size()));
}

// Opens them, for good. Answers the microseconds of each.
std::string OpenAll(const Side& side, const std::vector<std::uint8_t>& bytes) {
  std::vector<double> each;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(CUipcEventHandle)) {
    CUipcEventHandle handle;
    std::memcpy(&handle, bytes.data() + at, sizeof(handle));
    CUevent event = nullptr;
    const absl::Time start = absl::Now();
    side.Check(side.driver->cuIpcOpenEventHandle(&event, handle),
               "cuIpcOpenEventHandle()");
    each.push_back(MicrosecondsSince(start));
  }
  return absl::StrJoin(each, " ");
}

int Answer(const Options& options) {
  const Side side(Must(bench::LoadDriver(options.driver)), options.peer);
  Channel channel = Must(Channel::Connect(options.child, {}, Soon()));
  const vmm::ImportOptions access{
      .grants = {{vmm::Location::On(side.device), vmm::Access::kReadWrite}},
      .host_access = vmm::Access::kReadWrite};
  const std::vector<vmm::ImportedAllocation> words =
      Must(vmm::ReceiveAllocations(channel, side.driver, access, Soon()));
  const auto fences = Must(vmm::ImportedFencePool::Subscribe(
      side.driver, Hear(channel), {.devices = {side.device}}, Soon()));
  const std::vector<std::uint8_t> ticket =
      Must(channel.Receive(Soon())).payload;
  Fence fence =
      Must(fences->Import(Must(vmm::DecodeFenceTicket(ticket)), Soon()));
  const Way ways[] = {{&fence, 0},
                      {nullptr, words[0].address()},
                      {nullptr, words[1].address()}};
  for (;;) {
    const absl::StatusOr<vmm::platform::Message> message =
        channel.Receive(absl::InfiniteFuture());
    if (!message.ok()) break;
    if (message->type == kTickets) {
      Say(channel, ImportAll(*fences, message->payload));
      continue;
    }
    if (message->type == kEventHandles) {
      Say(channel, OpenAll(side, message->payload));
      continue;
    }
    std::istringstream text({message->payload.begin(), message->payload.end()});
    std::size_t which = 0;
    std::uint64_t first = 0;
    std::uint64_t rounds = 0;
    text >> which >> first >> rounds;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      Wait(side, ways[which], first + 2 * i);
      Signal(side, ways[which], first + 2 * i + 1);
    }
    Say(channel, "all is on the stream");
    side.Sync();
  }
  return 0;
}

// --- This process ------------------------------------------------------------

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), side_(Must(bench::LoadDriver(options.driver)), 0) {
    std::printf("%s\n%s\n%s", side_.driver.Describe().c_str(),
                side_.device.Describe().c_str(),
                side_.driver.is_host_memory() ? "not a GPU figure\n" : "");
    const vmm::Device other =
        Must(vmm::Device::ByOrdinal(side_.driver, options.peer));
    std::printf("the other process: %s\n", other.Describe().c_str());
    fences_ = Must(vmm::FencePool::Create(side_.device, {.devices = {other}}));
    endpoint_ = Must(vmm::Endpoint::Start({}));
    served_.emplace(Must(endpoint_->Serve(fences_->pool())));
    fence_.emplace(Must(fences_->New()));
    words_.push_back(Must(vmm::Allocation::Create(
        side_.device,
        {.size = 64,
         .host_numa_node = 0,
         .also = {{vmm::Location::HostNuma(0), vmm::Access::kReadWrite}}})));
    words_.push_back(Must(vmm::Allocation::Create(side_.device, {.size = 64})));
    for (const vmm::Allocation& word : words_) {
      side_.Check(side_.driver->cuMemsetD8(word.address(), 0, 64),
                  "cuMemsetD8()");
    }
    side_.Check(side_.driver->cuCtxSynchronize(), "cuCtxSynchronize()");
    child_.emplace(Must(examples::ChildProcess::StartSelf(
        {absl::StrCat("--driver=", options.driver),
         absl::StrCat("--child=", listener_.address()),
         absl::StrCat("--peer=", options.peer)})));
    channel_.emplace(Must(child_->Accept(listener_, Soon())));
    Must(vmm::SendAllocations(
        *channel_, {words_[0].shareable(), words_[1].shareable()}, Soon()));
    Say(*channel_, served_->ticket());
    Must(channel_->Send(kTickets,
                        vmm::EncodeFenceTicket(Must(fences_->Export(*fence_))),
                        {}, Soon()));
  }

  void End() {
    channel_->Close();
    Must(child_->Wait(Soon()));
  }

  void RoundTrips() {
    // Which way of the other process's, and the value that it is at.
    struct Kind {
      const char* name;
      std::size_t way;
      std::vector<double> microseconds;
    };
    Kind kinds[] = {{"fence", 0, {}},
                    {"bare, host memory", 1, {}},
                    {"bare, host memory, again", 1, {}},
                    {"bare, device memory", 2, {}}};
    for (Kind& kind : kinds) RoundTrip(kind.way);  // Warm.
    for (std::uint64_t i = 0; i < options_.samples; ++i) {
      for (Kind& kind : kinds) {
        kind.microseconds.push_back(RoundTrip(kind.way));
      }
    }
    const double bare = bench::Percentile(kinds[1].microseconds, 50);
    std::printf("\n%-28s %10s %10s %10s\n", "round trip, us", "p50", "p99",
                "to bare");
    for (const Kind& kind : kinds) {
      std::printf("%-28s %10.2f %10.2f %10.3f\n", kind.name,
                  bench::Percentile(kind.microseconds, 50),
                  bench::Percentile(kind.microseconds, 99),
                  bench::Percentile(kind.microseconds, 50) / bare);
    }
  }

  void NewFences() {
    std::vector<double> made, imported;
    for (std::uint64_t i = 0; i < options_.samples; ++i) {
      std::vector<Fence> fences;
      fences.reserve(kFences);
      std::vector<std::uint8_t> bytes(kFences * vmm::kFenceTicketBytes);
      const absl::Time start = absl::Now();
      for (std::size_t at = 0; at < bytes.size();
           at += vmm::kFenceTicketBytes) {
        fences.push_back(Must(fences_->New()));
        const vmm::FenceTicketBytes ticket =
            vmm::EncodeFenceTicket(Must(fences_->Export(fences.back())));
        std::memcpy(bytes.data() + at, ticket.data(), ticket.size());
      }
      made.push_back(MicrosecondsSince(start) / kFences);
      Must(channel_->Send(kTickets, bytes, {}, Soon()));
      imported.push_back(HearNumbers().at(0));
    }
    std::printf("\n%-28s %10s %10s %10s %10s\n", "a new one, us", "made",
                "opened", "p99", "the first");
    PrintNew("fence", made, imported);
  }

  // All live to the end: a process can have 4,095, and one that is made where
  // another one was is cheaper to open.
  void NewEvents() {
    const Driver& driver = side_.driver;
    std::vector<double> made, opened;
    const std::uint64_t samples =
        std::min<std::uint64_t>(options_.samples, kMostEvents / kEvents);
    for (std::uint64_t sample = 0; sample < samples; ++sample) {
      std::vector<CUipcEventHandle> handles(kEvents);
      for (CUipcEventHandle& handle : handles) {
        const absl::Time start = absl::Now();
        side_.Check(driver->cuEventCreate(
                        &events_.emplace_back(),
                        CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                    "cuEventCreate()");
        side_.Check(driver->cuIpcGetEventHandle(&handle, events_.back()),
                    "cuIpcGetEventHandle()");
        made.push_back(MicrosecondsSince(start));
      }
      Must(
          channel_->Send(kEventHandles,
                         {reinterpret_cast<const std::uint8_t*>(handles.data()),
                          handles.size() * sizeof(CUipcEventHandle)},
                         {}, Soon()));
      for (double each : HearNumbers()) opened.push_back(each);
    }
    PrintNew("interprocess event", made, opened);
  }

  void Live() {
    std::vector<Fence> fences;
    fences.reserve(options_.live);
    const absl::Time start = absl::Now();
    for (std::uint64_t i = 0; i < options_.live; ++i) {
      fences.push_back(Must(fences_->New()));
    }
    const double all = MicrosecondsSince(start);
    std::printf("\nlive: %zu fences in %.1f ms, memory for them included: %s\n",
                fences.size(), all / 1000,
                bench::SizeText(fences_->statistics().reserved).c_str());
  }

 private:
  std::vector<double> HearNumbers() {
    std::vector<double> numbers;
    for (absl::string_view word : absl::StrSplit(Hear(*channel_), ' ')) {
      if (!absl::SimpleAtod(word, &numbers.emplace_back())) {
        Must(absl::DataLossError("the other process sent no number"));
      }
    }
    return numbers;
  }

  static void PrintNew(const char* name, const std::vector<double>& made,
                       const std::vector<double>& opened) {
    std::printf("%-28s %10.3f %10.3f %10.3f %10.3f\n", name,
                bench::Percentile(made, 50), bench::Percentile(opened, 50),
                bench::Percentile(made, 99) + bench::Percentile(opened, 99),
                made.front() + opened.front());
  }

  // Microseconds of one of many.
  double RoundTrip(std::size_t kind) {
    const Way way =
        kind == 0 ? Way{&*fence_, 0} : Way{nullptr, words_[kind - 1].address()};
    std::uint64_t& next = next_[kind];
    Say(*channel_, absl::StrCat(kind, " ", next, " ", options_.rounds));
    Hear(*channel_);
    const absl::Time start = absl::Now();
    for (std::uint64_t i = 0; i < options_.rounds; ++i) {
      Signal(side_, way, next);
      Wait(side_, way, next + 1);
      next += 2;
    }
    side_.Sync();
    return MicrosecondsSince(start) / static_cast<double>(options_.rounds);
  }

  const Options options_;
  const Side side_;
  vmm::platform::Listener listener_ =
      Must(vmm::platform::Listener::Bind({}, {}));
  std::unique_ptr<vmm::FencePool> fences_;
  std::unique_ptr<vmm::Endpoint> endpoint_;
  std::optional<vmm::Share> served_;
  std::optional<Fence> fence_;
  std::vector<vmm::Allocation> words_;
  std::vector<CUevent> events_;
  std::uint64_t next_[3] = {1, 1, 1};
  std::optional<examples::ChildProcess> child_;
  std::optional<Channel> channel_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    bool known = true;
    if (absl::ConsumePrefix(&word, "--driver=")) {
      options.driver = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--child=")) {
      options.child = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--peer=")) {
      known = absl::SimpleAtoi(word, &options.peer);
    } else if (absl::ConsumePrefix(&word, "--rounds=")) {
      known = absl::SimpleAtoi(word, &options.rounds) && options.rounds > 0;
    } else if (absl::ConsumePrefix(&word, "--samples=")) {
      known = absl::SimpleAtoi(word, &options.samples) && options.samples > 0;
    } else if (absl::ConsumePrefix(&word, "--live=")) {
      known = absl::SimpleAtoi(word, &options.live);
    } else {
      known = false;
    }
    if (!known) {
      std::fprintf(stderr,
                   "%s: expected --driver=host|system|PATH, --peer=ORDINAL, "
                   "--rounds=N, --samples=N or --live=N\n",
                   argv[i]);
      return 2;
    }
  }
  if (!options.child.empty()) return Answer(options);
  Bench bench(options);
  bench.RoundTrips();
  bench.NewFences();
  bench.NewEvents();
  bench.Live();
  bench.End();
  return 0;
}
