#include "fabric/job_matrix.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"

namespace vmm::fabric {
namespace {

using platform::WireReader;
using platform::WireWriter;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable row of a rank: ", what, ". It was not made by vmmshare."));
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

void JobRow::Append(std::vector<JobTry> tries, std::uint32_t count) {
  if (count == 0) return;
  if (runs_.empty() || runs_.back().tries != tries) {
    runs_.push_back({size(), std::move(tries)});
  }
  runs_.back().end += count;
}

const std::vector<JobTry>& JobRow::With(std::uint32_t owner) const {
  platform::Check(owner < size(), "a row has no such owner");
  return std::upper_bound(
             runs_.begin(), runs_.end(), owner,
             [](std::uint32_t of, const Run& run) { return of < run.end; })
      ->tries;
}

Bytes EncodeRow(const JobRow& row) {
  Bytes body;
  WireWriter out(body);
  out.Put(row.rank());
  out.Put(row.size());
  std::uint32_t begin = 0;
  for (const JobRow::Run& run : row.runs_) {
    out.Put(run.end - begin);
    begin = run.end;
    out.Put<std::uint8_t>(static_cast<std::uint8_t>(run.tries.size()));
    for (const JobTry& one : run.tries) {
      out.Put<std::uint8_t>(static_cast<std::uint8_t>(one.kind));
      out.Put<std::uint8_t>(one.by_cards ? 1 : 0);
      if (!one.by_cards) PutRefusal(out, one.refusal);
    }
  }
  return SealRecord(RecordType::kRow, body);
}

absl::StatusOr<JobRow> DecodeRow(absl::Span<const std::uint8_t> bytes) {
  ASSIGN_OR_RETURN(const absl::Span<const std::uint8_t> body,
                   OpenRecord(RecordType::kRow, bytes));
  WireReader reader(body);
  const auto rank = reader.Take<std::uint32_t>();
  const auto owners = reader.Take<std::uint32_t>();
  if (rank >= owners || owners > kMaxRanks) {
    return Malformed(absl::StrCat("rank ", rank, " of ", owners));
  }
  JobRow row(rank);
  while (row.size() < owners && !reader.overrun()) {
    const auto count = reader.Take<std::uint32_t>();
    const auto kinds = reader.Take<std::uint8_t>();
    if (count == 0 || count > owners - row.size() || kinds > kMaxOffers) {
      return Malformed(absl::StrCat(kinds, " tries with ", count,
                                    " ranks from rank ", row.size(), " on"));
    }
    std::vector<JobTry> tries;
    for (int i = 0; i < kinds; ++i) {
      const auto kind = reader.Take<std::uint8_t>();
      const auto by_cards = reader.Take<std::uint8_t>();
      if (!IsKnownKind(kind))
        return Malformed(absl::StrCat("handle kind ", kind));
      if (by_cards > 1) return Malformed(absl::StrCat("outcome ", by_cards));
      JobTry& one = tries.emplace_back();
      one.kind = static_cast<CUmemAllocationHandleType>(kind);
      one.by_cards = by_cards == 1;
      if (!one.by_cards) one.refusal = TakeRefusal(reader);
    }
    row.Append(std::move(tries), count);
  }
  if (reader.overrun() || reader.left() != 0) {
    return Malformed("it has another length than its fields");
  }
  if (!row.With(rank).empty()) {
    return Malformed(absl::StrCat("rank ", rank, " tried its own memory"));
  }
  return row;
}

JobMatrix::JobMatrix(std::vector<absl::StatusOr<JobCard>> cards,
                     std::vector<absl::StatusOr<JobRow>> rows)
    : cards_(std::move(cards)), rows_(std::move(rows)) {
  platform::Check(rows_.size() == cards_.size(),
                  "a matrix has a card and a row of every rank");
}

absl::StatusOr<std::vector<JobTry>> JobMatrix::Tries(int importer,
                                                     int owner) const {
  if (!rows_[importer].ok()) return rows_[importer].status();
  std::vector<JobTry> tries =
      rows_[importer]->With(static_cast<std::uint32_t>(owner));
  for (JobTry& one : tries) {
    if (!one.by_cards) continue;
    if (cards_[importer].ok() && cards_[owner].ok()) {
      one.refusal = RefusedByCards(*cards_[importer], *cards_[owner], one.kind);
    }
    if (one.refusal.empty()) {
      one.refusal = {absl::StatusCode::kFailedPrecondition,
                     {"not-tried",
                      absl::StrCat(DescribeRank(cards_, importer),
                                   " says that the cards tell why, and they "
                                   "do not"),
                      "Install the same vmmshare on every node."}};
    }
  }
  return tries;
}

std::optional<CUmemAllocationHandleType> JobMatrix::Chosen(int importer,
                                                           int owner) const {
  if (!rows_[importer].ok()) return std::nullopt;
  for (const JobTry& one :
       rows_[importer]->With(static_cast<std::uint32_t>(owner))) {
    if (one.ok()) return one.kind;
  }
  return std::nullopt;
}

absl::Status JobMatrix::WhyNot(int importer, int owner) const {
  if (Chosen(importer, owner).has_value()) return absl::OkStatus();
  const std::string who =
      absl::StrCat(DescribeRank(cards_, importer), " cannot reach memory of ",
                   DescribeRank(cards_, owner));
  const absl::StatusOr<std::vector<JobTry>> tries = Tries(importer, owner);
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
    if (row->rank() != rank || row->size() != records.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " is of rank ", row->rank(), " of ", row->size(),
                       " ranks; expected rank ", rank, " of ", records.size()));
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace vmm::fabric
