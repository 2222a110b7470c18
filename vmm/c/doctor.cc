#include "vmm/c/doctor.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/status_macros.h"
#include "platform/os/standard_streams.h"
#include "platform/os/termination_scope.h"
#include "vmm/c/internal/call.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/examine.h"
#include "vmm/tool/print.h"
#include "vmm/tool/run.h"

using vmm::c::Call;
using vmm::c::CheckGiven;
using vmm::c::Clear;

namespace {

vmm::tool::Report ReportOn(const char* driver) {
  vmm::tool::DoctorOptions options;
  if (driver != nullptr) options.driver = driver;
  return vmm::tool::Examine(options);
}

}  // namespace

vmmshare_status vmmshare_doctor(const char* driver, vmmshare_text** json,
                                vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    *json = new vmmshare_text{vmm::tool::AsJson(ReportOn(driver))};
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_doctor_report(const char* driver, vmmshare_text** json,
                                       vmmshare_text** text,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    absl::Status given = Clear(json, "json");
    given.Update(Clear(text, "text"));
    RETURN_IF_ERROR(given);
    const vmm::tool::Report report = ReportOn(driver);
    // Both or none, also where the host has no memory.
    std::unique_ptr<vmmshare_text> made_json(
        new vmmshare_text{vmm::tool::AsJson(report)});
    *text = new vmmshare_text{vmm::tool::AsText(report, /*colour=*/false)};
    *json = made_json.release();
    return absl::OkStatus();
  });
}

std::int32_t vmmshare_main(std::int32_t argc, const char* const* argv) {
  std::int32_t exit_code = vmm::tool::kExitMisuse;
  vmmshare_error* error = nullptr;
  Call(&error, [&]() -> absl::Status {
    std::vector<std::string> words;
    for (std::int32_t i = 0; i < argc; ++i) {
      RETURN_IF_ERROR(CheckGiven(argv, "argv"));
      RETURN_IF_ERROR(CheckGiven(argv[i], "argv[i]"));
      words.emplace_back(argv[i]);
    }
    exit_code = vmm::tool::kExitNotUsable;
    RETURN_IF_ERROR(vmm::platform::HoldStandardStreams());
    // `keep` holds it, and the caller goes on.
    const vmm::platform::TerminationScope scope;
    exit_code = vmm::tool::Run(std::move(words));
    return absl::OkStatus();
  });
  if (error != nullptr) {
    std::fprintf(stderr, "vmmshare: error: %s\n",
                 vmmshare_error_message(error));
    vmmshare_error_free(error);
  }
  return exit_code;
}
