#include "bench/compare/wire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace bench::compare {

using vmm::platform::Channel;
using vmm::platform::Message;

absl::Status Send(Channel& channel, MessageType type, const Writer& writer) {
  return channel.Send(type, writer.bytes(), {}, Deadline());
}

absl::Status SendAnswer(Channel& channel, const absl::Status& status,
                        const Answer& answer) {
  Writer writer;
  writer.Put(static_cast<std::uint32_t>(status.code()));
  writer.PutText(status.message().substr(0, 2000));
  writer.Put<Figures>(answer);
  // What fits; the rest differs in nothing from it.
  const std::size_t lots = std::min<std::size_t>(answer.lots.size(), 3500);
  writer.Put(static_cast<std::uint32_t>(lots));
  for (std::size_t i = 0; i < lots; ++i) writer.Put(answer.lots[i]);
  return Send(channel, kAnswer, writer);
}

absl::StatusOr<Answer> ReceiveAnswer(Channel& channel) {
  ASSIGN_OR_RETURN(Message message, channel.Receive(Deadline()));
  Reader reader(message.payload);
  const auto code = static_cast<absl::StatusCode>(reader.Get<std::uint32_t>());
  const std::string text = reader.GetText();
  Answer answer;
  static_cast<Figures&>(answer) = reader.Get<Figures>();
  const auto lots = reader.Get<std::uint32_t>();
  for (std::uint32_t i = 0; reader.ok() && i < lots; ++i) {
    answer.lots.push_back(reader.Get<double>());
  }
  if (message.type != kAnswer || !reader.ok()) {
    return absl::InternalError(absl::StrCat("message ", message.type, " of ",
                                            message.payload.size(),
                                            " bytes came; expected an answer"));
  }
  if (code != absl::StatusCode::kOk) {
    return absl::Status(code, absl::StrCat("the importer: ", text));
  }
  return answer;
}

}  // namespace bench::compare
