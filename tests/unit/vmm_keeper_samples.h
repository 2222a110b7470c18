// What a keeper is sent, answers and writes down, for tests.
#ifndef VMMSHARE_TESTS_UNIT_VMM_KEEPER_SAMPLES_H_
#define VMMSHARE_TESTS_UNIT_VMM_KEEPER_SAMPLES_H_

#include <string>
#include <vector>

#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/record.h"

namespace vmm::testing {

// One of each type, and the fields that it may have.
inline std::vector<keeper::Request> SampleRequests() {
  using keeper::kAbandon, keeper::kAttach, keeper::kAttachOrCreate,
      keeper::kDrop, keeper::kList, keeper::kLock, keeper::kMaxName,
      keeper::kMaxWait, keeper::kPut, keeper::kReplace, keeper::kSeal,
      keeper::kUnlock;
  return {{.type = kPut, .name = "a/b-c_d.e", .ticket = SampleTicket()},
          {.type = kAttach, .name = "n", .read_write = true, .size = 7},
          {.type = kAttachOrCreate,
           .name = std::string(kMaxName, 'x'),
           .read_write = true,
           .until_sealed = true,
           .size = 1ull << 40,
           .wait = absl::Milliseconds(1500)},
          {.type = kAbandon, .name = "n"},
          {.type = kLock, .name = "n", .wait = kMaxWait},
          {.type = kUnlock, .name = "n"},
          {.type = kSeal, .name = "n"},
          {.type = kDrop, .name = "n"},
          {.type = kReplace, .name = "n", .ticket = SampleTicket()},
          {.type = kReplace,
           .name = "n",
           .ticket = SampleTicket(),
           .replaces = SampleTicket().id},
          {.type = kList},
          {.type = kList, .name = "after"}};
}

inline keeper::Page SamplePage() {
  KeptMemory a;
  a.name = "a";
  a.state = KeptState::kLocked;
  a.user = platform::UserId("1000");
  a.pid = 12;
  a.holder = platform::UserId("1001");
  a.holder_pid = 13;
  a.since = absl::FromUnixMicros(1'700'000'000'123'456);
  a.size = 100;
  a.allocated_size = 1 << 21;
  a.chunks = 1;
  a.attached = 9;
  a.device.bytes.fill(0x42);
  a.host_numa_node = 1;
  a.survives_restart = true;
  KeptMemory b;
  b.name = "b";
  b.user = platform::UserId("S-1-5-18");
  return {.more = true, .restart_note = "not kept", .memory = {a, b}};
}

inline keeper::Record SampleRecord() {
  keeper::Record record;
  record.id = 0x1234;
  record.revision = 2;
  record.sealed = true;
  record.name = "llama/tp-0";
  record.user = platform::UserId("1000");
  record.pid = 4321;
  record.since = absl::FromUnixMicros(1'700'000'000'123'456);
  record.ticket = SampleTicket();
  return record;
}

// Of an entry that has replaced another one.
inline keeper::Record SampleReplacingRecord() {
  keeper::Record record = SampleRecord();
  record.revision = 1;
  record.replaces = 0x4321;
  return record;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_VMM_KEEPER_SAMPLES_H_
