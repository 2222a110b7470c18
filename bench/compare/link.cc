#include "bench/compare/link.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace bench::compare {

using examples::ChildProcess;
using vmm::platform::Channel;
using vmm::platform::Listener;
using vmm::platform::OsHandle;

absl::StatusOr<std::unique_ptr<Link>> Link::Start(const Options& options,
                                                  int at, std::string place) {
  ASSIGN_OR_RETURN(Listener listener, Listener::Bind({}, {}));
  ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::StartSelf(
          {"--role=importer", absl::StrCat("--connect=", listener.address()),
           absl::StrCat("--driver=", options.driver),
           absl::StrCat("--device=", options.device), absl::StrCat("--at=", at),
           absl::StrCat("--slow_import=", options.slow_import_ns),
           absl::StrCat("--slow_connect=", options.slow_connect_ns)}));
  ASSIGN_OR_RETURN(Channel channel, child.Accept(listener, Deadline()));
  return std::unique_ptr<Link>(
      new Link(std::move(channel), std::move(child), std::move(place)));
}

absl::Status Link::End() {
  channel_.Close();
  return child_->Wait(Deadline());
}

absl::StatusOr<Answer> Link::Ask(MessageType type, const Writer& request) {
  RETURN_IF_ERROR(Send(channel_, type, request));
  return ReceiveAnswer(channel_);
}

absl::StatusOr<Answer> Link::Ask(MessageType type, const Route& route) {
  Writer request;
  request.Put(IndexOf(route));
  return Ask(type, request);
}

absl::StatusOr<Answer> Link::Open(const Route& route,
                                  const Introduction& owner) {
  Writer request;
  request.Put(IndexOf(route));
  request.PutBytes(owner.bytes);
  std::vector<const OsHandle*> handles;
  handles.reserve(owner.handles.size());
  for (const OsHandle& handle : owner.handles) handles.push_back(&handle);
  RETURN_IF_ERROR(channel_.Send(kOpen, request.bytes(), handles, Deadline()));
  return ReceiveAnswer(channel_);
}

}  // namespace bench::compare
