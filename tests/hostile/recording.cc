#include "tests/hostile/recording.h"

#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "tests/support/child.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::Message;

constexpr absl::Duration kWhile = absl::Seconds(60);

// Until one of them hangs up; notes what passes in `session`, if any.
void PassAllOn(Channel& from, Channel& to, Session* session,
               const platform::CancelEvent& end) {
  for (;;) {
    absl::StatusOr<Message> message = from.Receive(absl::Now() + kWhile, &end);
    // What a client said last is noted though nobody hears it any more.
    if (session != nullptr && absl::IsCancelled(message.status())) {
      message = from.Receive(absl::InfinitePast());
    }
    if (!message.ok()) return;
    if (session != nullptr) {
      session->push_back(
          {message->type, message->handles.size(), message->payload});
    }
    std::vector<const platform::OsHandle*> handles;
    handles.reserve(message->handles.size());
    for (const platform::OsHandle& each : message->handles) {
      handles.push_back(&each);
    }
    const absl::Status sent = to.Send(message->type, message->payload, handles,
                                      absl::Now() + kWhile, &end);
    if (!sent.ok() && session == nullptr) return;
  }
}

}  // namespace

Relay::Relay(const std::string& directory, std::string server)
    : server_(std::move(server)),
      listener_(Must(platform::Listener::Bind({.directory = directory}, {}))),
      end_(Must(platform::CancelEvent::Create())),
      acceptor_([this] { Serve(); }) {}

Relay::~Relay() { Finish(); }

void Relay::Serve() {
  for (;;) {
    absl::StatusOr<Channel> client =
        listener_.Accept(absl::Now() + kWhile, &end_);
    if (!client.ok()) return;
    each_.emplace_back([this, client = *std::move(client)]() mutable {
      PassOn(std::move(client));
    });
  }
}

void Relay::PassOn(Channel client) {
  Channel server = Must(Channel::Connect(server_, {}, absl::Now() + kWhile));
  const platform::CancelEvent over = Must(platform::CancelEvent::Create());
  std::thread answers([&] {
    PassAllOn(server, client, nullptr, over);
    over.Notify();
  });
  Session session;
  PassAllOn(client, server, &session, over);
  over.Notify();
  answers.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  sessions_.push_back(std::move(session));
}

std::vector<Session> Relay::Finish() {
  end_.Notify();
  if (acceptor_.joinable()) acceptor_.join();
  for (std::thread& each : each_) each.join();
  each_.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(sessions_, {});
}

void Save(const std::vector<Session>& sessions, const std::string& path) {
  std::ofstream out(path);
  for (const Session& session : sessions) {
    out << session.size() << "\n";
    for (const Recorded& each : session) {
      out << each.type << " " << each.handles << " x"
          << absl::BytesToHexString(
                 {reinterpret_cast<const char*>(each.payload.data()),
                  each.payload.size()})
          << "\n";
    }
  }
  platform::Check(out.good(), "a recording was not written");
}

std::vector<Session> Load(const std::string& path) {
  std::ifstream in(path);
  std::vector<Session> sessions;
  std::size_t count = 0;
  while (in >> count) {
    Session& session = sessions.emplace_back(count);
    for (Recorded& each : session) {
      std::string hex;
      in >> each.type >> each.handles >> hex;
      const std::string bytes = absl::HexStringToBytes(hex.substr(1));
      each.payload.assign(bytes.begin(), bytes.end());
    }
  }
  platform::Check(!sessions.empty(), "a recording is empty");
  return sessions;
}

}  // namespace vmm::testing
