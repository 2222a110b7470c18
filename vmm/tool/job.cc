#include "vmm/tool/job.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fabric/pmix.h"
#include "platform/base/status_macros.h"
#include "vmm/job/handshake.h"
#include "vmm/memory/device.h"
#include "vmm/tool/driver_choice.h"

namespace vmm::tool {
namespace {

// As many ranks of a host as there are devices get one each.
absl::StatusOr<Device> DeviceOf(const absl::StatusOr<platform::Driver>& driver,
                                int local_rank) {
  if (!driver.ok()) return driver.status();
  ASSIGN_OR_RETURN(const std::vector<Device> all, Device::All(*driver));
  if (all.empty()) {
    return absl::NotFoundError("the driver shows this process no device");
  }
  return all[static_cast<std::size_t>(local_rank) % all.size()];
}

// OK when `importer` reaches memory of `owner` by `kind`.
absl::Status CheckKind(const fabric::JobMatrix& matrix, int importer, int owner,
                       HandleKind kind) {
  const auto tries = matrix.Tries(importer, owner);
  if (!tries.ok()) return tries.status();
  for (const fabric::JobTry& one : *tries) {
    if (one.kind == static_cast<CUmemAllocationHandleType>(kind)) {
      return one.refusal.ToStatus(absl::StrCat("--require=", FlagOf(kind),
                                               ": rank ", importer,
                                               " and rank ", owner));
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--require=", FlagOf(kind), ": rank ", importer,
                   " does not try it with rank ", owner));
}

}  // namespace

absl::Status JobReport::Verdict() const {
  RETURN_IF_ERROR(complete);
  for (int each = 0; each < matrix.size(); ++each) {
    const fabric::JobCard& card = *matrix.card(each);
    if (!card.trouble.empty()) return card.trouble.ToStatus(card.Describe());
  }
  if (!required.has_value()) return matrix.AllReach();
  for (int importer = 0; importer < matrix.size(); ++importer) {
    for (int owner = 0; owner < matrix.size(); ++owner) {
      if (importer == owner) continue;
      RETURN_IF_ERROR(CheckKind(matrix, importer, owner, *required));
    }
  }
  return absl::OkStatus();
}

bool JobReport::prints() const {
  for (int each = 0; each < rank; ++each) {
    if (matrix.card(each).ok()) return false;
  }
  return true;
}

int JobReport::exit_code() const {
  return !prints() || Verdict().ok() ? kExitGood : kExitNotUsable;
}

absl::StatusOr<JobReport> ExamineJob(const DoctorOptions& options) {
  const Deadline deadline =
      Deadline::In(absl::Seconds(options.timeout_seconds));
  ASSIGN_OR_RETURN(const std::unique_ptr<fabric::PmixExchange> exchange,
                   fabric::PmixExchange::Connect({}, deadline));
  const DriverChoice choice = ChooseDriver(options);
  job::HandshakeOptions how;
  how.try_all_kinds = options.required.has_value();
  how.job.root = options.root;
  how.job.nvml = choice.nvml_path;
  job::HandshakeResult met =
      job::Handshake(DeviceOf(choice.driver, exchange->local_rank()), *exchange,
                     how, deadline);
  return JobReport{exchange->job(),       exchange->Describe(),
                   exchange->rank(),      met.matrix.details(),
                   std::move(met.status), options.required};
}

}  // namespace vmm::tool
