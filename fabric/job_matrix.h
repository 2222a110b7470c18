// JobMatrix: which rank reaches whose memory, how, and why not otherwise.
//
// A row is what one rank found out about all others by trying. The matrix is
// made of cards and rows alone, so that ranks that have the same ones have the
// same matrix.
#ifndef VMMSHARE_FABRIC_JOB_MATRIX_H_
#define VMMSHARE_FABRIC_JOB_MATRIX_H_

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/job_card.h"

namespace vmm::fabric {

// One kind that a rank tried, or did not need to try, with one owner.
struct JobTry {
  CUmemAllocationHandleType kind = CU_MEM_HANDLE_TYPE_NONE;
  Refusal refusal;  // Empty: imported, mapped, read, written, read back.
  // Refused for what RefusedByCards() says, which everybody knows: the row says
  // only that.
  bool by_cards = false;
  bool ok() const { return refusal.empty() && !by_cards; }
  friend bool operator==(const JobTry&, const JobTry&) = default;
};

// Of kinds that were all refused, the one whose reason is worth mending: that
// two hosts are two is not. REQUIRES: not empty.
const JobTry& Telling(absl::Span<const JobTry> tries);
// "fd: two hosts [other-host]. fabric: no channel node [no-channel]".
std::string ReasonsText(absl::Span<const JobTry> tries);

// What `rank` found with each owner, the preferred kind first. With itself it
// finds nothing. Neighbours with whom it found the same are kept and sent as
// one, so that a row is as short as there is little to tell.
class JobRow {
 public:
  explicit JobRow(std::uint32_t rank = 0) : rank_(rank) {}

  std::uint32_t rank() const { return rank_; }
  // How many owners there are.
  std::uint32_t size() const { return runs_.empty() ? 0 : runs_.back().end; }
  // Adds the next `count` owners.
  void Append(std::vector<JobTry> tries, std::uint32_t count = 1);
  // REQUIRES: owner < size().
  const std::vector<JobTry>& With(std::uint32_t owner) const;

  friend bool operator==(const JobRow&, const JobRow&) = default;
  friend Bytes EncodeRow(const JobRow& row);

 private:
  struct Run {
    std::uint32_t end = 0;  // One behind its last owner.
    std::vector<JobTry> tries;
    friend bool operator==(const Run&, const Run&) = default;
  };
  std::uint32_t rank_;
  std::vector<Run> runs_;
};

Bytes EncodeRow(const JobRow& row);
// Total: takes any bytes. Errors as OpenRecord().
absl::StatusOr<JobRow> DecodeRow(absl::Span<const std::uint8_t> bytes);

// A value.
class JobMatrix {
 public:
  // As far as is known: by rank, the card and row or why there is none.
  JobMatrix(std::vector<absl::StatusOr<JobCard>> cards,
            std::vector<absl::StatusOr<JobRow>> rows);

  int size() const { return static_cast<int>(cards_.size()); }
  const absl::StatusOr<JobCard>& card(int rank) const { return cards_[rank]; }

  // What `importer` found of memory of `owner`: each kind until one worked,
  // with the reasons that the cards tell, too. When it is not known, why.
  // REQUIRES: two ranks.
  absl::StatusOr<std::vector<JobTry>> Tries(int importer, int owner) const;
  // The kind by which `importer` reaches memory of `owner`, if any.
  std::optional<CUmemAllocationHandleType> Chosen(int importer,
                                                  int owner) const;
  // OK when `importer` reaches it; otherwise why not, kind by kind, with both
  // ranks and devices and what to do.
  absl::Status WhyNot(int importer, int owner) const;
  // OK when every rank reaches every other one's memory; otherwise the first
  // WhyNot(), and how many more there are.
  absl::Status AllReach() const;

 private:
  std::vector<absl::StatusOr<JobCard>> cards_;
  std::vector<absl::StatusOr<JobRow>> rows_;
};

// Every rank's row, from a complete round. FAILED_PRECONDITION names the rank
// whose row does not fit.
absl::StatusOr<std::vector<JobRow>> ReadRows(
    absl::Span<const absl::StatusOr<Bytes>> records);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_JOB_MATRIX_H_
