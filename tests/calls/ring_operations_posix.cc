// Rings, and memory that is sent over a connection. Two threads, of any process, meet
// at a socket; what nobody comes to is given up.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/os/process.h"
#include "tests/calls/operations.h"

namespace vmm::testing {
namespace {

constexpr int kPatienceMs = 300;

int NewSocket() { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

// Waits for whoever reads the offer; -1 where nobody comes.
int Await(Caller& caller, std::uint32_t what) {
  static std::atomic<int> count = 0;
  const std::string path =
      absl::StrCat(caller.world().directory, "/meet-",
                   platform::CurrentProcessId(), "-", ++count);
  const int listening = NewSocket();
  const sockaddr_un address = AddressOf(path);
  int met = -1;
  if (::bind(listening, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) == 0 &&
      ::listen(listening, 1) == 0) {
    Offer offer = OfferOf(path);
    offer.count = what;
    Post(caller, Offered::kMeeting, offer);
    pollfd ready = {.fd = listening, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kPatienceMs) == 1) {
      met = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    }
  }
  ::close(listening);
  ::unlink(path.c_str());
  return met;
}

int Come(const Offer& offer) {
  const int socket = NewSocket();
  const sockaddr_un address = AddressOf(offer.text.data());
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) == 0) {
    return socket;
  }
  ::close(socket);
  return -1;
}

bool HasEnded(Caller& caller, vmmshare_ring* ring) {
  vmmshare_ring_buffer next = {};
  next.struct_size = sizeof(next);
  const vmmshare_status status = caller.Do<vmmshare_ring_acquire>(
      ring, static_cast<void*>(caller.stream()), kSecond, &next);
  return status == VMMSHARE_ABORTED || status == VMMSHARE_UNAVAILABLE;
}

void UseRing(Caller& caller, Thing& thing, bool is_writer) {
  vmmshare_ring* const ring = thing.as<vmmshare_ring>();
  void* const stream = caller.stream();
  const std::int64_t timeout = 100 * kMillisecond;
  for (int i = 0; i < 6; ++i) {
    vmmshare_ring_buffer buffer = {};
    buffer.struct_size = caller.OneIn(30) ? 7 : sizeof(buffer);
    if (caller.Do<vmmshare_ring_acquire>(caller.Odd(ring), stream, timeout,
                                         &buffer) != VMMSHARE_OK) {
      continue;
    }
    if (buffer.number != ++thing.value) {
      caller.Find(absl::StrCat("a ring has item ", buffer.number,
                               " in place of ", thing.value));
    }
    const vmmshare_ring_buffer* const its = &buffer;
    std::string odd;
    Thing contents;
    contents.address = buffer.address;
    contents.size = buffer.size;
    contents.fill = static_cast<std::uint8_t>(1 + buffer.number % 255);
    if (is_writer) {
      caller.world().real->cuMemsetD8Async(contents.address, contents.fill,
                                           contents.size, caller.stream());
      buffer.tag = buffer.number * 3;
    } else {
      if (buffer.tag != buffer.number * 3) {
        caller.Find("an item of a ring has another tag");
      }
      if (caller.Do<vmmshare_ring_await>(caller.Odd(ring), its, timeout) ==
          VMMSHARE_OK) {
        odd = caller.OddByteIn(contents);
      }
    }
    if (caller.Do<vmmshare_ring_pass>(caller.Odd(ring), its, stream, timeout) !=
            VMMSHARE_OK &&
        caller.Do<vmmshare_ring_pass>(ring, its, stream, timeout) !=
            VMMSHARE_OK) {
      break;
    }
    // Whoever aborts lets the writer's stream go, which writes to it then.
    if (!odd.empty() && !HasEnded(caller, ring)) {
      caller.Find("a buffer of a ring" + odd);
    }
  }
  if (is_writer && !caller.OneIn(4)) {
    caller.Do<vmmshare_ring_finish>(caller.Odd(ring), timeout);
  }
  // Else the peer's end waits for this one, up to ten seconds.
  caller.Do<vmmshare_ring_abort>(ring);
  // No wait of the stream's is left; what it writes goes into a buffer.
  caller.world().real->cuStreamSynchronize(caller.stream());
}

ThingRef AHome(Caller& caller) {
  ThingRef home = caller.world().ring_homes.Look(caller.dice());
  if (home) return home;
  const vmmshare_device* device = caller.world().device;
  vmmshare_ring_home* made = nullptr;
  if (caller.Do<vmmshare_ring_home_create>(
          caller.Odd(device),
          static_cast<const vmmshare_pool_options*>(nullptr),
          &made) != VMMSHARE_OK) {
    return nullptr;
  }
  home = Own(made, vmmshare_ring_home_close);
  caller.world().ring_homes.Put(caller.dice(), home);
  return home;
}

// What the two ends of a meeting do, by turns: 0 the first, 1 the second.
enum What : std::uint32_t { kRing, kTransfer, kWhats };

void Write(Caller& caller, vmmshare_channel* channel) {
  const ThingRef home = AHome(caller);
  if (!home) return;
  vmmshare_ring* made = nullptr;
  const auto buffers =
      static_cast<std::uint32_t>(caller.OneIn(30) ? 0 : 1 + caller.Below(4));
  if (caller.Do<vmmshare_ring_open_writer>(
          caller.Odd(home->as<vmmshare_ring_home>()), channel, buffers,
          1 + caller.Below(70'000), kSecond, &made) == VMMSHARE_OK) {
    UseRing(caller, *Own(made, vmmshare_ring_close), /*is_writer=*/true);
  }
}

void ReadRing(Caller& caller, vmmshare_channel* channel) {
  const vmmshare_device* device = caller.world().device;
  vmmshare_ring* made = nullptr;
  if (caller.Do<vmmshare_ring_open_reader>(
          caller.Odd(device), channel,
          static_cast<std::int32_t>(caller.Below(2)), kSecond,
          &made) == VMMSHARE_OK) {
    UseRing(caller, *Own(made, vmmshare_ring_close), /*is_writer=*/false);
  }
}

void SendMemory(Caller& caller, vmmshare_channel* channel) {
  const ThingRef memory = caller.world().memory.Look(caller.dice());
  if (!memory) return;
  const vmmshare_memory* const sent[] = {memory->as<vmmshare_memory>(),
                                         memory->as<vmmshare_memory>()};
  caller.Do<vmmshare_channel_send_memory>(
      caller.Odd(channel), static_cast<const vmmshare_memory* const*>(sent),
      static_cast<std::uint32_t>(1 + caller.Below(2)), kSecond);
}

void ReceiveMemory(Caller& caller, vmmshare_channel* channel) {
  const vmmshare_driver* driver = caller.world().driver;
  const vmmshare_import_options options = AnyImportOptions(caller);
  std::array<vmmshare_memory*, 2> made{};
  const auto count = static_cast<std::uint32_t>(1 + caller.Below(2));
  if (caller.Do<vmmshare_channel_receive_memory>(caller.Odd(channel), driver,
                                                 &options, count, kSecond,
                                                 made.data()) != VMMSHARE_OK) {
    if (made[1] != nullptr) caller.Find("of two memories one came");
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) KeepImported(caller, made[i], 0);
}

void Play(Caller& caller, int socket, std::uint32_t what, bool is_first) {
  vmmshare_channel* channel = nullptr;
  if (caller.Do<vmmshare_channel_adopt>(static_cast<std::intptr_t>(socket),
                                        &channel) != VMMSHARE_OK) {
    return;
  }
  const ThingRef its = Own(channel, vmmshare_channel_close);
  if (what % kWhats == kRing) {
    return is_first ? Write(caller, channel) : ReadRing(caller, channel);
  }
  return is_first ? SendMemory(caller, channel)
                  : ReceiveMemory(caller, channel);
}

void Meet(Caller& caller) {
  if (const std::optional<Offer> offer = Read(caller, Offered::kMeeting)) {
    const int socket = Come(*offer);
    if (socket >= 0) Play(caller, socket, offer->count, /*is_first=*/false);
    return;
  }
  const auto what = static_cast<std::uint32_t>(caller.Below(kWhats));
  const int socket = Await(caller, what);
  if (socket >= 0) Play(caller, socket, what, /*is_first=*/true);
}

}  // namespace

std::vector<Operation> RingOperations() { return {{Meet, 4}}; }

}  // namespace vmm::testing
