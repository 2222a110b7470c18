// The file workflow: three programs that know of each other only a file.
//
//   file_ticket main   /tmp/values.ticket     in one terminal; it waits
//   file_ticket memory /tmp/values.ticket     in another
//   file_ticket rtc    /tmp/values.ticket     and then this
//
// `main` allocates integers, sets each to 1 and writes a ticket file. `memory`
// opens the ticket and writes 8 into each. `rtc` opens it and launches a
// kernel, compiled by the driver at run time, that adds 3 to each. After every
// visit `main` shows the values: 8, then 11. It ends after `rtc`. A file that
// is there when it starts it removes first.
//
//   --driver=host        without a GPU; there the kernel is skipped
//   --size=1K            bytes, of `main` (1K)
//   --device=N           the GPU that allocates, or opens (0)
//   --timeout=SECONDS    bounds every wait together (60)
//
// The file has two lines: the ticket, and the address at which `main` listens
// for "I am done". Neither gives access to the memory by itself: whoever opens
// the ticket must be a process of the same user.
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "docs/examples/bytes.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(examples::Bytes, size, {1024}, "bytes");

namespace {

using examples::Print;
using examples::TextMessage;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

// Messages of this program. Payload of both: text for people.
constexpr std::uint16_t kDone = 1;     // The values were changed.
constexpr std::uint16_t kSkipped = 2;  // They were not, and why.
constexpr std::uint16_t kSeen = 3;     // The answer of `main`.

// Adds `amount` to each of `count` 32-bit integers at `values`. Text that the
// driver compiles for the GPU it finds; nvcc writes such text with --ptx.
constexpr char kAddKernel[] = R"(
.version 6.4
.target sm_60
.address_size 64
.visible .entry add(.param .u64 values, .param .u64 count, .param .u32 amount)
{
  .reg .pred %past_end;
  .reg .b32 %block, %threads, %thread, %value, %amount;
  .reg .b64 %values, %count, %index, %offset;
  ld.param.u64 %values, [values];
  ld.param.u64 %count, [count];
  ld.param.u32 %amount, [amount];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %index, %thread;
  mad.wide.u32 %index, %block, %threads, %index;
  setp.ge.u64 %past_end, %index, %count;
  @%past_end ret;
  cvta.to.global.u64 %values, %values;
  shl.b64 %offset, %index, 2;
  add.u64 %values, %values, %offset;
  ld.global.u32 %value, [%values];
  add.u32 %value, %value, %amount;
  st.global.u32 [%values], %value;
  ret;
}
)";

struct TicketFile {
  std::string ticket;   // Share::ticket().
  std::string address;  // Listener::address() of `main`.
};

// Whoever sees the file sees all of it: it is renamed into place.
absl::Status WriteTicketFile(const std::string& path, const TicketFile& file) {
  const std::string unfinished = absl::StrCat(path, ".unfinished");
  std::ofstream out(unfinished, std::ios::trunc);
  out << file.ticket << "\n" << file.address << "\n";
  out.close();
  if (!out) {
    return absl::UnavailableError(absl::StrCat("cannot write ", unfinished));
  }
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "cannot rename ", unfinished, " to ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

// Removes what a `main` that was killed has left behind: who waits for a file
// would open the ticket of one that is gone.
absl::Status RemoveOldTicketFile(const std::string& path) {
  std::error_code error;
  // A folder is left alone, even an empty one; writing says what it is.
  if (std::filesystem::is_directory(path, error)) return absl::OkStatus();
  std::filesystem::remove(path, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot remove the old ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TicketFile> ReadTicketFile(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    return absl::NotFoundError(absl::StrCat(
        "cannot read ", path, "; start this first: file_ticket main ", path));
  }
  TicketFile file;
  std::getline(in, file.ticket);
  std::getline(in, file.address);
  return file;
}

// Prints the first values. An error when they are not all the same.
absl::Status Show(const Driver& driver, const vmm::Allocation& memory,
                  absl::string_view after) {
  std::vector<std::int32_t> values(memory.requested_size() /
                                   sizeof(std::int32_t));
  if (CUresult r = driver->cuMemcpyDtoH(values.data(), memory.address(),
                                        values.size() * sizeof(values[0]));
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemcpyDtoH()");
  }
  const auto other = std::find_if(
      values.begin(), values.end(),
      [&values](std::int32_t value) { return value != values[0]; });
  if (other != values.end()) {
    return absl::DataLossError(absl::StrCat(
        "after ", after, ", value ", other - values.begin(), " of ",
        values.size(), " is ", *other, "; value 0 is ", values[0]));
  }
  const auto first = absl::MakeConstSpan(values).subspan(0, 8);
  Print(absl::StrCat("main: after ", after, ": ", absl::StrJoin(first, " "),
                     " ... (all ", values.size(), " values are ", values[0],
                     ")"));
  return absl::OkStatus();
}

absl::Status Main(const vmm::Device& device, const std::string& path,
                  absl::Time deadline) {
  const Driver& driver = device.driver();
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  if (size < 1024 || size % sizeof(std::int32_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--size=", size, ": expected at least 1024, a multiple of 4"));
  }
  absl::StatusOr<vmm::Allocation> memory =
      vmm::Allocation::Create(device, {.size = size});
  if (!memory.ok()) return memory.status();
  if (CUresult r = driver->cuMemsetD32(memory->address(), 1,
                                       size / sizeof(std::int32_t));
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemsetD32(1)");
  }
  absl::Status shown = Show(driver, *memory, "allocating");
  if (!shown.ok()) return shown;

  absl::StatusOr<std::unique_ptr<vmm::Endpoint>> endpoint =
      vmm::Endpoint::Start({});
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<vmm::Share> published =
      (*endpoint)->Publish(memory->shareable());
  if (!published.ok()) return published.status();
  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  absl::Status written =
      WriteTicketFile(path, {published->ticket(), listener->address()});
  if (!written.ok()) return written;
  const absl::Cleanup remove_file = [&path] {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  };
  Print(absl::StrCat("main: the ticket is in ", path));

  for (std::string visitor; visitor != "rtc";) {
    absl::StatusOr<Channel> channel = listener->Accept(deadline);
    if (!channel.ok()) return channel.status();
    absl::StatusOr<TextMessage> message = examples::Hear(*channel, deadline);
    if (!message.ok()) return message.status();
    visitor = message->text.substr(0, message->text.find(' '));
    if (message->type == kSkipped) {
      Print(absl::StrCat("main: ", visitor, " skipped its step"));
    }
    shown = Show(driver, *memory, visitor);
    if (!shown.ok()) return shown;
    absl::Status answered = examples::Say(*channel, {kSeen, ""}, deadline);
    if (!answered.ok()) return answered;
  }
  return absl::OkStatus();
}

// Writes 8 into each integer.
absl::Status WriteEight(const Driver& driver,
                        const vmm::ImportedAllocation& memory) {
  if (CUresult r = driver->cuMemsetD32(
          memory.address(), 8, memory.requested_size() / sizeof(std::int32_t));
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemsetD32(8)");
  }
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

// Adds 3 to each integer, with a kernel.
absl::Status AddThree(const Driver& driver,
                      const vmm::ImportedAllocation& memory) {
  CUmodule module = nullptr;
  if (CUresult r = driver->cuModuleLoadData(&module, kAddKernel);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuModuleLoadData(add)");
  }
  const absl::Cleanup unload = [&] { driver->cuModuleUnload(module); };
  CUfunction add = nullptr;
  if (CUresult r = driver->cuModuleGetFunction(&add, module, "add");
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuModuleGetFunction(add)");
  }
  constexpr unsigned kThreads = 256;
  CUdeviceptr values = memory.address();
  std::uint64_t count = memory.requested_size() / sizeof(std::int32_t);
  std::uint32_t amount = 3;
  void* arguments[] = {&values, &count, &amount};
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (CUresult r = driver->cuLaunchKernel(add, blocks, 1, 1, kThreads, 1, 1, 0,
                                          nullptr, arguments, nullptr);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuLaunchKernel(add)");
  }
  return driver.Error(driver->cuCtxSynchronize(),
                      "cuCtxSynchronize() after the kernel");
}

// `memory` and `rtc`: opens the ticket, changes the values, tells `main`.
absl::Status Visit(const vmm::Device& device, const std::string& mode,
                   const std::string& path, absl::Time deadline) {
  const Driver& driver = device.driver();
  absl::StatusOr<TicketFile> file = ReadTicketFile(path);
  if (!file.ok()) return file.status();
  // The default is read-only; both modes write. Naming the device makes it
  // work, too, where this process does not see the one that `main` used.
  absl::StatusOr<vmm::ImportedAllocation> memory = vmm::OpenTicket(
      driver, file->ticket,
      {.grants = {{vmm::Location::On(device), vmm::Access::kReadWrite}}},
      deadline);
  if (!memory.ok()) return memory.status();

  std::uint16_t outcome = kDone;
  std::string text = absl::StrCat(mode, " wrote the values");
  if (mode == "memory") {
    absl::Status changed = WriteEight(driver, *memory);
    if (!changed.ok()) return changed;
  } else if (!driver.is_host_memory()) {
    absl::Status changed = AddThree(driver, *memory);
    if (!changed.ok()) return changed;
  } else {
    outcome = kSkipped;
    text = absl::StrCat(mode, " needs a GPU for its kernel");
  }
  Print(absl::StrCat(mode, ": ", outcome == kSkipped ? "skipped: " : "", text));

  absl::StatusOr<Channel> channel =
      Channel::Connect(file->address, {}, deadline);
  if (!channel.ok()) return channel.status();
  absl::Status told = examples::Say(*channel, {outcome, text}, deadline);
  if (!told.ok()) return told;
  return examples::Hear(*channel, deadline).status();
}

absl::Status Run(int argc, char** argv) {
  const std::vector<std::string> words = examples::ParseCommandLine(argc, argv);
  if (words.size() != 2 ||
      (words[0] != "main" && words[0] != "memory" && words[0] != "rtc")) {
    return absl::InvalidArgumentError(
        "usage: file_ticket main|memory|rtc FILE [--driver=host]");
  }
  // Before all else, which takes time and may fail.
  if (words[0] == "main") {
    absl::Status removed = RemoveOldTicketFile(words[1]);
    if (!removed.ok()) return removed;
  }
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  Print(absl::StrCat(words[0], ": driver: ", driver->Describe()));

  absl::StatusOr<vmm::Device> device =
      vmm::Device::ByOrdinal(*driver, absl::GetFlag(FLAGS_device));
  if (!device.ok()) return device.status();
  // Fills and kernels need a context; sharing does not.
  absl::StatusOr<vmm::PrimaryContext> context =
      vmm::PrimaryContext::Retain(*device);
  if (!context.ok()) return context.status();
  absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
  if (!current.ok()) return current.status();

  return words[0] == "main" ? Main(*device, words[1], deadline)
                            : Visit(*device, words[0], words[1], deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("file_ticket", Run(argc, argv));
}
