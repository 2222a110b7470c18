#include <array>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/owner_process.h"
#include "bench/compare/scenarios.h"
#include "bench/compare/wire.h"
#include "docs/examples/process.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"

namespace bench::compare {
namespace {

using examples::ChildProcess;
using vmm::platform::Channel;
using vmm::platform::Listener;
using vmm::platform::Message;

enum Case { kClean, kImporterKilled, kOwnerKilled, kCases };
constexpr std::array<const char*, kCases> kCaseKeys = {
    "clean_close", "importer_killed", "owner_killed"};

constexpr auto kPatience = absl::Seconds(5);

// Owner and importer of one block, and this process, which watches.
class Experiment {
 public:
  Experiment(Bench& bench, const Route& route, std::uint64_t size)
      : bench_(bench), route_(route), size_(size) {}

  // Starts both, and has the block shared.
  absl::Status Start() {
    ASSIGN_OR_RETURN(Listener listener, Listener::Bind({}, {}));
    const std::vector<std::string> common = {
        absl::StrCat("--driver=", bench_.options.driver),
        absl::StrCat("--device=", bench_.options.device),
        absl::StrCat("--at=", bench_.options.device)};

    ASSIGN_OR_RETURN(free_before_, bench_.gpu.FreeBytes());
    std::vector<std::string> args = common;
    args.insert(args.end(),
                {"--role=owner", absl::StrCat("--route=", route_.name),
                 absl::StrCat("--max_size=", size_),
                 absl::StrCat("--connect=", listener.address())});
    if (bench_.options.corrupt) args.emplace_back("--corrupt");
    ASSIGN_OR_RETURN(ChildProcess owner, ChildProcess::StartSelf(args));
    owner_.emplace(std::move(owner));
    ASSIGN_OR_RETURN(to_owner_, owner_->Accept(listener, Deadline()));
    ASSIGN_OR_RETURN(Message hello, to_owner_->Receive(Deadline()));

    ASSIGN_OR_RETURN(free_with_owner_, bench_.gpu.FreeBytes());
    args = common;
    args.insert(args.end(),
                {"--role=importer",
                 absl::StrCat("--connect=", Reader(hello.payload).GetText()),
                 absl::StrCat("--linger=", listener.address())});
    ASSIGN_OR_RETURN(ChildProcess importer, ChildProcess::StartSelf(args));
    importer_.emplace(std::move(importer));
    ASSIGN_OR_RETURN(to_importer_, importer_->Accept(listener, Deadline()));
    ASSIGN_OR_RETURN(free_with_both_, bench_.gpu.FreeBytes());

    RETURN_IF_ERROR(Order(OwnerOrder::kShare));
    RETURN_IF_ERROR(ReceiveAnswer(*to_owner_).status());
    ASSIGN_OR_RETURN(const std::uint64_t free, bench_.gpu.FreeBytes());
    if (free + size_ / 2 > free_with_both_) {
      return absl::InternalError(
          absl::StrCat("a shared block of ", size_,
                       " bytes does not show in the free bytes "
                       "of the device, which are ",
                       free, " and were ", free_with_both_));
    }
    return absl::OkStatus();
  }

  // Ends the sharing as `how` says and waits for the memory; nullopt when it
  // does not come back. ns.
  absl::StatusOr<std::optional<double>> TimeUntilBack(Case how) {
    // What a killed process's context took comes back as well: the block is
    // back when the free bytes are those of before the block, plus that.
    std::uint64_t expected = free_with_both_;
    if (how == kImporterKilled) expected += free_with_owner_ - free_with_both_;
    if (how == kOwnerKilled) expected += free_before_ - free_with_owner_;
    if (how == kImporterKilled) {
      RETURN_IF_ERROR(Order(OwnerOrder::kFreeAfterHangUp));
    }
    const std::int64_t start = NowNs();
    absl::Status ordered;
    if (how == kClean) ordered = Order(OwnerOrder::kFree);
    if (how == kImporterKilled) importer_->Kill();
    if (how == kOwnerKilled) owner_->Kill();
    if (!ordered.ok()) return ordered;
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      ASSIGN_OR_RETURN(const std::uint64_t free, bench_.gpu.FreeBytes());
      if (free + size_ / 4 >= expected) {
        return static_cast<double>(NowNs() - start);
      }
    }
    return std::nullopt;
  }

  absl::Status End(Case how) {
    absl::Status status;
    if (how != kOwnerKilled) {
      status = Order(OwnerOrder::kEnd);
      if (status.ok()) status = ReceiveAnswer(*to_owner_).status();
      if (status.ok()) status = owner_->Wait(Deadline());
    }
    to_importer_.reset();
    if (how != kImporterKilled && status.ok()) {
      status = importer_->Wait(Deadline());
    }
    return status;
  }

 private:
  absl::Status Order(OwnerOrder order) {
    Writer writer;
    writer.Put(order);
    return Send(*to_owner_, kGo, writer);
  }

  Bench& bench_;
  const Route& route_;
  std::uint64_t size_;
  std::optional<ChildProcess> owner_;
  std::optional<ChildProcess> importer_;
  std::optional<Channel> to_owner_;
  std::optional<Channel> to_importer_;
  // Free bytes of the device, as processes come.
  std::uint64_t free_before_ = 0;
  std::uint64_t free_with_owner_ = 0;
  std::uint64_t free_with_both_ = 0;
};

struct Samples {
  std::array<std::vector<double>, kCases> ns;
  std::array<int, kCases> never{};
};

absl::Status Run(Bench& bench) {
  const Link& link = *bench.links.front();
  const std::vector<const Route*> routes =
      bench.RoutesFor(link, RouteSet::kOneBlock);
  // On a GPU the block must be large beside what contexts take as they go on.
  const std::uint64_t size =
      bench.on_gpu()
          ? std::uint64_t{1} << 30
          : std::min<std::uint64_t>(bench.MaxSize(), std::uint64_t{1} << 30);
  std::map<const Route*, Samples> samples;
  // On a GPU a turn starts and ends 30 contexts, which takes half a minute.
  const int turns =
      bench.options.quick ? 1 : bench.Iterations(bench.on_gpu() ? 1 : 3);
  for (int i = 0; i < turns; ++i) {
    for (const Route* route : Rotated(routes, i)) {
      for (int how = 0; how < kCases; ++how) {
        RETURN_IF_ERROR(bench.GoOn());
        bench.progress.Step(absl::StrFormat("reclaim: %s, %s, %d of %d",
                                            route->label, kCaseKeys[how], i + 1,
                                            turns));
        Experiment experiment(bench, *route, size);
        absl::Status status = experiment.Start();
        if (status.ok()) {
          absl::StatusOr<std::optional<double>> back =
              experiment.TimeUntilBack(static_cast<Case>(how));
          status = back.status();
          if (back.ok() && back->has_value()) {
            samples[route].ns[how].push_back(**back);
          } else if (back.ok()) {
            ++samples[route].never[how];
          }
        }
        if (status.ok()) status = experiment.End(static_cast<Case>(how));
        RETURN_IF_ERROR(vmm::platform::Annotate(
            status, absl::StrCat(route->label, ", ", kCaseKeys[how])));
      }
    }
  }
  Table table;
  table.title = absl::StrFormat("Until %s of memory are back", BytesText(size));
  table.header = {"route", "clean close", "importer killed", "owner killed"};
  table.notes = {
      "median; after a kill the survivor closes or frees the block once it "
      "sees the hang-up, pools are trimmed"};
  for (const Route* route : routes) {
    std::vector<std::string> row = {route->label};
    for (int how = 0; how < kCases; ++how) {
      const Samples& of = samples[route];
      row.push_back(TimeTextOr(of.ns[how], 50));
      if (of.never[how] != 0) {
        table.notes.push_back(
            absl::StrFormat("%s, %s: %d of %d times it was not back after %s",
                            route->label, kCaseKeys[how], of.never[how], turns,
                            absl::FormatDuration(kPatience)));
      }
      bench.results.metrics.push_back(
          {absl::StrCat("reclaim/", route->name, "/", kCaseKeys[how]),
           of.ns[how]});
    }
    table.rows.push_back(row);
  }
  bench.results.tables.push_back(table);
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kReclaim = {
    "reclaim",
    "until memory is back after a clean close, and after a kill of either side",
    R"(  Timed by a third process, which polls cuMemGetInfo: from the order to close and free, or from
  the kill (SIGKILL, TerminateProcess), until the block's bytes are free again. That includes
  the survivor's noticing (it waits for the hang-up of its channel) and closing or freeing, and
  the system's taking down of the killed process and its context.)",
    &Run};

}  // namespace bench::compare
