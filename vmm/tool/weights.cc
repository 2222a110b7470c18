#include "vmm/tool/weights.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/driver_choice.h"
#include "vmm/tool/json.h"
#include "vmm/tool/printable.h"
#include "vmm/tool/say.h"

namespace vmm::tool {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

std::string Line(const std::string& name, const TensorManifest& manifest) {
  return absl::StrFormat(
      "%s\n  generation %d, %d tensors, %d bytes of data%s\n", name,
      manifest.generation, manifest.tensors.size(), manifest.data_bytes,
      manifest.fingerprint.empty()
          ? ""
          : absl::StrCat("\n  fingerprint ", manifest.fingerprint));
}

// Memory of the host is the CPU's to read too.
ImportOptions ForReading() { return {.host_access = Access::kRead}; }

// Whether memory that was read holds no set, one of another version, or a damaged
// one; `show` says which.
bool IsNoSet(const absl::Status& opened) {
  if (platform::ResultOf(opened).has_value()) return false;
  switch (opened.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:  // Past a limit of sets.
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

class Listed {
 public:
  void Add(const KeptMemory& kept, const TensorManifest& manifest) {
    absl::StrAppend(&text_, Line(kept.name, manifest));
    Json one = Json::object();
    one["name"] = kept.name;
    one["generation"] = manifest.generation;
    one["fingerprint"] = manifest.fingerprint;
    one["nbytes"] = kept.size;
    one["count"] = manifest.tensors.size();
    all_.push_back(std::move(one));
  }
  void AddUnopened(const KeptMemory& kept, const absl::Status& why) {
    absl::StrAppend(&text_, kept.name,
                    "\n  cannot be opened here: ", Masked(why.message()), "\n");
    Json one = Json::object();
    one["name"] = kept.name;
    one["nbytes"] = kept.size;
    one["error"] = std::string(why.message());
    all_.push_back(std::move(one));
  }
  std::string Text(bool json) const {
    if (json) return JsonText(all_);
    return text_.empty() ? "no tensor set is kept\n" : text_;
  }

 private:
  std::string text_;
  Json all_ = Json::array();
};

absl::StatusOr<std::string> List(KeeperClient& keeper,
                                 const platform::Driver& driver, bool json,
                                 Deadline deadline) {
  ASSIGN_OR_RETURN(const KeeperListing listing, keeper.List(deadline));
  Listed listed;
  for (const KeptMemory& kept : listing.memory) {
    if (kept.state != KeptState::kSealed) continue;
    const absl::StatusOr<ImportedAllocation> memory =
        keeper.Attach(kept.name, driver, {.import = ForReading()}, deadline);
    if (!memory.ok()) {
      if (!keeper.is_open()) return memory.status();
      // Else it was dropped meanwhile.
      if (!absl::IsNotFound(memory.status())) {
        listed.AddUnopened(kept, memory.status());
      }
      continue;
    }
    const absl::StatusOr<TensorSet> set =
        TensorSet::Open(driver, memory->address(), memory->requested_size());
    if (set.ok()) {
      listed.Add(kept, set->manifest());
    } else if (!IsNoSet(set.status())) {
      listed.AddUnopened(kept, set.status());
    }
  }
  return listed.Text(json);
}

absl::StatusOr<std::string> Answer(const WeightsOptions& options) {
  const Deadline deadline = Deadline::In(kPatience);
  ASSIGN_OR_RETURN(
      KeeperClient keeper,
      KeeperClient::Connect({.address = options.address,
                             .keepers = {.also_allowed = options.allowed}},
                            deadline));
  if (options.verb == "drop") {
    RETURN_IF_ERROR(keeper.Drop(options.name, deadline));
    return std::string();
  }
  ASSIGN_OR_RETURN(const platform::Driver driver, LoadDriver(options.driver));
  if (options.verb == "list") {
    return List(keeper, driver, options.json, deadline);
  }
  ASSIGN_OR_RETURN(const KeptTensorSet kept,
                   AttachTensorSet(keeper, options.name, driver,
                                   {.import = ForReading()}, deadline));
  const TensorManifest& manifest = kept.set.manifest();
  if (options.verb == "show") {
    return options.json ? AsJson(options.name, manifest)
                        : AsText(options.name, manifest);
  }
  ASSIGN_OR_RETURN(const std::size_t compared, kept.set.Verify());
  return absl::StrCat(options.name, ": ", compared, " of ",
                      manifest.tensors.size(),
                      " tensors have a checksum, and it is right\n");
}

}  // namespace

std::string AsText(const std::string& name, const TensorManifest& manifest) {
  std::string text = Line(name, manifest);
  for (const auto& [key, value] : manifest.metadata) {
    absl::StrAppend(&text, "  ", key, ": ", Escaped(value), "\n");
  }
  for (const TensorInfo& tensor : manifest.tensors) {
    absl::StrAppendFormat(
        &text, "  %12d %-13s [%s] %s%s\n", tensor.offset, NameOf(tensor.dtype),
        absl::StrJoin(tensor.shape, ", "), tensor.name,
        tensor.alias_of.has_value()
            ? absl::StrCat(", in ", manifest.tensors[*tensor.alias_of].name)
            : "");
  }
  return text;
}

std::string AsJson(const std::string& name, const TensorManifest& manifest) {
  Json all = Json::object();
  all["name"] = name;
  all["generation"] = manifest.generation;
  all["fingerprint"] = manifest.fingerprint;
  // In one piece: a member more is looked for among all that are there.
  all["metadata"] = manifest.metadata;
  Json tensors = Json::array();
  for (const TensorInfo& tensor : manifest.tensors) {
    Json one = Json::object();
    one["name"] = tensor.name;
    one["dtype"] = NameOf(tensor.dtype);
    one["shape"] = tensor.shape;
    one["strides"] = tensor.strides;
    one["offset"] = tensor.offset;
    one["nbytes"] = tensor.extent();
    one["alias_of"] = tensor.alias_of.has_value()
                          ? Json(manifest.tensors[*tensor.alias_of].name)
                          : Json();
    one["checksum"] =
        tensor.checksum.has_value() ? Json(*tensor.checksum) : Json();
    tensors.push_back(std::move(one));
  }
  all["tensors"] = std::move(tensors);
  return JsonText(all);
}

absl::StatusOr<WeightsOptions> ParseWeightsOptions(
    const std::vector<std::string>& words) {
  WeightsOptions options;
  auto next = words.begin();
  if (next != words.end() && !absl::StartsWith(*next, "-")) {
    options.verb = *next++;
  }
  if (options.verb == "put") {  // Its files and options are not looked at here.
    options.help = std::any_of(next, words.end(), [](const std::string& word) {
      return word == "--help" || word == "-h";
    });
    if (options.help) return options;
    return absl::InvalidArgumentError(
        "`weights put` reads safetensors files, and is a command of the Python "
        "package: `python3 -m vmmshare weights put`");
  }
  const Command& command = CommandNamed("weights");
  ASSIGN_OR_RETURN(
      const std::vector<Option> given,
      ParseOptions({next, words.end()}, command.options,
                   options.verb == "list" ? nullptr : &options.name));
  for (const auto& [name, value] : given) {
    options.json |= name == "json";
    options.help |= name == "help";
    if (name == "address") options.address = value;
    if (name == "driver") options.driver = value;
    if (name == "allow-user") {
      ASSIGN_OR_RETURN(options.allowed.emplace_back(), AllowedUser(value));
    }
  }
  if (options.help) return options;
  if (absl::c_none_of(command.verbs, [&options](const VerbRow& verb) {
        return verb.name == options.verb;
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights \"", options.verb,
                     "\": expected list, show, verify, drop or put"));
  }
  if (options.verb == "list") return options;
  if (absl::Status usable = keeper::CheckName(options.name); !usable.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights ", options.verb, ": ", usable.message()));
  }
  if (options.json && options.verb != "show") {
    return absl::InvalidArgumentError(
        absl::StrCat("weights ", options.verb,
                     ": --json is for list and show, as nothing else is told"));
  }
  return options;
}

int Weights(const WeightsOptions& options) {
  absl::StatusOr<std::string> answer = Answer(options);
  if (answer.ok() && !Say(stdout, *answer)) {
    answer = absl::UnknownError("standard output could not be written");
  }
  return answer.ok() ? kExitGood : Fail(answer.status().message());
}

}  // namespace vmm::tool
