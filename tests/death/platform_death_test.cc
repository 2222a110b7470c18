#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

TEST(CheckDeathTest, DieNamesFileLineAndMessage) {
  EXPECT_DEATH(Die("what went wrong"),
               "vmmshare: .*platform_death_test.cc:[0-9]+: what went wrong");
}

TEST(CheckDeathTest, CheckDiesOnlyWhenItDoesNotHold) {
  Check(true, "holds");
  EXPECT_DEATH(Check(false, "does not hold"), "does not hold");
}

TEST(CheckDeathTest, EndsWithAbortSoThatACoreIsWritten) {
  EXPECT_EXIT(Die("x"), ::testing::KilledBySignal(SIGABRT), "x");
}

TEST(OsHandleDeathTest, ADescriptorThatSomebodyElseClosedEndsTheProgram) {
  EXPECT_DEATH(
      {
        OsHandle handle = OsHandle::Adopt(::open("/dev/null", O_RDONLY));
        ::close(static_cast<int>(handle.get()));
        handle.Reset();
      },
      "descriptor [0-9]+ was closed by somebody who does not own it");
}

TEST(OsErrorDeathTest, ZeroIsNoError) {
  EXPECT_DEATH(OsError(0, "call()").IgnoreError(), "0 is none");
}

TEST(ProcessDeathTest, AHandleMustBeOpen) {
  EXPECT_DEATH(Process::FromHandle(OsHandle(), 1), "needs an open handle");
  EXPECT_DEATH(Process::FromHandle(std::shared_ptr<const OsHandle>(), 1),
               "needs an open handle");
}

TEST(ProcessDeathTest, AMovedFromProcessCannotBeAsked) {
  EXPECT_DEATH(
      {
        absl::StatusOr<Process> process = Process::Open(CurrentProcessId());
        Process moved = *std::move(process);
        process->HasExited().IgnoreError();
      },
      "moved from");
}

TEST(ListenerDeathTest, AMovedFromListenerCannotAccept) {
  EXPECT_DEATH(
      {
        absl::StatusOr<Listener> listener = Listener::Bind({"/tmp", ""}, {});
        { Listener moved = *std::move(listener); }
        listener->Accept(absl::InfinitePast()).IgnoreError();
      },
      "moved from");
}

TEST(CancelEventDeathTest, AMovedFromEventCannotNotify) {
  EXPECT_DEATH(
      {
        absl::StatusOr<CancelEvent> event = CancelEvent::Create();
        CancelEvent moved = *std::move(event);
        event->Notify();
      },
      "moved from");
}

}  // namespace
}  // namespace vmm::platform
