// Opening what an endpoint serves: in this process or, over legacy IPC, in another
// one, for a process cannot open what it made.
#ifndef VMMSHARE_TESTS_IPC_OPENED_MEMORY_H_
#define VMMSHARE_TESTS_IPC_OPENED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/child.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/lease.h"

namespace vmm::testing {

// A process that opens tickets and holds what they open, as it is told. For one
// thread at a time.
class OpenerProcess {
 public:
  explicit OpenerProcess(const std::string& listener_directory);
  // What the process expected of memory and did not find fails the test here.
  ~OpenerProcess();
  OpenerProcess(const OpenerProcess&) = delete;
  OpenerProcess& operator=(const OpenerProcess&) = delete;

  // All or none; they get the numbers that are returned.
  absl::StatusOr<std::vector<std::size_t>> Open(
      absl::Span<const std::string> tickets);
  void Expect(std::size_t number, std::uint64_t seed);
  LeaseStatus Lease(std::size_t number);
  void Close(std::size_t number);

 private:
  std::string Ask(const std::string& command);

  platform::Listener listener_;
  Child child_;
  platform::Channel channel_;
};

// One of them, or an ImportedAllocation of this process. Closed on destruction.
// Move-only.
class OpenedMemory {
 public:
  explicit OpenedMemory(ImportedAllocation here) : memory_(std::move(here)) {}
  OpenedMemory(std::shared_ptr<OpenerProcess> process, std::size_t number)
      : memory_(There{std::move(process), number}) {}

  // All of it has pattern `seed`.
  void Expect(std::uint64_t seed) const;
  LeaseStatus lease() const;

 private:
  struct There {
    There(std::shared_ptr<OpenerProcess> its_process, std::size_t its_number)
        : process(std::move(its_process)), number(its_number) {}
    There(There&&) noexcept = default;
    There& operator=(There&& other) noexcept;
    ~There();
    std::shared_ptr<OpenerProcess> process;  // Null: moved from.
    std::size_t number;
  };
  std::variant<ImportedAllocation, There> memory_;
};

class OpeningTest : public IpcTest {
 protected:
  // As OpenTickets(); in another process, and for writing, over legacy IPC.
  absl::StatusOr<std::vector<OpenedMemory>> OpenAll(
      const std::vector<std::string>& tickets,
      const ImportOptions& options = {});
  absl::StatusOr<OpenedMemory> Open(const std::string& ticket,
                                    const ImportOptions& options = {});

 private:
  std::shared_ptr<OpenerProcess> process_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_OPENED_MEMORY_H_
