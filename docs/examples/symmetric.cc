// Symmetric memory of a job, one process per GPU: every rank allocates the same
// size, maps everybody's, writes into its right neighbour's memory, and finds
// in its own what its left neighbour wrote.
//
//   mpirun -n 4 symmetric                      Open MPI, one host or several
//   srun --mpi=pmix -n 8 symmetric             Slurm
//   mpirun -n 4 symmetric --driver=host        without a GPU
//   --size=64M --timeout=60                    bytes a rank, seconds in all
//   --corrupt=RANK                             see the check find a wrong word
//
// Several ranks of a host may share a GPU. No MPI library is linked: what is
// used is the launcher's PMIx. The exit status is 0 only if every rank found
// every byte, and no rank waits longer than the timeout for another.
#include "vmm/job/symmetric.h"

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/pattern.h"
#include "docs/examples/support.h"
#include "fabric/exchange.h"
#include "fabric/pmix.h"
#include "vmm/vmm.h"

ABSL_FLAG(examples::Bytes, size, {64 << 20}, "bytes of each rank");
ABSL_FLAG(std::optional<int>, corrupt, std::nullopt,
          "the rank that writes something else");

namespace {

using examples::Pattern;
using examples::Print;
using vmm::Device;
using vmm::fabric::PmixExchange;
using vmm::job::SymmetricMemory;
using vmm::platform::Driver;

// What `writer` writes into its neighbour's memory.
Pattern PatternOf(int writer) {
  return {.seed = 5000 + static_cast<std::uint64_t>(writer)};
}

// The GPU of this rank: as many ranks of a host as there are GPUs get one each.
absl::StatusOr<Device> ChooseDevice(const Driver& driver,
                                    const PmixExchange& exchange) {
  absl::StatusOr<std::vector<Device>> all = Device::All(driver);
  if (!all.ok()) return all.status();
  if (all->empty()) return absl::NotFoundError("this rank sees no GPU");
  return (*all)[static_cast<std::size_t>(exchange.local_rank()) % all->size()];
}

// All ranks are here: what each did before is done.
absl::Status Meet(PmixExchange& exchange, absl::string_view what,
                  absl::Time deadline) {
  return vmm::fabric::Gather(exchange, what, {}, deadline).status;
}

absl::Status RunRank(const Device& device, PmixExchange& exchange,
                     std::uint64_t size, bool corrupt, absl::Time deadline) {
  const Driver& driver = device.driver();
  absl::StatusOr<vmm::PrimaryContext> context =
      vmm::PrimaryContext::Retain(device);
  if (!context.ok()) return context.status();
  absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
  if (!current.ok()) return current.status();

  vmm::job::SymmetricOptions options;
  options.size = size;
  absl::StatusOr<SymmetricMemory> memory =
      SymmetricMemory::Create(device, exchange, options, deadline);
  if (!memory.ok()) return memory.status();

  const int rank = memory->rank();
  const int right = (rank + 1) % memory->ranks();
  const int left = (rank + memory->ranks() - 1) % memory->ranks();
  const Pattern pattern =
      corrupt ? PatternOf(rank).Inverted() : PatternOf(rank);
  absl::Status written =
      examples::Fill(driver, memory->address(right), size, pattern);
  if (!written.ok()) return written;
  absl::Status met = Meet(exchange, "written", deadline);
  if (!met.ok()) return met;
  absl::Status read =
      examples::Verify(driver, memory->address(rank), size, PatternOf(left));
  // Also after a failure: a neighbour may still be reading what is here.
  met = Meet(exchange, "read", deadline);
  if (!read.ok()) {
    return absl::Status(read.code(),
                        absl::StrCat("rank ", rank, " does not have what rank ",
                                     left, " wrote: ", read.message()));
  }
  if (!met.ok()) return met;
  Print(absl::StrCat(
      "rank ", rank, " on ", device.Describe(), ": ", examples::BytesText(size),
      " from rank ", left, ", mapped as ",
      memory->ranks() == 1 ? "its own" : vmm::NameOf(*memory->kind(left)),
      ", all as written"));
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  examples::ParseCommandLine(argc, argv);
  const absl::Time deadline = examples::Deadline();
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  absl::StatusOr<std::unique_ptr<PmixExchange>> exchange =
      PmixExchange::Connect({}, deadline);
  if (!exchange.ok()) return exchange.status();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  absl::StatusOr<Device> device =
      driver.ok() ? ChooseDevice(*driver, **exchange) : driver.status();
  if (!device.ok()) {
    // All ranks learn it from this call, rather than waiting for this one.
    vmm::job::SymmetricOptions none;
    return SymmetricMemory::Create(device.status(), **exchange, none, deadline)
        .status();
  }
  if ((*exchange)->rank() == 0) {
    Print(absl::StrCat("driver: ", driver->Describe()));
    Print(absl::StrCat((*exchange)->size(), " ranks of job ",
                       (*exchange)->job(), ", exchanged by ",
                       (*exchange)->Describe()));
  }
  const bool corrupt = absl::GetFlag(FLAGS_corrupt) == (*exchange)->rank();
  return RunRank(*device, **exchange, size, corrupt, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("symmetric", Run(argc, argv));
}
