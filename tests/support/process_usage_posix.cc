#include "tests/support/process_usage_posix.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace vmm::testing {

ProcessUsage UsageOf(std::int64_t pid) {
  const std::string process = absl::StrCat("/proc/", pid);
  ProcessUsage usage;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(process + "/fd")) {
    ++usage.descriptors;
  }
  std::ifstream status(process + "/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> usage.threads;
    if (word == "VmRSS:") {
      status >> usage.resident;
      usage.resident <<= 10;
    }
  }
  return usage;
}

}  // namespace vmm::testing
