// A JobReport for programs.
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fabric/nvml.h"
#include "vmm/tool/job.h"
#include "vmm/tool/print_json_parts.h"

namespace vmm::tool {
namespace {

using fabric::JobCard;
using fabric::JobMatrix;
using fabric::JobOffer;
using fabric::JobTry;

Json ReasonJson(const fabric::Refusal& refusal) {
  return refusal.empty() ? Json() : FindingJson(refusal.finding);
}

Json RankJson(const JobMatrix& matrix, int rank) {
  const absl::StatusOr<JobCard>& card = matrix.card(rank);
  Json object = Json::object();
  object["rank"] = rank;
  object["error"] = StatusJson(card.status());
  if (!card.ok()) return object;
  object["host"] = card->host_name;
  const bool has_device = !card->device_name.empty();
  object["device"] = has_device ? Json(card->device_name) : Json();
  object["uuid"] =
      has_device ? Json(absl::StrCat("GPU-", fabric::UuidText(card->device)))
                 : Json();
  const auto& domain = card->domain;
  object["cluster"] =
      domain.has_value() ? Json(fabric::UuidText(domain->cluster)) : Json();
  object["clique"] = domain.has_value() ? Json(domain->clique) : Json();
  object["trouble"] = ReasonJson(card->trouble);
  Json kinds = Json::array();
  for (const JobOffer& offer : card->offers) {
    Json kind = Json::object();
    kind["kind"] = fabric::KindName(offer.kind);
    kind["offered"] = offer.usable();
    kind["reason"] = ReasonJson(offer.refusal);
    kinds.push_back(std::move(kind));
  }
  object["kinds"] = std::move(kinds);
  return object;
}

Json PairJson(const JobMatrix& matrix, int importer, int owner) {
  const auto tries = matrix.Tries(importer, owner);
  const auto chosen = matrix.Chosen(importer, owner);
  Json object = Json::object();
  object["importer"] = importer;
  object["owner"] = owner;
  object["kind"] =
      chosen.has_value() ? Json(fabric::KindName(*chosen)) : Json();
  object["error"] = StatusJson(tries.status());
  Json list = Json::array();
  if (tries.ok()) {
    for (const JobTry& one : *tries) {
      Json tried = Json::object();
      tried["kind"] = fabric::KindName(one.kind);
      tried["usable"] = one.ok();
      tried["reason"] = ReasonJson(one.refusal);
      list.push_back(std::move(tried));
    }
  }
  object["tries"] = std::move(list);
  return object;
}

Json TextOrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

}  // namespace

std::string AsJson(const JobReport& report) {
  const JobMatrix& matrix = report.matrix;
  Json object = Json::object();
  object["schema"] = "vmmshare-doctor-job/1";
  object["vmmshare_version"] = VMMSHARE_VERSION;
  object["job"] = TextOrNull(report.job);
  object["exchange"] = TextOrNull(report.exchange);
  object["error"] = StatusJson(report.complete);
  Json ranks = Json::array();
  Json pairs = Json::array();
  for (int rank = 0; rank < matrix.size(); ++rank) {
    ranks.push_back(RankJson(matrix, rank));
    for (int owner = 0; owner < matrix.size(); ++owner) {
      if (owner != rank) pairs.push_back(PairJson(matrix, rank, owner));
    }
  }
  object["ranks"] = std::move(ranks);
  object["pairs"] = std::move(pairs);
  object["required"] =
      report.required.has_value() ? Json(FlagOf(*report.required)) : Json();
  object["verdict"] = StatusJson(report.Verdict());
  object["exit_code"] = report.exit_code();
  return JsonText(object);
}

std::string JobErrorAsJson(const absl::Status& why,
                           std::optional<HandleKind> required) {
  return AsJson(JobReport{"", "", 0, JobMatrix({}, {}), why, required});
}

}  // namespace vmm::tool
