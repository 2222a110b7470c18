#include "tests/ipc/opened_memory.h"

#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

std::string Words(const absl::Status& status) {
  return absl::StrCat(status.raw_code(), " ", status.message());
}

// What is left of `words` is a status.
absl::Status StatusFrom(std::istringstream& words) {
  int code = 0;
  words >> code >> std::ws;
  std::string message;
  std::getline(words, message, '\0');
  return {static_cast<absl::StatusCode>(code), message};
}

class Opener {
 public:
  std::string Do(const std::string& command) {
    std::istringstream words(command);
    std::string what;
    words >> what;
    if (what == "open") return Open(words);
    std::size_t number = 0;
    words >> number;
    const ImportedAllocation& memory = open_.at(number);
    if (what == "lease") {
      const LeaseStatus status = memory.lease();
      return absl::StrCat(
          status.return_by ? absl::ToUnixNanos(*status.return_by) : 0, " ",
          Words(status.connection));
    }
    if (what == "close") {
      open_.erase(number);
      return "OK";
    }
    std::uint64_t seed = 0;
    words >> seed;
    platform::Check(what == "expect", "an opener was told something else");
    ExpectPattern(memory.address(), memory.requested_size(), seed);
    return "OK";
  }

 private:
  std::string Open(std::istringstream& words) {
    std::vector<std::string> tickets;
    for (std::string ticket; words >> ticket;) tickets.push_back(ticket);
    auto opened = OpenTickets(TestDriver(), tickets, Readable(), Late());
    if (!opened.ok()) return Words(opened.status());
    std::string numbers = Words(absl::OkStatus());
    for (ImportedAllocation& one : *opened) {
      absl::StrAppend(&numbers, " ", next_);
      open_.emplace(next_++, std::move(one));
    }
    return numbers;
  }

  const Here here_;
  std::map<std::size_t, ImportedAllocation> open_;
  std::size_t next_ = 0;
};

// args: the address to dial. Ends when that hangs up.
int OpenAsTold(const std::vector<std::string>& args) {
  Opener opener;
  platform::Channel channel = Dial(args[0]);
  for (;;) {
    const absl::StatusOr<platform::Message> message =
        channel.Receive(absl::InfiniteFuture());
    if (!message.ok()) break;
    Tell(channel,
         opener.Do(
             std::string(message->payload.begin(), message->payload.end())),
         kText);
  }
  return 0;
}
const bool kOpenAsTold = RegisterChild("open-as-told", &OpenAsTold);

}  // namespace

OpenerProcess::OpenerProcess(const std::string& listener_directory)
    : listener_(Must(
          platform::Listener::Bind({.directory = listener_directory}, {}))),
      child_(Child::Start("open-as-told", {listener_.address()})),
      channel_(Must(listener_.Accept(Late()))) {}

OpenerProcess::~OpenerProcess() {
  channel_.Close();
  EXPECT_EQ(child_.Wait(), 0);
}

std::string OpenerProcess::Ask(const std::string& command) {
  Tell(channel_, command, kText);
  return Hear(channel_);
}

absl::StatusOr<std::vector<std::size_t>> OpenerProcess::Open(
    absl::Span<const std::string> tickets) {
  std::istringstream answer(
      Ask(absl::StrCat("open ", absl::StrJoin(tickets, " "))));
  int code = 0;
  answer >> code;
  if (code != 0) {
    answer.seekg(0);
    return StatusFrom(answer);
  }
  std::vector<std::size_t> numbers;
  for (std::size_t number = 0; answer >> number;) numbers.push_back(number);
  EXPECT_EQ(numbers.size(), tickets.size());
  return numbers;
}

void OpenerProcess::Expect(std::size_t number, std::uint64_t seed) {
  EXPECT_EQ(Ask(absl::StrCat("expect ", number, " ", seed)), "OK");
}

LeaseStatus OpenerProcess::Lease(std::size_t number) {
  std::istringstream answer(Ask(absl::StrCat("lease ", number)));
  std::int64_t return_by = 0;
  answer >> return_by;
  LeaseStatus status;
  status.connection = StatusFrom(answer);
  if (return_by != 0) status.return_by = absl::FromUnixNanos(return_by);
  return status;
}

void OpenerProcess::Close(std::size_t number) {
  EXPECT_EQ(Ask(absl::StrCat("close ", number)), "OK");
}

OpenedMemory::There& OpenedMemory::There::operator=(There&& other) noexcept {
  if (this != &other) {
    if (process != nullptr) process->Close(number);
    process = std::move(other.process);
    number = other.number;
  }
  return *this;
}

OpenedMemory::There::~There() {
  if (process != nullptr) process->Close(number);
}

void OpenedMemory::Expect(std::uint64_t seed) const {
  if (const auto* there = std::get_if<There>(&memory_)) {
    return there->process->Expect(there->number, seed);
  }
  const auto& here = std::get<ImportedAllocation>(memory_);
  ExpectPattern(here.address(), here.requested_size(), seed);
}

LeaseStatus OpenedMemory::lease() const {
  const auto* there = std::get_if<There>(&memory_);
  return there != nullptr ? there->process->Lease(there->number)
                          : std::get<ImportedAllocation>(memory_).lease();
}

absl::StatusOr<std::vector<OpenedMemory>> OpeningTest::OpenAll(
    const std::vector<std::string>& tickets, const ImportOptions& options) {
  std::vector<OpenedMemory> all;
  if (!IsTestOfLegacyIpc()) {
    auto opened = OpenTickets(driver(), tickets, options, Late());
    if (!opened.ok()) return opened.status();
    for (ImportedAllocation& one : *opened) all.emplace_back(std::move(one));
    return all;
  }
  if (process_ == nullptr) {
    process_ = std::make_shared<OpenerProcess>(listener_directory());
  }
  const auto numbers = process_->Open(tickets);
  if (!numbers.ok()) return numbers.status();
  for (const std::size_t number : *numbers) all.emplace_back(process_, number);
  return all;
}

absl::StatusOr<OpenedMemory> OpeningTest::Open(const std::string& ticket,
                                               const ImportOptions& options) {
  auto opened = OpenAll({ticket}, options);
  if (!opened.ok()) return opened.status();
  return std::move(opened->front());
}

}  // namespace vmm::testing
