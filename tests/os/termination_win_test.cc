// Consoles that ask a program to end. Wine sends no such event without a display,
// so the tests call what Windows would.
#include "platform/os/termination_win.h"

#include <gtest/gtest.h>
#include <windows.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "platform/os/termination.h"
#include "tests/support/child.h"
#include "tests/support/must.h"

namespace vmm::platform {
namespace {

using testing::Child;
using testing::Late;

// Puts things in order when it is asked to end by the event `args[0]`, and is
// ended when that has been handled, as Windows does when a console is closed.
int Orderly(const std::vector<std::string>& args) {
  HoldTermination();
  std::thread([event = static_cast<std::uint32_t>(std::stoul(args[0]))] {
    OnConsoleEvent(event);
    ::TerminateProcess(::GetCurrentProcess(), 3);
  }).detach();
  if (!WaitForTermination(Late()).ok()) return 1;
  ::Sleep(300);  // What is put in order takes a while.
  return 0;
}
const bool kOrderly = testing::RegisterChild("orderly", &Orderly);

TEST(Termination, IsInOrderWhenTheConsoleIsClosed) {
  for (const DWORD event : {CTRL_CLOSE_EVENT, CTRL_SHUTDOWN_EVENT}) {
    Child child = Child::Start("orderly", {std::to_string(event)});
    EXPECT_EQ(child.Wait(), 0) << event;
  }
}

// A service, which Windows tells of every user who logs off.
int Staying(const std::vector<std::string>& /*args*/) {
  static std::atomic<bool> handled = false;
  HoldTermination();
  std::thread([] { handled = OnConsoleEvent(CTRL_LOGOFF_EVENT); }).detach();
  const Deadline deadline = Late();
  while (!handled && !deadline.Passed()) {
    if (WaitForTermination(Deadline::In(absl::Milliseconds(5))).ok()) return 1;
  }
  if (!handled) return 2;
  return absl::IsDeadlineExceeded(WaitForTermination(absl::InfinitePast())) ? 0
                                                                            : 3;
}
const bool kStaying = testing::RegisterChild("staying", &Staying);

TEST(Termination, IsNotAskedForWhenAUserLogsOff) {
  EXPECT_EQ(Child::Start("staying", {}).Wait(), 0);
}

TEST(Termination, IsAskedForByControlC) {
  HoldTermination();
  EXPECT_TRUE(OnConsoleEvent(CTRL_C_EVENT));
  EXPECT_TRUE(WaitForTermination(Late()).ok());
}

}  // namespace
}  // namespace vmm::platform
