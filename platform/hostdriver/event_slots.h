// Events that several processes share: slots in a file of the process that
// made them.
//
// Per-OS: event_slots_posix.cc keeps the files in /dev/shm. A process locks
// its file as long as it lives, so that others can tell the files of the dead,
// in whatever PID namespace, and remove them; what it forks has neither the file
// nor the lock. event_slots_win.cc keeps them in sections with a name.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_SLOTS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_SLOTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace vmm::hostdriver {

// An event is complete when `completed` has reached `recorded`. All zero bytes
// are a free slot that was never used.
struct EventSlot {
  std::atomic<std::uint64_t> generation;  // Odd while an event lives here.
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class EventFile {
 public:
  // Measured: a process can make 4,096 interprocess events.
  static constexpr std::uint32_t kSlots = 4096;

  // Makes the file of this process. Null when the system does not let us.
  static std::shared_ptr<EventFile> Make(const std::string& instance);
  // Opens the file of another process. Null when there is none.
  static std::shared_ptr<EventFile> Open(const std::string& instance,
                                         std::uint64_t id);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  std::uint64_t id() const { return id_; }
  // REQUIRES: index < kSlots.
  EventSlot& slot(std::uint32_t index) const { return slots_[index]; }
  // Removes the file's name; who has opened it keeps it. Of an own file only.
  void Unlink();
  // Whether the process that made the file lives. Of an opened file only.
  bool MakerLives() const;

 private:
  EventFile(std::intptr_t file, std::uint64_t id, EventSlot* slots,
            std::string path, std::intptr_t life = 0)
      : file_(file),
        id_(id),
        slots_(slots),
        path_(std::move(path)),
        life_(life) {}

  std::intptr_t file_;
  std::uint64_t id_;
  EventSlot* slots_;
  // POSIX: removed at the end; empty for an opened file. Windows: the section's
  // name.
  std::string path_;
  // Windows: open as long as the maker of the file lives.
  [[maybe_unused]] std::intptr_t life_;
};

// Removes the files that this user's processes left behind when killed, of
// every instance.
void RemoveDeadEventFiles();

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_EVENT_SLOTS_H_
