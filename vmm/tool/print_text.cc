// A Report for people: see print.h.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/page.h"
#include "vmm/tool/print.h"
#include "vmm/tool/print_parts.h"

namespace vmm::tool {
namespace {

using fabric::Finding;

// Why one of the facts of a pair is not known.
std::string Unknown(absl::string_view what, const absl::Status& why) {
  return absl::StrCat(what, " unknown (", why.message(), ")");
}

// "peer access both ways" and the like, of two directions.
std::string Directions(absl::string_view what, const PairReport& pair,
                       const absl::StatusOr<bool>& ab,
                       const absl::StatusOr<bool>& ba) {
  if (!ab.ok()) return Unknown(what, ab.status());
  if (!ba.ok()) return Unknown(what, ba.status());
  if (*ab && *ba) return absl::StrCat(what, " both ways");
  if (!*ab && !*ba) return absl::StrCat("no ", what);
  return absl::StrCat(what, " of ", *ab ? pair.a : pair.b, " to ",
                      *ab ? pair.b : pair.a, " only");
}

void PrintPairs(const Report& report, Page* page) {
  if (report.pairs.empty()) return;
  page->Gap();
  page->Heading("pairs of devices");
  for (const PairReport& pair : report.pairs) {
    std::vector<std::string> parts = {
        Directions("peer access", pair, pair.access_ab, pair.access_ba),
        Directions("atomics", pair, pair.atomics_ab, pair.atomics_ba)};
    if (pair.nvlink.ok()) {
      parts.push_back(*pair.nvlink ? "NVLink" : "no NVLink");
    } else if (!report.topology.nvml.ok()) {
      parts.push_back("NVLink unknown");  // Above it says why there is no NVML.
    } else {
      parts.push_back(Unknown("NVLink", pair.nvlink.status()));
    }
    if (pair.performance_rank.ok()) {
      parts.push_back(absl::StrCat("rank ", *pair.performance_rank));
    } else {
      parts.push_back(Unknown("rank", pair.performance_rank.status()));
    }
    if (pair.one_domain.has_value()) {
      parts.push_back(*pair.one_domain ? "one fabric domain"
                                       : "not in one fabric domain");
    }
    page->Row(absl::StrCat(pair.a, " and ", pair.b),
              absl::StrJoin(parts, ", "));
  }
}

void PrintImex(const fabric::ImexTopology& imex, Page* page) {
  if (absl::IsUnimplemented(imex.major.status())) return;  // Windows.
  page->Gap();
  page->Heading("IMEX (for fabric handles only)");
  page->Row("driver", Known(imex.major, [](std::optional<unsigned> major) {
              return major.has_value()
                         ? absl::StrCat("offers channels, major ", *major)
                         : std::string("offers no channels");
            }));
  if (!imex.channels.ok()) {
    page->Row("channels", std::string(imex.channels.status().message()));
  } else if (imex.channels->empty()) {
    page->Row("channels", "none");
  } else {
    for (const platform::ImexChannel& channel : *imex.channels) {
      page->Row(channel.number.has_value()
                    ? absl::StrCat("channel ", *channel.number)
                    : "channel",
                absl::StrFormat(
                    "%s, mode %04o, owner %s, %s", channel.path, channel.mode,
                    channel.owner.text(),
                    channel.usable ? "usable" : channel.reason.message()));
    }
  }
  page->Row("daemon", Known(imex.daemon_seen, [](bool seen) {
              return seen ? "nvidia-imex is running"
                          : "no process nvidia-imex is visible here";
            }));
}

void PrintNotes(const std::vector<Finding>& notes, Page* page) {
  if (notes.empty()) return;
  page->Gap();
  page->Heading("notes");
  page->Findings(notes, "note:", 2);
}

void PrintSummary(const Report& report, Page* page) {
  if (report.devices.empty()) return;
  page->Gap();
  for (const KindReport& first : report.devices.front().kinds) {
    const HandleKind kind = first.kind;
    const std::vector<int> without = report.WithoutKind(kind);
    const bool required = report.required == kind;
    // That of another operating system says nothing.
    if (!first.offered && !required) continue;
    const bool works = without.empty();
    const absl::string_view note =
        required ? report.NoteAgainst(kind) : absl::string_view();
    const bool good = works && note.empty();
    std::string text = absl::StrCat(
        "works ", works ? "on every device"
                        : (without.size() == report.devices.size()
                               ? "on no device"
                               : absl::StrCat("not on device ",
                                              absl::StrJoin(without, ", "))));
    if (!note.empty()) {
      absl::StrAppend(&text, ", and reaches no peer: see the note ", note);
    }
    if (required) absl::StrAppend(&text, "; it is required");
    page->MarkedRow(NameOf(kind), good ? "usable" : "refused",
                    good ? Ink::kGood : Ink::kBad, text);
  }
}

}  // namespace

std::string AsText(const Report& report, bool colour) {
  Page page(colour);
  page.Row("driver:",
           report.driver.ok()
               ? report.driver->Describe()
               : absl::StrCat("none: ", report.driver.status().message()),
           0, report.driver.ok() ? Ink::kPlain : Ink::kBad);
  page.Row("NVML:",
           !report.topology.nvml.ok()
               ? "cannot be asked (see notes)"
               : Known(report.topology.driver_version,
                       [](const std::string& version) {
                         return absl::StrCat("driver package ", version);
                       }),
           0);
  if (!report.devices_status.ok()) {
    page.Row("devices:", report.devices_status.message(), 0, Ink::kBad);
  }
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    PrintDevice(report, i, &page);
  }
  PrintPairs(report, &page);
  PrintImex(report.topology.imex, &page);
  PrintLimits(report, &page);
  PrintNotes(report.notes, &page);
  PrintSummary(report, &page);
  return std::move(page).Take();
}

}  // namespace vmm::tool
