#include "fabric/job_matrix.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"

namespace vmm::fabric {
namespace {

using platform::WireReader;
using platform::WireWriter;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable row of a rank: ", what, ". It was not made by vmmshare."));
}

bool IsKnown(std::uint8_t kind) {
  return KindName(static_cast<CUmemAllocationHandleType>(kind)) != "unknown";
}

std::string DescribeRank(const std::vector<absl::StatusOr<JobCard>>& cards,
                         int rank) {
  return cards[rank].ok() ? cards[rank]->Describe()
                          : absl::StrCat("rank ", rank);
}

}  // namespace

const JobTry& Telling(absl::Span<const JobTry> tries) {
  for (const JobTry& one : tries) {
    if (one.refusal.finding.id != kOtherHost) return one;
  }
  return tries.back();
}

std::string ReasonsText(absl::Span<const JobTry> tries) {
  std::string text;
  for (std::size_t i = 0; i < tries.size(); ++i) {
    if (tries[i].ok()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ". ", KindName(tries[i].kind));
    // A rank that takes no part is refused as every kind, for one reason.
    while (i + 1 < tries.size() && tries[i + 1].refusal == tries[i].refusal) {
      absl::StrAppend(&text, ", ", KindName(tries[++i].kind));
    }
    const Finding& finding = tries[i].refusal.finding;
    absl::StrAppend(&text, ": ", finding.text, " [", finding.id, "]");
  }
  return text;
}

Bytes EncodeRow(const JobRow& row) {
  Bytes body;
  WireWriter out(body);
  out.Put(row.rank);
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(row.owners.size()));
  for (const std::vector<JobTry>& tries : row.owners) {
    out.Put<std::uint8_t>(static_cast<std::uint8_t>(tries.size()));
    for (const JobTry& one : tries) {
      out.Put<std::uint8_t>(static_cast<std::uint8_t>(one.kind));
      PutRefusal(out, one.refusal);
    }
  }
  return SealRecord(RecordType::kRow, body);
}

absl::StatusOr<JobRow> DecodeRow(absl::Span<const std::uint8_t> bytes) {
  absl::StatusOr<absl::Span<const std::uint8_t>> body =
      OpenRecord(RecordType::kRow, bytes);
  if (!body.ok()) return body.status();
  WireReader reader(*body);
  JobRow row;
  row.rank = reader.Take<std::uint32_t>();
  const auto owners = reader.Take<std::uint32_t>();
  // Each owner takes a byte at least: no list is longer than what came.
  if (row.rank >= owners || owners > kMaxRanks || owners > reader.left()) {
    return Malformed(absl::StrCat("rank ", row.rank, " of ", owners));
  }
  for (std::uint32_t owner = 0; owner < owners; ++owner) {
    const auto count = reader.Take<std::uint8_t>();
    if (count > kMaxOffers || (owner == row.rank && count != 0)) {
      return Malformed(absl::StrCat(count, " tries with rank ", owner));
    }
    std::vector<JobTry> tries;
    for (int i = 0; i < count; ++i) {
      const auto kind = reader.Take<std::uint8_t>();
      if (!IsKnown(kind)) return Malformed(absl::StrCat("handle kind ", kind));
      tries.push_back(
          {static_cast<CUmemAllocationHandleType>(kind), TakeRefusal(reader)});
    }
    row.owners.push_back(std::move(tries));
  }
  if (reader.overrun() || reader.left() != 0) {
    return Malformed("it has another length than its fields");
  }
  return row;
}

JobMatrix::JobMatrix(std::vector<absl::StatusOr<JobCard>> cards,
                     std::vector<absl::StatusOr<JobRow>> rows)
    : cards_(std::move(cards)) {
  tries_.reserve(cards_.size() * cards_.size());
  for (std::size_t importer = 0; importer < cards_.size(); ++importer) {
    const absl::StatusOr<JobRow>& row = rows[importer];
    for (std::size_t owner = 0; owner < cards_.size(); ++owner) {
      if (row.ok()) {
        tries_.emplace_back(row->owners[owner]);
      } else {
        tries_.emplace_back(row.status());
      }
    }
  }
}

std::optional<CUmemAllocationHandleType> JobMatrix::Chosen(int importer,
                                                           int owner) const {
  const absl::StatusOr<std::vector<JobTry>>& tries = Tries(importer, owner);
  if (!tries.ok()) return std::nullopt;
  for (const JobTry& one : *tries) {
    if (one.ok()) return one.kind;
  }
  return std::nullopt;
}

absl::Status JobMatrix::WhyNot(int importer, int owner) const {
  if (Chosen(importer, owner).has_value()) return absl::OkStatus();
  const std::string who =
      absl::StrCat(DescribeRank(cards_, importer), " cannot reach memory of ",
                   DescribeRank(cards_, owner));
  const absl::StatusOr<std::vector<JobTry>>& tries = Tries(importer, owner);
  if (!tries.ok()) return platform::Annotate(tries.status(), who);
  if (tries->empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, ": they have no handle kind in common"));
  }
  const Refusal& telling = Telling(*tries).refusal;
  return absl::Status(telling.code, absl::StrCat(who, ": ", ReasonsText(*tries),
                                                 ". ", telling.finding.remedy));
}

absl::Status JobMatrix::AllReach() const {
  absl::Status first;
  int more = 0;
  for (int importer = 0; importer < size(); ++importer) {
    for (int owner = 0; owner < size(); ++owner) {
      if (importer == owner || Chosen(importer, owner).has_value()) continue;
      if (first.ok()) {
        first = WhyNot(importer, owner);
      } else {
        ++more;
      }
    }
  }
  return platform::Annotate(
      first, "", more == 0 ? "" : absl::StrCat(more, " more pairs cannot"));
}

absl::StatusOr<std::vector<JobRow>> ReadRows(
    absl::Span<const absl::StatusOr<Bytes>> records) {
  std::vector<JobRow> rows;
  rows.reserve(records.size());
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const std::string who = absl::StrCat("the row of rank ", rank);
    if (!records[rank].ok()) {
      return platform::Annotate(records[rank].status(), who);
    }
    absl::StatusOr<JobRow> row = DecodeRow(*records[rank]);
    if (!row.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, ": ", row.status().message()));
    }
    if (row->rank != rank || row->owners.size() != records.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          who, " is of rank ", row->rank, " of ", row->owners.size(),
          " ranks; expected rank ", rank, " of ", records.size()));
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace vmm::fabric
