// `vmmshare doctor --job`: what the ranks of a job can share with each other.
#ifndef VMMSHARE_VMM_TOOL_JOB_H_
#define VMMSHARE_VMM_TOOL_JOB_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/job_matrix.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/tool/command_line.h"

namespace vmm::tool {

struct JobReport {
  std::string job;
  std::string exchange;  // What carried the bytes.
  int rank = 0;          // Of this process.
  fabric::JobMatrix matrix;
  absl::Status complete;  // Which ranks did not answer, or do not fit.
  std::optional<HandleKind> required;

  // OK when every rank can take part and every pair reaches each other, by the
  // required kind if there is one.
  absl::Status Verdict() const;
  // Rank 0 prints and carries the verdict, or the first rank that answered: a
  // launcher ends the whole job when one rank ends with another status, before
  // that one could print.
  bool prints() const;
  int exit_code() const;
};

// Collective. Fails without a launcher or without libpmix.
absl::StatusOr<JobReport> ExamineJob(const DoctorOptions& options);

// For people and for programs; docs/doctor.md describes both. Never coloured:
// launchers give ranks a terminal for standard output though they pass on into
// a pipe what is written there.
std::string AsText(const JobReport& report);
std::string AsJson(const JobReport& report);
// What programs read in place of a report of which ExamineJob() answered `why`.
std::string JobErrorAsJson(const absl::Status& why,
                           std::optional<HandleKind> required);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_JOB_H_
