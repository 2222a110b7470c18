#include "tests/kill/run.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/driver_faults.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

absl::Status Play(const Scene& scene, Side side, Party& me) {
  return side == Side::kOwner ? scene.owner(me) : scene.importer(me);
}

// args: where to dial, the scene, the part, the directory for channels, the
// effect, at which step, whether after it, and a file for the steps' names.
int PartyMain(const Args& args) {
  const Here here;
  DriverFaults faults;
  const platform::Driver driver = FaultyDriver(TestDriver(), &faults);
  const Device device = Must(Device::ByOrdinal(driver, 0));
  platform::Channel link = Dial(args[0]);
  platform::Channel second = Dial(args[0]);
  const Scene& scene = FindScene(args[1]);
  const Side side = args[2] == "owner" ? Side::kOwner : Side::kImporter;
  Tell(link, "here", kText);  // Says who it is.
  if (Hear(link) != "begin") return 3;
  absl::Status done;
  ArmSteps({.effect = static_cast<StepEffect>(std::stoi(args[4])),
            .nth = std::stoull(args[5]),
            .after = args[6] == "1"});
  {
    Party me(driver, device, args[3], std::move(link), std::move(second), {});
    done = Play(scene, side, me);
  }
  const std::vector<std::string> steps = DisarmSteps();
  if (args[7].empty()) return 0;
  std::ofstream(args[7]) << absl::StrJoin(steps, "\n");
  EXPECT_TRUE(done.ok()) << scene.name << ", " << args[2] << ": " << done;
  return 0;
}
const bool kParty = RegisterChild("party", &PartyMain);

Child StartParty(const std::string& address, const Case& which,
                 const std::string& directory, const StepTrap& trap,
                 const std::string& report) {
  return Child::Start(
      "party", {address, which.scene->name,
                which.victim == Side::kOwner ? "owner" : "importer", directory,
                absl::StrCat(static_cast<int>(trap.effect)),
                absl::StrCat(trap.nth), trap.after ? "1" : "0", report});
}

Side OtherOf(Side side) {
  return side == Side::kOwner ? Side::kImporter : Side::kOwner;
}

// Has a process that stops itself, or will, go on until it has ended.
class KeepGoing {
 public:
  explicit KeepGoing(Child& child)
      : child_(child), process_(Must(platform::Process::Open(child.pid()))) {}
  ~KeepGoing() { Join(); }
  void Start() {
    if (thread_.joinable()) return;
    thread_ = std::thread([this] {
      const absl::Time deadline = Late();
      do {
        // Not at random: a leak checker that stops its own process at the end
        // would be disturbed.
        if (child_.IsStopped()) child_.Continue();
      } while (
          !process_.WaitForExit(absl::Now() + absl::Milliseconds(2)).ok() &&
          absl::Now() < deadline);
    });
  }

  // Before the child is waited for: its number can be another process's then.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  Child& child_;
  const platform::Process process_;
  std::thread thread_;
};

std::set<std::string> FilesIn(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// What the library, and the host-memory driver for this test's processes, keep
// in /dev/shm. Tests that run beside this one keep folders of theirs there.
std::set<std::string> SharedFiles() {
  std::set<std::string> names;
  const char* const instance = std::getenv("VMMSHARE_HOST_INSTANCE");
  if (!std::filesystem::exists("/dev/shm")) return names;
  for (const std::string& name : FilesIn("/dev/shm")) {
    const bool of_another_test = name.starts_with("vmmshare-test-") ||
                                 name.starts_with("vmmshare-sweep-");
    if ((name.starts_with("vmmshare") && !of_another_test) ||
        (instance != nullptr && name.find(instance) != std::string::npos)) {
      names.insert(name);
    }
  }
  return names;
}

std::uint64_t FreeBytes() {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(TestDriver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

// args: the scene, and the directory for channels. Plays the owner, to an
// importer that it starts.
int PairMain(const Args& args) {
  const Here here;
  const Case which{&FindScene(args[0]), Side::kImporter};
  platform::Listener listener =
      Must(platform::Listener::Bind({.directory = args[1]}, {}));
  Child child = StartParty(listener.address(), which, args[1], {}, "");
  platform::Channel link = Must(listener.Accept(Late()));
  platform::Channel second = Must(listener.Accept(Late()));
  if (Hear(link) != "here") return 3;
  Tell(link, "begin", kText);
  absl::Status done;
  {
    Party me(TestDriver(), here.device, args[1], std::move(link),
             std::move(second), {});
    done = Play(*which.scene, Side::kOwner, me);
  }
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(child.Wait(), 0);
  return 0;
}
const bool kPair = RegisterChild("pair", &PairMain);

}  // namespace

std::string NameOf(const Case& which) {
  return absl::StrCat(which.scene->name,
                      which.victim == Side::kOwner ? "Owner" : "Importer");
}

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (const Scene& scene : Scenes()) {
    all.push_back({&scene, Side::kOwner});
    all.push_back({&scene, Side::kImporter});
  }
  return all;
}

std::vector<std::uint64_t> StepsToTry(const std::vector<std::string>& names) {
  std::vector<std::uint64_t> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "cuThreadExchangeStreamCaptureMode") seen.push_back(i);
  }
  const auto name = [&](std::size_t i) { return names[seen[i]]; };
  std::vector<std::uint64_t> tried;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const bool in_between = i >= 2 && name(i - 2) == name(i) &&
                            name(i - 1) == name(i) && i + 1 < seen.size() &&
                            name(i + 1) == name(i);
    if (!in_between) tried.push_back(seen[i]);
  }
  return tried;
}

void Tally::Add(const Played& run, const StepTrap& trap) {
  ++runs;
  if (trap.effect == StepEffect::kKill && run.victim == 0) ++too_late;
  ++outcomes[std::string(absl::StatusCodeToString(run.survivor.code()))];
  met_while_stopped += run.met_while_stopped ? 1 : 0;
  sockets += run.left.size();
  measured.deadlines_met += run.measured.deadlines_met;
  if (run.measured.slowest > measured.slowest) {
    measured.slowest = run.measured.slowest;
    measured.slowest_call = run.measured.slowest_call;
  }
  if (run.measured.latest > measured.latest) {
    measured.latest = run.measured.latest;
    measured.latest_call = run.measured.latest_call;
  }
}

void Tally::Print(const char* what, const Case& which) const {
  std::string line =
      absl::StrCat(what, ": ", which.scene->name, ", victim ",
                   which.victim == Side::kOwner ? "owner" : "importer", ": ",
                   steps, " steps, ", points, " points, ", runs, " runs");
  if (too_late != 0) absl::StrAppend(&line, " (", too_late, " too late)");
  absl::StrAppend(&line, "; the other side: ",
                  absl::StrJoin(outcomes, ", ", absl::PairFormatter(" ")),
                  "; slowest call ", absl::FormatDuration(measured.slowest),
                  " (", measured.slowest_call, ")");
  if (measured.deadlines_met != 0) {
    absl::StrAppend(&line, "; deadlines met ", measured.deadlines_met, ", ",
                    met_while_stopped,
                    " while it stood still, the latest call ",
                    absl::FormatDuration(measured.latest), " after (",
                    measured.latest_call, ")");
  }
  absl::StrAppend(&line, "; new pairs ", pairs, ", sockets left ", sockets);
  std::printf("%s\n", line.c_str());
}

std::vector<std::string> MatrixTest::CountSteps(const Case& which) {
  const std::string report = directory() + "/steps";
  const Played run = Play(which, {}, absl::Seconds(20), report);
  EXPECT_TRUE(run.survivor.ok()) << run.survivor;
  EXPECT_EQ(run.victim, 0);
  std::vector<std::string> names;
  {
    std::ifstream in(report);
    for (std::string name; std::getline(in, name);) names.push_back(name);
  }
  std::filesystem::remove(report);
  return names;
}

Played MatrixTest::RunOnce(const Case& which, const StepTrap& trap,
                           absl::Duration patience) {
  const std::set<std::string> shared = SharedFiles();
  const std::set<std::string> files = FilesIn(directory());
  const std::uint64_t free = FreeBytes();
  Played run;
  {
    // On Windows a listener takes new handles for those it has accepted at: the
    // test as a whole finds what is left.
    std::optional<ExpectNoNewHandles> no_new_handles;
    if (platform::kNativeHandleIsPosixFd) no_new_handles.emplace();
    const ExpectDriverUnchanged driver_unchanged;
    run = Play(which, trap, patience, "");
  }
  EXPECT_EQ(SharedFiles(), shared);
  // A GPU's system takes down a dead process's context a little later.
  if (OnHostMemoryDriver()) {
    EXPECT_EQ(FreeBytes(), free);
  } else {
    ExpectSoon([&] { return FreeBytes() + 8 * kGranule >= free; });
  }
  for (const std::string& name : FilesIn(directory())) {
    if (files.contains(name)) continue;
    run.left.insert(name);
    const std::filesystem::path path =
        std::filesystem::path(directory()) / name;
    // An owner that was killed cannot remove the socket it listened at.
    EXPECT_TRUE(which.victim == Side::kOwner && run.victim != 0 &&
                std::filesystem::is_socket(path))
        << path << " is left behind";
    std::filesystem::remove(path);
  }
  EXPECT_LE(run.left.size(), 1u);
  return run;
}

Played MatrixTest::Play(const Case& which, const StepTrap& trap,
                        absl::Duration patience, const std::string& report) {
  Played run;
  Child child =
      StartParty(address(), which, listener_directory(), trap, report);
  platform::Channel link = Accept();
  platform::Channel second = Accept();
  EXPECT_EQ(Hear(link), "here");
  KeepGoing keep_going(child);
  Patience how{.time = patience};
  if (trap.effect == StepEffect::kStop) {
    how.at_deadline = [&] {
      run.met_while_stopped = child.IsStopped();
      keep_going.Start();
    };
    how.at_hang_up = [&] { keep_going.Start(); };
  } else if (trap.effect == StepEffect::kHangUp) {
    how.at_hang_up = [&] { child.Kill(); };
  }
  {
    Party me(TestDriver(), device, listener_directory(), std::move(link),
             std::move(second), std::move(how));
    Tell(me.link(), "begin", kText);
    run.survivor = vmm::testing::Play(*which.scene, OtherOf(which.victim), me);
    run.measured = me.measured();
  }
  if (trap.effect == StepEffect::kStop) keep_going.Start();
  keep_going.Join();
  if (trap.effect == StepEffect::kHangUp) child.Kill();
  run.victim = child.Wait(Late());
  return run;
}

bool MatrixTest::NewPairShares(const Case& which) {
  return Child::Start("pair", {which.scene->name, listener_directory()})
             .Wait() == 0;
}

}  // namespace vmm::testing
