// Channels over named pipes whose process is refused memory: destructors need
// none.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "platform/ipc/channel.h"
#include "tests/os/win_test.h"

namespace {

// Of a thread's requests for memory.
thread_local bool refuses_all = false;

}  // namespace

void* operator new(std::size_t size) {
  void* const memory =
      refuses_all ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vmm::platform {
namespace {

class ChannelMemoryTest : public WinTest {
 protected:
  ChannelMemoryTest() {
    auto [server, client] = Must(Channel::Pair());
    server_ = std::move(server);
    client_ = std::move(client);
  }

  // Destroys an end while all memory is refused.
  static void DestroyWithoutMemory(std::optional<Channel>& channel) {
    refuses_all = true;
    channel.reset();
    refuses_all = false;
  }

  std::optional<Channel> server_;
  std::optional<Channel> client_;
};

TEST_F(ChannelMemoryTest, AServersEndIsDestroyedWithoutMemory) {
  Must(server_->Send(7, Bytes("last"), {}, Late()));
  DestroyWithoutMemory(server_);
  EXPECT_EQ(Text(Must(client_->Receive(Late())).payload), "last");
  EXPECT_TRUE(absl::IsUnavailable(client_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientsEndIsDestroyedWithoutMemory) {
  Must(client_->Send(7, Bytes("last"), {}, Late()));
  DestroyWithoutMemory(client_);
  EXPECT_EQ(Text(Must(server_->Receive(Late())).payload), "last");
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientWithUnreadMessagesIsDestroyedWithoutMemory) {
  Must(server_->Send(7, Bytes("unread"), {}, Late()));
  DestroyWithoutMemory(client_);
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()));
}

TEST_F(ChannelMemoryTest, AClientWithParkedHandlesIsDestroyedWithoutMemory) {
  const OsHandle event = NewEvent();
  for (int i = 0; i < 3; ++i) {
    Must(client_->Send(7, {}, {&event, &event}, Late()));
  }
  DestroyWithoutMemory(client_);
  EXPECT_TRUE(absl::IsUnavailable(server_->Receive(Late()).status()))
      << "handles of a client that hung up";
}

TEST_F(ChannelMemoryTest, AnEndThatIsAssignedToNeedsNoMemory) {
  auto [server, client] = Must(Channel::Pair());
  refuses_all = true;
  *server_ = std::move(server);
  *client_ = std::move(client);
  refuses_all = false;
  Must(server_->Send(7, Bytes("anew"), {}, Late()));
  EXPECT_EQ(Text(Must(client_->Receive(Late())).payload), "anew");
}

}  // namespace
}  // namespace vmm::platform
