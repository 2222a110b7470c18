// What a keeper reads of its clients, its clients of it, and it of itself.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "tests/unit/vmm_keeper_samples.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/record.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

void CheckPrintable(absl::string_view text) {
  Check(std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a message shows bytes of a peer as they are");
}

void CheckRecord(Input bytes) {
  const absl::StatusOr<keeper::Record> record = keeper::DecodeRecord(bytes);
  if (!record.ok()) {
    Check(absl::IsInvalidArgument(record.status()) ||
              absl::IsUnimplemented(record.status()),
          "another error than documented");
    CheckPrintable(record.status().message());
    return;
  }
  Check(Input(keeper::EncodeRecord(*record)) == bytes,
        "a record is read otherwise than written");
  Check(keeper::CheckName(record->name).ok(), "a record of no name");
}

Bytes WithType(std::uint16_t type, const Bytes& payload) {
  Bytes bytes = {static_cast<std::uint8_t>(type),
                 static_cast<std::uint8_t>(type >> 8)};
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

}  // namespace

void FuzzKeeperRequest(Input input) {
  if (input.size() < 2) return;
  const auto type = static_cast<std::uint16_t>(input[0] | input[1] << 8);
  input.remove_prefix(2);
  const platform::Message message = {
      type, Bytes(input.begin(), input.end()), {}};
  const absl::StatusOr<keeper::Request> request =
      keeper::DecodeRequest(message);
  if (!request.ok()) {
    Check(absl::IsInvalidArgument(request.status()) ||
              absl::IsUnimplemented(request.status()),
          "another error than documented");
    CheckPrintable(request.status().message());
    return;
  }
  Check(
      request->type == type && Input(keeper::EncodeRequest(*request)) == input,
      "a request is read otherwise than written");
  Check(keeper::CheckName(request->name).ok() ||
            (request->name.empty() && type == keeper::kList),
        "a request for a name that there cannot be");
  Check(request->wait <= keeper::kMaxWait, "a wait that is too long");
}

void FuzzKeeperAnswer(Input input) {
  const absl::StatusOr<keeper::Attached> attached =
      keeper::DecodeAttached(input);
  if (attached.ok()) {
    Check(Input(keeper::EncodeAttached(*attached)) == input,
          "an answer is read otherwise than written");
  } else {
    Check(absl::IsDataLoss(attached.status()), "another error than documented");
  }
  const absl::StatusOr<keeper::Page> page = keeper::DecodePage(input);
  if (!page.ok()) {
    Check(absl::IsDataLoss(page.status()), "another error than documented");
    CheckPrintable(page.status().message());
    return;
  }
  Check(!page->more || !page->memory.empty(), "a list without an end");
  CheckPrintable(page->restart_note);
  for (const KeptMemory& memory : page->memory) {
    Check(keeper::CheckName(memory.name).ok(), "a name that there cannot be");
    CheckPrintable(memory.user.text());
    CheckPrintable(memory.holder.text());
    Check(NameOf(memory.state) != "unknown", "a state that there is not");
  }
}

void FuzzKeeperRecord(Input input) {
  CheckRecord(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(keeper::kRecordBytes);
  const Bytes good = keeper::EncodeRecord(testing::SampleRecord());
  std::copy_n(good.begin(), 12, whole.begin());
  testing::RepairChecksum(whole);
  CheckRecord(whole);
  const std::string name(input.begin(), input.end());
  const absl::StatusOr<keeper::StoredName> stored =
      keeper::ParseStoredName(name);
  if (stored.ok()) {
    Check(name == (stored->is_record
                       ? keeper::NameOfRecord(stored->id, stored->number)
                       : keeper::NameOfHandle(stored->id, stored->number)),
          "a name is read otherwise than written");
  } else {
    CheckPrintable(stored.status().message());
  }
}

std::vector<Entry> KeeperEntries() {
  std::vector<Bytes> requests;
  for (const keeper::Request& request : testing::SampleRequests()) {
    requests.push_back(WithType(request.type, keeper::EncodeRequest(request)));
  }
  const std::string name = keeper::NameOfHandle(0xabc, 3);
  return {{"keeper_request", &FuzzKeeperRequest, requests},
          {"keeper_answer",
           &FuzzKeeperAnswer,
           {keeper::EncodePage(testing::SamplePage()),
            keeper::EncodeAttached({.taken_over = true})}},
          {"keeper_record",
           &FuzzKeeperRecord,
           {keeper::EncodeRecord(testing::SampleRecord()),
            keeper::EncodeRecord(testing::SampleReplacingRecord()),
            Bytes(name.begin(), name.end())}}};
}

}  // namespace vmm::fuzz
