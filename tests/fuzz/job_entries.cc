// What the ranks of a job read of each other.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "fabric/job_card.h"
#include "fabric/job_matrix.h"
#include "fabric/job_record.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "tests/job/samples.h"
#include "vmm/job/internal/heap_record.h"

namespace vmm::fuzz {
namespace {

using fabric::JobCard;
using fabric::JobRow;
using fabric::RecordType;
using fabric::Refusal;
using platform::Check;

void CheckText(absl::string_view text) {
  Check(std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a text of a peer is shown as it is");
}

void CheckError(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status),
        "another error than documented");
  CheckText(status.message());
}

void CheckRefusal(const Refusal& refusal) {
  CheckText(refusal.finding.id);
  CheckText(refusal.ToStatus("").message());
}

void CheckCard(Input bytes) {
  const absl::StatusOr<JobCard> card = fabric::DecodeCard(bytes);
  if (!card.ok()) return CheckError(card.status());
  Check(card->rank < card->ranks && card->offers.size() <= fabric::kMaxOffers,
        "a card that contradicts itself");
  CheckText(card->Describe());
  CheckText(card->device_name);
  CheckRefusal(card->trouble);
  for (const fabric::JobOffer& offer : card->offers) {
    Check(offer.usable() == offer.refusal.empty(), "an offer that is none");
    CheckRefusal(offer.refusal);
  }
  const absl::StatusOr<JobCard> again =
      fabric::DecodeCard(fabric::EncodeCard(*card));
  Check(again.ok() && *again == *card, "a card is written otherwise than read");
}

void CheckRow(Input bytes) {
  const absl::StatusOr<JobRow> row = fabric::DecodeRow(bytes);
  if (!row.ok()) return CheckError(row.status());
  const std::size_t ranks = row->size();
  Check(row->rank() < ranks && ranks <= fabric::kMaxRanks,
        "a row of more ranks than a job has");
  const absl::StatusOr<JobRow> again =
      fabric::DecodeRow(fabric::EncodeRow(*row));
  Check(again.ok() && *again == *row, "a row is written otherwise than read");
  if (ranks > 8) return;  // The matrix grows with the square.
  std::vector<absl::StatusOr<JobCard>> cards(ranks, absl::NotFoundError("no"));
  std::vector<absl::StatusOr<JobRow>> rows(ranks, absl::NotFoundError("no"));
  rows[row->rank()] = *row;
  const fabric::JobMatrix matrix(std::move(cards), std::move(rows));
  CheckText(matrix.AllReach().message());
}

// As it is, and as the body of a record that is right.
void FuzzJobCard(Input input) {
  CheckCard(input);
  CheckCard(fabric::SealRecord(RecordType::kCard, input));
}
void FuzzJobRow(Input input) {
  CheckRow(input);
  CheckRow(fabric::SealRecord(RecordType::kRow, input));
  const absl::StatusOr<Refusal> verdict =
      fabric::DecodeVerdict(fabric::SealRecord(RecordType::kVerdict, input));
  if (verdict.ok()) CheckRefusal(*verdict);
  const absl::StatusOr<job::HeapRecord> heap =
      job::DecodeHeapRecord(fabric::SealRecord(RecordType::kHeap, input));
  if (heap.ok()) {
    const absl::StatusOr<job::HeapRecord> again =
        job::DecodeHeapRecord(job::EncodeHeapRecord(*heap));
    Check(again.ok() && *again == *heap,
          "a heap is written otherwise than read");
  }
}

// The record, and its body alone.
std::vector<Bytes> Seeds(RecordType type, const Bytes& record) {
  const absl::Span<const std::uint8_t> body = *fabric::OpenRecord(type, record);
  return {record, Bytes(body.begin(), body.end())};
}

}  // namespace

std::vector<Entry> JobEntries() {
  JobCard in_trouble = testing::SampleCard(0, 1);
  in_trouble.domain.reset();
  in_trouble.trouble = in_trouble.offers[1].refusal;
  std::vector<Bytes> cards =
      Seeds(RecordType::kCard, fabric::EncodeCard(testing::SampleCard(1, 3)));
  for (Bytes& more : Seeds(RecordType::kCard, fabric::EncodeCard(in_trouble))) {
    cards.push_back(std::move(more));
  }
  return {
      {"job_card", &FuzzJobCard, std::move(cards)},
      {"job_row", &FuzzJobRow,
       Seeds(RecordType::kRow, fabric::EncodeRow(testing::SampleRow(1, 3)))}};
}

}  // namespace vmm::fuzz
