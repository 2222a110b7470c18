#include "vmm/tool/commands.h"

#include <algorithm>
#include <iterator>

#include "platform/base/check.h"

namespace vmm::tool {
namespace {

constexpr OptionRow kHelp = {"help", "", "this text"};
constexpr OptionRow kSystem = {"driver", "system",
                               "the installed NVIDIA driver (the default)"};
constexpr OptionRow kHost = {"driver", "host",
                             "the host-memory driver, which needs no GPU"};
constexpr OptionRow kFile = {"driver", "PATH", "the driver in this file"};

constexpr absl::string_view kDoctorUses[] = {"doctor [OPTIONS]"};
constexpr OptionRow kDoctorOptions[] = {
    {"require", "KIND",
     "exit with 0 if KIND works on every device, else with 1; KIND is fd, nt "
     "or fabric. For fd and nt the sockets' folder and the machine's identity "
     "have to serve as well",
     "fd nt fabric"},
    {"json", "", "one JSON object instead of text (docs/doctor.md)"},
    {"touch", "",
     "also write and read the shared memory; this makes a context on each "
     "device, one after the other"},
    {"job", "",
     "the ranks of the job this process was launched in try each other's "
     "memory; rank 0 prints the matrix. Under mpirun, prun or srun --mpi=pmix"},
    {"timeout", "SECONDS",
     "for --job: how long to wait for the other ranks (60)"},
    kSystem,
    kHost,
    kFile,
    {"nvml", "PATH",
     "the NVML to ask, in place of the system's or, with the host-memory "
     "driver, of that driver's own"},
    {"root", "FOLDER",
     "look for /dev, /proc and /run in FOLDER, as in the root file system of a "
     "container"},
    kHelp};

constexpr absl::string_view kKeepUses[] = {"keep [OPTIONS]"};
constexpr OptionRow kKeepOptions[] = {
    {"address", "ADDRESS",
     "where it listens, an absolute path; by default keeper-UID in "
     "$NVIDIA_DRA_LOCAL_IPC_DIR, in $XDG_RUNTIME_DIR/vmmshare, or in "
     "/tmp/vmmshare-UID, which systemd's unit does not use (docs/keeper.md)"},
    {"max-names", "N", "names at once (1024)"},
    {"max-bytes", "SIZE",
     "bytes at once, with K, M, G or T behind it (no limit)"},
    {"max-connections", "N",
     "connections at once (64), half of them of one process"},
    {"quota-names", "N", "of these, names of one user (no limit)"},
    {"quota-bytes", "SIZE", "of these, bytes of one user (no limit)"},
    {"allow-user",
     "USER",
     "a uid or a user's name, on Windows a SID, beside this user; may be given "
     "more than once. Whom it allows attaches everything. A client of another "
     "user than the keeper's has to allow that one as well: here with --list "
     "and --drop, in programs by KeeperClientOptions::keepers",
     {},
     true},
    {"list", "", "print what the keeper at ADDRESS keeps, in place of serving"},
    {"json", "", "with --list: JSON instead of text (docs/keeper.md)"},
    {"drop", "NAME",
     "have it forget NAME, in place of serving; who has it attached keeps it"},
    kHelp};

constexpr absl::string_view kWeightsUses[] = {
    "weights list [OPTIONS]", "weights show|verify|drop NAME [OPTIONS]",
    "weights put NAME FILE... [OPTIONS]"};
constexpr VerbRow kWeightsVerbs[] = {
    {"list",
     "each with its generation and fingerprint, or why it cannot be opened "
     "here; without what holds no set or a damaged one, of which `show` says "
     "why"},
    {"show", "all that its manifest says"},
    {"verify",
     "reads the data and compares them with their checksums; memory of a "
     "device through a context, which is made"},
    {"drop",
     "has the keeper forget the name, whatever is under it; who has that open "
     "keeps it"},
    {"put",
     "reads safetensors files into shared memory and puts them under NAME; "
     "only in the Python package, see `python3 -m vmmshare weights put "
     "--help`"}};
constexpr OptionRow kWeightsOptions[] = {
    {"address", "ADDRESS", "the keeper's; by default this user's own"},
    {"allow-user",
     "USER",
     "list, show, verify, drop: a uid or a user's name, on Windows a SID, "
     "whose keeper it may be beside this user's; may be given more than once",
     {},
     true},
    kSystem,
    kHost,
    kFile,
    {"json", "", "list, show: JSON instead of text"},
    kHelp};

constexpr Command kCommands[] = {
    {"doctor",
     "what of sharing GPU memory works here, and why not",
     kDoctorUses,
     "Tries each way to share GPU memory on each device, and says what works, "
     "why the rest does not, and what to do. It changes nothing and leaves "
     "nothing behind but this user's folder for sockets.",
     {},
     kDoctorOptions,
     "0; 1 without a driver, or when what is required does not work, or with "
     "--job when a rank is missing or does not reach another one's memory; 2 "
     "for a command line that makes no sense. Colour only on a terminal, and "
     "not with NO_COLOR.",
     "doctor.md"},
    {"keep",
     "keep memory under names, beyond its creator's end",
     kKeepUses,
     "Keeps GPU memory under names, so that it outlives the process that "
     "created it (docs/keeper.md). Runs until SIGTERM or Ctrl-C; what is kept "
     "and attached nowhere is freed then, unless systemd stores it for the "
     "next keeper. Prints its address once it serves. It needs no GPU and "
     "loads no driver.",
     {},
     kKeepOptions,
     "0; 1 when it cannot serve, or the keeper cannot be asked or refuses; 2 "
     "for a command line that makes no sense.",
     "keeper.md"},
    {"weights", "named tensors that a keeper holds", kWeightsUses,
     "The tensor sets that a keeper holds (docs/weights.md).", kWeightsVerbs,
     kWeightsOptions,
     "0; 1 when there is no such set, it is damaged, or the keeper cannot be "
     "asked; 2 for a command line that makes no sense.",
     "weights.md"}};

constexpr OptionRow kGeneral[] = {
    {"version", "", "the version of vmmshare"},
    {"help", "", "this text; `vmmshare COMMAND --help` says more"}};

}  // namespace

absl::Span<const Command> Commands() { return kCommands; }

const Command& CommandNamed(absl::string_view name) {
  const auto* const found = std::find_if(
      std::begin(kCommands), std::end(kCommands),
      [name](const Command& command) { return command.name == name; });
  platform::Check(found != std::end(kCommands),
                  "no command of vmmshare is called so");
  return *found;
}

absl::Span<const OptionRow> GeneralOptions() { return kGeneral; }

}  // namespace vmm::tool
