// A JobReport for people: see job.h.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fabric/nvml.h"
#include "vmm/tool/job.h"
#include "vmm/tool/page.h"

namespace vmm::tool {
namespace {

using fabric::Finding;
using fabric::JobCard;
using fabric::JobMatrix;
using fabric::JobOffer;
using fabric::JobTry;

// More columns than this a terminal does not hold.
constexpr int kMaxColumns = 12;

std::string Cell(const JobMatrix& matrix, int importer, int owner) {
  if (importer == owner) return "-";
  const auto chosen = matrix.Chosen(importer, owner);
  if (chosen.has_value()) return std::string(fabric::KindName(*chosen));
  return matrix.Tries(importer, owner).ok() ? "NO" : "?";
}

void PrintRank(const JobMatrix& matrix, int rank,
               std::map<std::string, int>* said, Page* page) {
  const absl::StatusOr<JobCard>& card = matrix.card(rank);
  const std::string label = absl::StrCat("rank ", rank);
  if (!card.ok()) {
    page->Row(label, "no answer", 2, Ink::kBad);
    return;
  }
  page->Row(label,
            absl::StrCat("host ", card->host_name,
                         card->device_name.empty()
                             ? ", no device"
                             : absl::StrCat(", ", card->device_name, ", GPU-",
                                            fabric::UuidText(card->device))));
  if (!card->trouble.empty()) {
    page->Findings({card->trouble.finding}, "why:", 4);
  }
  for (const JobOffer& offer : card->offers) {
    if (offer.usable()) continue;
    // Eight ranks with one trouble would say it eight times.
    const Finding& finding = offer.refusal.finding;
    const auto [first, is_new] = said->emplace(
        absl::StrCat(finding.id, finding.text, finding.remedy), rank);
    const std::string kind(fabric::KindName(offer.kind));
    if (is_new) {
      page->Findings({finding}, absl::StrCat(kind, ":"), 4);
    } else {
      page->Row(absl::StrCat(kind, ":"),
                absl::StrCat("as on rank ", first->second), 4);
    }
  }
}

// Row by row: who maps; column by column: whose memory.
void PrintMatrix(const JobMatrix& matrix, Page* page) {
  page->Gap();
  if (matrix.size() > kMaxColumns) {
    page->Heading("how each rank maps the memory of the others");
    for (int importer = 0; importer < matrix.size(); ++importer) {
      std::map<std::string, int> counts;
      for (int owner = 0; owner < matrix.size(); ++owner) {
        if (owner != importer) ++counts[Cell(matrix, importer, owner)];
      }
      std::string text;
      for (const auto& [cell, count] : counts) {
        absl::StrAppend(&text, text.empty() ? "" : ", ", cell, " ", count);
      }
      page->Row(absl::StrCat("rank ", importer), text);
    }
    return;
  }
  page->Heading("how a rank (row) maps the memory of another (column)");
  for (int importer = -1; importer < matrix.size(); ++importer) {
    std::string line =
        importer < 0 ? "          " : absl::StrFormat("  rank %-3d", importer);
    for (int owner = 0; owner < matrix.size(); ++owner) {
      absl::StrAppendFormat(
          &line, " %-6s",
          importer < 0 ? absl::StrCat(owner) : Cell(matrix, importer, owner));
    }
    page->Plain(line);
  }
}

// "0-3, 7". REQUIRES: ascending.
std::string Ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", ranks[i]);
    const int first = ranks[i];
    while (i + 1 < ranks.size() && ranks[i + 1] == ranks[i] + 1) ++i;
    if (ranks[i] != first) absl::StrAppend(&text, "-", ranks[i]);
  }
  return text;
}

// The pairs that cannot for the same reasons, if not in the same words: these
// name ranks and hosts.
struct Trouble {
  Finding first;                          // Of the first pair.
  std::string where;                      // That pair, when others differ.
  std::map<int, std::vector<int>> pairs;  // Owners, by importer.

  // "0-1 from 2-5; 2-5 from 0-1".
  std::string Pairs() const {
    std::vector<std::pair<std::string, std::vector<int>>> lines;
    for (const auto& [importer, owners] : pairs) {
      const std::string from = Ranges(owners);
      auto line = std::find_if(
          lines.begin(), lines.end(),
          [&from](const auto& known) { return known.first == from; });
      if (line == lines.end()) line = lines.insert(line, {from, {}});
      line->second.push_back(importer);
    }
    std::string text;
    for (const auto& [from, importers] : lines) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", Ranges(importers),
                      " from ", from);
    }
    return text;
  }
};

void PrintReasons(const JobMatrix& matrix, Page* page) {
  std::vector<Trouble> troubles;
  std::map<std::string, std::size_t> known;
  for (int importer = 0; importer < matrix.size(); ++importer) {
    for (int owner = 0; owner < matrix.size(); ++owner) {
      if (importer == owner || matrix.Chosen(importer, owner).has_value()) {
        continue;
      }
      const auto tries = matrix.Tries(importer, owner);
      if (!tries.ok() || tries->empty()) continue;
      const Finding& telling = fabric::Telling(*tries).refusal.finding;
      std::string ids = telling.remedy;
      for (const JobTry& one : *tries) {
        absl::StrAppend(&ids, ";", one.kind, one.refusal.finding.id);
      }
      const auto [place, is_new] = known.emplace(ids, troubles.size());
      if (is_new) {
        troubles.push_back(
            {{telling.id, fabric::ReasonsText(*tries), telling.remedy},
             {},
             {}});
      }
      Trouble& trouble = troubles[place->second];
      if (trouble.where.empty() &&
          trouble.first.text != fabric::ReasonsText(*tries)) {
        const auto& [first, owners] = *trouble.pairs.begin();
        trouble.where =
            absl::StrCat("of ", first, " from ", owners.front(), ": ");
      }
      trouble.pairs[importer].push_back(owner);
    }
  }
  for (const Trouble& trouble : troubles) {
    page->Gap();
    page->Row("ranks", trouble.Pairs(), 2, Ink::kBad);
    page->Row("why:", absl::StrCat(trouble.where, trouble.first.text), 4,
              Ink::kWarn);
    page->Row("to do:", trouble.first.remedy, 4);
  }
}

}  // namespace

std::string AsText(const JobReport& report) {
  const JobMatrix& matrix = report.matrix;
  Page page(/*colour=*/false);
  page.Heading(absl::StrCat("job ", report.job, ": ", matrix.size(),
                            " ranks, exchanged by ", report.exchange));
  std::map<std::string, int> said;
  for (int rank = 0; rank < matrix.size(); ++rank) {
    PrintRank(matrix, rank, &said, &page);
  }
  PrintMatrix(matrix, &page);
  PrintReasons(matrix, &page);
  page.Gap();
  const absl::Status verdict = report.Verdict();
  if (verdict.ok()) {
    page.Row("result",
             report.required.has_value()
                 ? absl::StrCat("every rank maps every other one's memory as ",
                                NameOf(*report.required))
                 : "every rank maps every other one's memory: written, read",
             2, Ink::kGood);
  } else {
    page.Row("result", verdict.message(), 2, Ink::kBad);
  }
  return std::move(page).Take();
}

}  // namespace vmm::tool
