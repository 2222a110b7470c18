#include "fabric/job_card.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace vmm::fabric {
namespace {

using platform::WireReader;
using platform::WireWriter;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable card of a rank: ", what, ". It was not made by vmmshare."));
}

absl::StatusOr<JobOffer> TakeOffer(WireReader& reader) {
  const auto kind = reader.Take<std::uint8_t>();
  if (!IsKnownKind(kind)) return Malformed(absl::StrCat("handle kind ", kind));
  JobOffer offer;
  offer.kind = static_cast<CUmemAllocationHandleType>(kind);
  offer.ticket = TakeBlob(reader, kMaxOfferTicket);
  offer.refusal = TakeRefusal(reader);
  if (offer.usable() != offer.refusal.empty()) {
    return Malformed(absl::StrCat(
        "it offers ", KindName(offer.kind),
        offer.usable() ? " and says why it cannot" : " without a ticket"));
  }
  return offer;
}

}  // namespace

absl::string_view KindName(CUmemAllocationHandleType kind) {
  switch (kind) {
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
      return "fd";
    case CU_MEM_HANDLE_TYPE_WIN32:
      return "nt";
    case CU_MEM_HANDLE_TYPE_FABRIC:
      return "fabric";
    default:
      return "unknown";
  }
}

bool IsKnownKind(std::uint8_t kind) {
  return KindName(static_cast<CUmemAllocationHandleType>(kind)) != "unknown";
}

const JobOffer* JobCard::Find(CUmemAllocationHandleType kind) const {
  for (const JobOffer& offer : offers) {
    if (offer.kind == kind) return &offer;
  }
  return nullptr;
}

std::string JobCard::Describe() const {
  return absl::StrCat("rank ", rank, " (host ", host_name,
                      device == Uuid{}
                          ? ", no device"
                          : absl::StrCat(", GPU-", UuidText(device)),
                      ")");
}

Refusal OfRank(const JobCard& card, const Refusal& refusal) {
  Refusal named = refusal;
  named.finding.text =
      absl::StrCat(card.Describe(), ": ", refusal.finding.text);
  return named;
}

Refusal RefusedByCards(const JobCard& importer, const JobCard& owner,
                       CUmemAllocationHandleType kind) {
  if (!importer.trouble.empty()) return OfRank(importer, importer.trouble);
  if (!owner.trouble.empty()) return OfRank(owner, owner.trouble);
  if (importer.host_memory_driver != owner.host_memory_driver) {
    const JobCard& without_gpu = importer.host_memory_driver ? importer : owner;
    return {absl::StatusCode::kFailedPrecondition,
            {"other-driver",
             absl::StrCat(without_gpu.Describe(),
                          " uses the host-memory driver, the other a CUDA "
                          "driver"),
             "Give all ranks the same --driver."}};
  }
  const bool same_host = importer.boot_id == owner.boot_id;
  if (!same_host && kind != CU_MEM_HANDLE_TYPE_FABRIC) {
    return {absl::StatusCode::kFailedPrecondition,
            {kOtherHost,
             absl::StrCat(KindName(kind),
                          " handles stay on their host: ", importer.Describe(),
                          " and ", owner.Describe(), " are on two"),
             "Between hosts only fabric handles go: docs/fabric.md."}};
  }
  const JobOffer* offer = owner.Find(kind);
  if (offer == nullptr) {
    return {
        absl::StatusCode::kFailedPrecondition,
        {"not-offered",
         absl::StrCat(owner.Describe(), " does not share as ", KindName(kind)),
         "Give all ranks the same policy and operating system."}};
  }
  return offer->usable() ? Refusal{} : OfRank(owner, offer->refusal);
}

Bytes EncodeCard(const JobCard& card) {
  Bytes body;
  WireWriter out(body);
  out.Put(card.rank);
  out.Put(card.ranks);
  PutText(out, card.host_name);
  out.PutBytes(card.boot_id);
  out.Put<std::uint8_t>(card.host_memory_driver ? 1 : 0);
  out.PutBytes(card.device);
  PutText(out, card.device_name);
  out.Put<std::uint8_t>(card.domain.has_value() ? 1 : 0);
  if (card.domain.has_value()) {
    out.PutBytes(card.domain->cluster);
    out.Put(card.domain->clique);
  }
  out.Put(card.requested_size);
  out.Put(card.mapped_size);
  out.PutBytes(card.nonce);
  PutRefusal(out, card.trouble);
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(card.offers.size()));
  for (const JobOffer& offer : card.offers) {
    out.Put<std::uint8_t>(static_cast<std::uint8_t>(offer.kind));
    PutBlob(out, offer.ticket);
    PutRefusal(out, offer.refusal);
  }
  return SealRecord(RecordType::kCard, body);
}

absl::StatusOr<JobCard> DecodeCard(absl::Span<const std::uint8_t> bytes) {
  ASSIGN_OR_RETURN(const absl::Span<const std::uint8_t> body,
                   OpenRecord(RecordType::kCard, bytes));
  WireReader reader(body);
  JobCard card;
  card.rank = reader.Take<std::uint32_t>();
  card.ranks = reader.Take<std::uint32_t>();
  if (card.rank >= card.ranks || card.ranks > kMaxRanks) {
    return Malformed(absl::StrCat("rank ", card.rank, " of ", card.ranks));
  }
  card.host_name = TakeText(reader);
  reader.TakeBytes(absl::MakeSpan(card.boot_id));
  const auto driver = reader.Take<std::uint8_t>();
  reader.TakeBytes(absl::MakeSpan(card.device));
  card.device_name = TakeText(reader);
  const auto has_domain = reader.Take<std::uint8_t>();
  if (driver > 1 || has_domain > 1) return Malformed("a flag above 1");
  card.host_memory_driver = driver == 1;
  if (has_domain == 1) {
    JobCard::Domain domain;
    reader.TakeBytes(absl::MakeSpan(domain.cluster));
    domain.clique = reader.Take<std::uint32_t>();
    card.domain = domain;
  }
  card.requested_size = reader.Take<std::uint64_t>();
  card.mapped_size = reader.Take<std::uint64_t>();
  if (card.requested_size > card.mapped_size) {
    return Malformed(absl::StrCat(card.requested_size, " bytes asked for, ",
                                  card.mapped_size, " mapped"));
  }
  reader.TakeBytes(absl::MakeSpan(card.nonce));
  card.trouble = TakeRefusal(reader);
  const auto count = reader.Take<std::uint8_t>();
  if (count > kMaxOffers) return Malformed(absl::StrCat(count, " offers"));
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(JobOffer offer, TakeOffer(reader));
    if (card.Find(offer.kind) != nullptr) {
      return Malformed(absl::StrCat("two offers of ", KindName(offer.kind)));
    }
    card.offers.push_back(std::move(offer));
  }
  if (reader.overrun() || reader.left() != 0) {
    return Malformed("it has another length than its fields");
  }
  return card;
}

absl::StatusOr<std::vector<JobCard>> ReadCards(
    absl::Span<const absl::StatusOr<Bytes>> records) {
  std::vector<JobCard> cards;
  cards.reserve(records.size());
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const std::string who = absl::StrCat("the card of rank ", rank);
    if (!records[rank].ok()) {
      return platform::Annotate(records[rank].status(), who);
    }
    absl::StatusOr<JobCard> card = DecodeCard(*records[rank]);
    if (!card.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, ": ", card.status().message()));
    }
    if (card->rank != rank || card->ranks != records.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          who, " says that it is rank ", card->rank, " of ", card->ranks,
          "; expected rank ", rank, " of ", records.size(),
          ". Give every rank the same exchange, and its own rank in it."));
    }
    cards.push_back(*std::move(card));
  }
  return cards;
}

}  // namespace vmm::fabric
