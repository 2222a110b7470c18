// vmmshare-bench: every way of sharing GPU memory between two processes, with
// the same work, in one run. --help says what is measured.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/compare/bench.h"
#include "bench/compare/calls.h"
#include "bench/compare/importer_process.h"
#include "bench/compare/options.h"
#include "bench/compare/os.h"
#include "bench/compare/owner_process.h"
#include "bench/compare/scenarios.h"
#include "platform/base/status_macros.h"
#include "platform/os/process.h"
#include "platform/os/termination.h"
#include "vmm/memory/physical_memory.h"

namespace bench::compare {
namespace {

constexpr char kNoGpu[] = "host-memory driver: not a GPU figure";

absl::Status FillContext(Bench& bench, const std::string& described) {
  const vmm::platform::Driver& driver = bench.gpu.driver();
  ASSIGN_OR_RETURN(
      std::uint64_t granularity,
      vmm::PhysicalMemory::Granularity(
          driver, vmm::Location::On(bench.gpu.device()), {NativeKind()}));
  auto& context = bench.results.context;
  context = {
      {"date", absl::FormatTime(absl::Now())},
      {"executable", "vmmshare-bench"},
      {"device", bench.gpu.device().Describe()},
      {"driver", described},
      {"granularity", absl::StrCat(granularity, " bytes")},
      {"handle_kind", std::string(vmm::NameOf(NativeKind()))},
      {"clock", ClockName()},
      {"num_cpus", absl::StrCat(std::thread::hardware_concurrency())},
      {"library_build_type", VMMSHARE_BUILD_TYPE},
      {"commit", VMMSHARE_COMMIT},
  };
  if (driver.is_host_memory()) context.emplace_back("not_a_gpu_figure", kNoGpu);
  if (bench.options.quick) {
    context.emplace_back("quick", "a smoke test: too short for figures");
  }
  if (bench.options.peer >= 0) {
    ASSIGN_OR_RETURN(vmm::Device peer,
                     vmm::Device::ByOrdinal(driver, bench.options.peer));
    context.emplace_back("peer", peer.Describe());
  }
  return absl::OkStatus();
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintHeader(const Bench& bench) {
  std::string text = "vmmshare-bench\n";
  for (const auto& [name, value] : bench.results.context) {
    if (name == "date" || name == "executable") continue;
    absl::StrAppendFormat(&text, "  %-20s %s\n", name + ":", value);
  }
  Print(text);
}

// Routes that do not work here, each with its reason.
void PrintUnavailable(Bench& bench) {
  for (const auto& [where, reason] : bench.unavailable) {
    const Route& route = *Routes()[where.first];
    Print(absl::StrCat("  ", route.label, ", ", where.second,
                       ": not available: ", reason, "\n"));
    bench.results.context.emplace_back(
        absl::StrCat("not_available.", route.name, ".", where.second), reason);
  }
}

void PrintTables(Bench& bench, std::size_t from) {
  for (std::size_t i = from; i < bench.results.tables.size(); ++i) {
    Table& table = bench.results.tables[i];
    if (!bench.on_gpu()) table.notes.emplace_back(kNoGpu);
    Print(ToText(table, false));
  }
}

// CANCELLED when it was asked to end. On an error the tables so far are there,
// and the context says that others are not, and why.
absl::Status RunScenarios(Bench& bench) {
  for (const Scenario& scenario : Scenarios()) {
    if (!IsWanted(bench.options.scenarios, scenario.name)) continue;
    bench.results.context.emplace_back(absl::StrCat("timed.", scenario.name),
                                       scenario.timed);
    const std::size_t tables = bench.results.tables.size();
    const absl::Time start = absl::Now();
    absl::Status run = bench.GoOn();
    if (run.ok()) run = scenario.run(bench);
    bench.progress.Clear();
    PrintTables(bench, tables);
    if (!run.ok()) {
      const std::string partial = absl::StrCat(
          "partial: ended in scenario ", scenario.name,
          ", of which only finished tables are here, and nothing of those "
          "after it: ",
          run.message());
      bench.results.context.emplace_back("partial", partial);
      Print(absl::StrCat("\n  ", partial, "\n"));
      // The message alone, without what else travels in the status.
      return absl::Status(run.code(), absl::StrCat("scenario ", scenario.name,
                                                   ": ", run.message()));
    }
    Print(absl::StrFormat("  (%s took %.1f s)\n", scenario.name,
                          absl::ToDoubleSeconds(absl::Now() - start)));
  }
  return absl::OkStatus();
}

absl::Status WriteOutputs(Bench& bench) {
  for (Chart& chart : bench.results.charts) {
    if (!bench.on_gpu()) chart.note = kNoGpu;
  }
  if (!bench.options.json.empty()) {
    RETURN_IF_ERROR(WriteFile(bench.options.json, ToJson(bench.results)));
  }
  if (bench.options.markdown.empty()) return absl::OkStatus();
  return WriteFile(bench.options.markdown,
                   ToMarkdown(bench.results, bench.options.plots));
}

absl::Status Enforce(const Bench& bench) {
  if (bench.results.targets.empty()) {
    return absl::FailedPreconditionError(
        "--enforce: none of these scenarios has a target; expected one that "
        "has, by --scenario=NAMES");
  }
  Print(ToText(ToTable(bench.results.targets), false));
  if (!bench.on_gpu()) {
    Print(absl::StrCat("  not enforced: ", kNoGpu, "\n"));
    return absl::OkStatus();
  }
  const std::size_t missed = Missed(bench.results.targets);
  if (missed == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(missed, " targets are missed or were not measured"));
}

absl::Status RunBench(const Options& options) {
  vmm::platform::HoldTermination();
  ASSIGN_OR_RETURN(vmm::platform::Driver driver, LoadDriver(options.driver));
  ASSIGN_OR_RETURN(vmm::platform::Driver counting, CountingDriver(driver));
  ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu,
                   Gpu::Open(counting, options.device, options.device));
  Bench bench{options, *gpu};
  RETURN_IF_ERROR(FillContext(bench, driver.Describe()));
  PrintHeader(bench);

  bench.progress.Step("starting importers");
  ASSIGN_OR_RETURN(std::unique_ptr<Link> same,
                   Link::Start(options, options.device, "same GPU"));
  bench.links.push_back(std::move(same));
  if (options.peer >= 0) {
    ASSIGN_OR_RETURN(std::unique_ptr<Link> peer,
                     Link::Start(options, options.peer, "peer GPU"));
    bench.links.push_back(std::move(peer));
  }
  RETURN_IF_ERROR(TryRoutes(bench));
  bench.progress.Clear();
  PrintUnavailable(bench);
  absl::Status run = RunScenarios(bench);
  for (const std::unique_ptr<Link>& link : bench.links) {
    if (run.ok()) run = link->End();
  }
  // Whatever failed, what was measured before it is not lost.
  run.Update(WriteOutputs(bench));
  if (!run.ok()) return run;
  return options.enforce ? Enforce(bench) : absl::OkStatus();
}

absl::Status Run(const Options& options) {
  if (options.help) {
    Print(HelpText());
    return absl::OkStatus();
  }
  // Blocks take descriptors; what has no more of them says so then.
  vmm::platform::RaiseDescriptorLimit().IgnoreError();
  if (options.role == "importer") return RunImporter(options);
  if (options.role == "owner") return RunOwner(options);
  return RunBench(options);
}

}  // namespace
}  // namespace bench::compare

int main(int argc, char** argv) {
  const absl::StatusOr<bench::compare::Options> options =
      bench::compare::ParseOptions(argc, argv);
  const absl::Status status =
      options.ok() ? bench::compare::Run(*options) : options.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "vmmshare-bench: error: %s\n",
               status.ToString().c_str());
  return EXIT_FAILURE;
}
