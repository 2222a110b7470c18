#include "platform/ipc/speaker_posix.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/peer_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

// <sys/socket.h> has these names only in newer C libraries.
constexpr int kSoPassPidfd = 76;
constexpr int kScmPidfd = 4;

absl::Status SwitchOn(const OsHandle& socket, int option,
                      absl::string_view name) {
  const int on = 1;
  if (::setsockopt(Fd(socket), SOL_SOCKET, option, &on, sizeof(on)) != 0) {
    return LastError().Of(
        absl::StrCat("setsockopt(", socket.get(), ", ", name, ")"));
  }
  return absl::OkStatus();
}

template <typename T>
T DataOf(cmsghdr& control) {
  T data{};
  std::memcpy(&data, CMSG_DATA(&control), sizeof(data));
  return data;
}

// The time since the system's start, by the clock of /proc.
absl::Duration Uptime() {
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  return absl::DurationFromTimespec(up);
}

// Of /proc.
absl::Duration Tick() { return absl::Seconds(1) / ::sysconf(_SC_CLK_TCK); }

// Clock ticks from the system's start to `time`.
std::uint64_t TicksAt(absl::Time time) {
  absl::Duration rest;
  return static_cast<std::uint64_t>(
      absl::IDivDuration(time - TimeOfStart(), Tick(), &rest));
}

// When the process that has this number now was started, in the same ticks. Its
// first thread was, then: the process' own file says the same, but qemu-user 7.2
// writes that of its own program itself, with the start of the thread that asks.
absl::StatusOr<std::uint64_t> StartOf(std::int64_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/task/", pid, "/stat");
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  // The program's name is in parentheses and may hold anything, these too.
  const std::size_t name_end = text.rfind(')');
  constexpr std::size_t kStart = 22 - 2;  // The 22nd word; the name is the 2nd.
  const std::vector<absl::string_view> words = absl::StrSplit(
      absl::string_view(text).substr(std::min(name_end, text.size())), ' ');
  std::uint64_t start = 0;
  if (words.size() <= kStart || !absl::SimpleAtoi(words[kStart], &start)) {
    return absl::UnimplementedError(
        absl::StrCat(path, " does not say when the process was started"));
  }
  return start;
}

absl::Status EndedError(const Speaker& speaker) {
  return absl::NotFoundError(
      absl::StrCat("the peer, ", Describe(speaker.credentials), ", has ended"));
}

// By its number, which may have gone to another process since.
absl::StatusOr<Process> OpenByNumber(const Speaker& speaker) {
  const std::int64_t pid = speaker.credentials.pid;
  if (pid <= 0 || !speaker.sent.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        "this kernel attaches no reference to its sender to a message "
        "(SCM_PIDFD, Linux 6.5), and ",
        pid <= 0 ? "the peer's process id is hidden from this namespace"
                 : "does not say when it was sent"));
  }
  absl::StatusOr<Process> process = Process::Open(pid);
  if (absl::IsNotFound(process.status())) return EndedError(speaker);
  RETURN_IF_ERROR(process.status());
  // A process that lived when the message was sent had the number then.
  const absl::StatusOr<std::uint64_t> start = StartOf(pid);
  ASSIGN_OR_RETURN(const bool exited, process->HasExited());
  if (exited) return EndedError(speaker);
  if (absl::IsNotFound(start.status()) ||
      absl::IsPermissionDenied(start.status()) ||
      absl::IsUnimplemented(start.status())) {  // It is hidden (hidepid).
    return absl::UnimplementedError(absl::StrCat(
        "whether process ", pid,
        " is the peer cannot be told: ", start.status().message()));
  }
  RETURN_IF_ERROR(start.status());
  const std::uint64_t or_sent = speaker.or_sent.value_or(*speaker.sent);
  if (*start > std::max(*speaker.sent, or_sent)) return EndedError(speaker);
  if (*start > std::min(*speaker.sent, or_sent)) {
    return absl::UnimplementedError(absl::StrCat(
        "whether process ", pid,
        " had that number when the message was sent "
        "cannot be told: the time of day was set meanwhile, and this kernel "
        "attaches no reference to its sender (SCM_PIDFD, Linux 6.5)"));
  }
  return process;
}

}  // namespace

absl::Status AskWhoSpeaks(const OsHandle& socket) {
  RETURN_IF_ERROR(SwitchOn(socket, SO_PASSCRED, "SO_PASSCRED"));
  absl::Status pidfds = SwitchOn(socket, kSoPassPidfd, "SO_PASSPIDFD");
  if (!absl::IsUnimplemented(pidfds)) return pidfds;
  // Where there is not even that, OpenSpeaker() says so to whom it matters.
  absl::Status times = SwitchOn(socket, SO_TIMESTAMP, "SO_TIMESTAMP");
  return absl::IsUnimplemented(times) ? absl::OkStatus() : times;
}

absl::Time TimeOfStart() {
  const absl::Duration tick = Tick();
  absl::Duration up;
  absl::Time now;
  // Whoever stood still between the two clocks would be that much off, and take
  // a peer that has just been started for another process.
  do {
    up = Uptime();
    // Not absl::Now(), which may go on by the processor's counter for a moment
    // after the clock was set.
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    now = absl::TimeFromTimespec(time);
  } while (Uptime() - up > tick);
  return now - up;
}

void DoubtWhenItWasSent(absl::Time start, Speaker& speaker) {
  if (!speaker.sent.has_value()) return;
  // Each of the two is up to a tick off. Both clocks run alike, also where the
  // time of day is corrected little by little.
  const absl::Duration set = TimeOfStart() - start;
  if (absl::AbsDuration(set) <= 2 * Tick()) return;
  // `sent` was reckoned by the clock of now.
  absl::Duration rest;
  const std::int64_t by_the_clock_before =
      static_cast<std::int64_t>(*speaker.sent) +
      absl::IDivDuration(set, Tick(), &rest);
  speaker.or_sent = static_cast<std::uint64_t>(
      std::max<std::int64_t>(by_the_clock_before, 0));
}

bool TakeSpeaker(cmsghdr& control, Speaker& speaker) {
  if (control.cmsg_level != SOL_SOCKET) return false;
  const std::size_t size = control.cmsg_len - CMSG_LEN(0);
  if (control.cmsg_type == SCM_CREDENTIALS && size == sizeof(ucred)) {
    const auto about = DataOf<ucred>(control);
    speaker.credentials = {UserId(absl::StrCat(about.uid)), about.pid};
    return true;
  }
  if (control.cmsg_type == kScmPidfd && size == sizeof(int)) {
    const auto fd = DataOf<int>(control);  // Negative: an error's number.
    OsHandle process = AdoptDescriptor(fd);
    if (process.has_value()) {
      speaker.process = std::make_shared<const OsHandle>(std::move(process));
    } else {
      speaker.no_process = fd < 0 ? -fd : errno;
    }
    return true;
  }
  if (control.cmsg_type == SCM_TIMESTAMP && size == sizeof(timeval)) {
    speaker.sent = TicksAt(absl::TimeFromTimeval(DataOf<timeval>(control)));
    return true;
  }
  return false;
}

absl::Status ReadProcessFile(Speaker& speaker) {
  if (speaker.process == nullptr) return absl::OkStatus();
  struct stat about {};
  if (::fstat(Fd(*speaker.process), &about) != 0) {
    return LastError().Of("fstat(pidfd of the peer)");
  }
  speaker.process_file = about.st_ino;
  return absl::OkStatus();
}

bool IsSameProcess(const Speaker& a, const Speaker& b) {
  return a.credentials.pid == b.credentials.pid &&
         a.credentials.user == b.credentials.user &&
         (a.process_file == b.process_file || a.process_file == 0 ||
          b.process_file == 0);
}

absl::StatusOr<Process> OpenSpeaker(const Speaker& speaker) {
  if (speaker.process != nullptr) {
    return Process::FromHandle(speaker.process, speaker.credentials.pid);
  }
  switch (speaker.no_process) {
    case ENOPROTOOPT:
      return OpenByNumber(speaker);
    case ESRCH:
    case EINVAL:  // Of Linux before 6.16.
      return EndedError(speaker);
    default:
      return OsError(speaker.no_process,
                     absl::StrCat("receiving a reference to the peer, ",
                                  Describe(speaker.credentials), ","));
  }
}

}  // namespace vmm::platform
