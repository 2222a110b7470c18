// The slots are in a section with a name, beside an object that only the maker
// has open: while that exists, the maker lives.
#include <windows.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "platform/hostdriver/event_slots.h"
#include "platform/hostdriver/object_names_win.h"

namespace vmm::hostdriver {
namespace {

constexpr std::size_t kBytes = EventFile::kSlots * sizeof(EventSlot);

std::string NameOf(const std::string& instance, const std::string& digits) {
  return "vmmhost1-events." + instance + "." + digits;
}

EventSlot* MapSlots(HANDLE section) {
  return static_cast<EventSlot*>(
      MapViewOfFile(section, FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, kBytes));
}

}  // namespace

std::shared_ptr<EventFile> EventFile::Make(const std::string& instance) {
  const std::string digits = RandomDigits();
  if (digits.empty()) return nullptr;
  const std::string name = NameOf(instance, digits);
  const HANDLE life =
      CreateEventW(nullptr, TRUE, FALSE, LocalName(name + ".life").c_str());
  if (life == nullptr) return nullptr;
  const HANDLE section =
      CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE, 0,
                         kBytes, LocalName(name).c_str());
  EventSlot* const slots = section == nullptr ? nullptr : MapSlots(section);
  if (slots == nullptr) {
    if (section != nullptr) CloseHandle(section);
    CloseHandle(life);
    return nullptr;
  }
  return std::shared_ptr<EventFile>(
      new EventFile(reinterpret_cast<std::intptr_t>(section),
                    std::strtoull(digits.c_str(), nullptr, 16), slots, name,
                    reinterpret_cast<std::intptr_t>(life)));
}

std::shared_ptr<EventFile> EventFile::Open(const std::string& instance,
                                           std::uint64_t id) {
  char digits[20];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, id);
  const std::string name = NameOf(instance, digits);
  const HANDLE section = OpenFileMappingW(FILE_MAP_READ | FILE_MAP_WRITE, FALSE,
                                          LocalName(name).c_str());
  if (section == nullptr) return nullptr;
  EventSlot* const slots = MapSlots(section);
  if (slots == nullptr) {
    CloseHandle(section);
    return nullptr;
  }
  return std::shared_ptr<EventFile>(new EventFile(
      reinterpret_cast<std::intptr_t>(section), id, slots, name, 0));
}

EventFile::~EventFile() {
  UnmapViewOfFile(slots_);
  CloseHandle(reinterpret_cast<HANDLE>(file_));
  if (life_ != 0) CloseHandle(reinterpret_cast<HANDLE>(life_));
}

bool EventFile::MakerLives() const {
  const HANDLE life =
      OpenEventW(SYNCHRONIZE, FALSE, LocalName(path_ + ".life").c_str());
  if (life == nullptr) return false;
  CloseHandle(life);
  return true;
}

// A section without handles is gone by itself.
void EventFile::Unlink() {}
void RemoveDeadEventFiles() {}

}  // namespace vmm::hostdriver
