#include "vmm/tool/driver_choice.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/os/surroundings.h"

namespace vmm::tool {
namespace {

using fabric::Nvml;
using platform::Driver;

// Where the host-memory driver is, seen from the folder of this program: where
// both are installed, then in the build tree. So a moved tree works.
constexpr char kPlaces[] = VMMSHARE_HOSTDRIVER_PLACES;

struct Loaded {
  std::string path;
  absl::StatusOr<Driver> driver;
};

// `path` without the folders that it leaves again. Both are UTF-8: from narrow
// strings a path of MSVC's is in the ANSI code page.
std::string Normal(const std::string& path) {
  const std::u8string normal =
      std::filesystem::path(std::u8string(path.begin(), path.end()))
          .lexically_normal()
          .u8string();
  return std::string(normal.begin(), normal.end());
}

Loaded LoadHostDriver() {
  const char* named = std::getenv("VMMSHARE_HOSTDRIVER");
  if (named != nullptr && *named != '\0') {
    absl::StatusOr<Driver> driver = Driver::LoadFrom(named);
    if (!driver.ok()) {
      // What the driver itself answers, or finds wrong in the environment,
      // another file would, too.
      const bool is_the_files =
          !platform::ResultOf(driver.status()).has_value() &&
          !absl::IsInvalidArgument(driver.status());
      driver = platform::Annotate(
          driver.status(), "--driver=host and VMMSHARE_HOSTDRIVER",
          is_the_files ? "VMMSHARE_HOSTDRIVER names this file; unset it to "
                         "have the one that was installed"
                       : "");
    }
    return {named, std::move(driver)};
  }
  absl::StatusOr<std::string> folder = platform::FolderOfProgram();
  if (!folder.ok()) return {"", folder.status()};
  std::string tried;
  for (absl::string_view place : absl::StrSplit(kPlaces, '|')) {
    const std::string path = Normal(absl::StrCat(*folder, "/", place));
    absl::StatusOr<Driver> driver = Driver::LoadFrom(path);
    if (!absl::IsNotFound(driver.status())) return {path, std::move(driver)};
    // A loaded driver that sees no device answers so too, and says more.
    if (platform::ResultOf(driver.status()).has_value()) {
      return {path, std::move(driver)};
    }
    absl::StrAppend(&tried, tried.empty() ? "" : ", ", path);
  }
  return {"", absl::NotFoundError(absl::StrCat(
                  "--driver=host: there is no host-memory driver at ", tried,
                  "; build or install it (VMMSHARE_BUILD_HOSTDRIVER=ON), or "
                  "name its file: --driver=PATH"))};
}

Loaded Load(const std::string& named) {
  if (named == "system") return {named, Driver::LoadSystem()};
  if (named == "host") return LoadHostDriver();
  return {named, Driver::LoadFrom(named)};
}

}  // namespace

absl::StatusOr<Driver> LoadDriver(const std::string& named) {
  return Load(named).driver;
}

DriverChoice ChooseDriver(const DoctorOptions& options) {
  auto [path, driver] = Load(options.driver);
  if (options.nvml.has_value()) {
    return {std::move(driver), Nvml::LoadFrom(*options.nvml), *options.nvml};
  }
  const bool stand_in = (driver.ok() && driver->is_host_memory()) ||
                        (options.driver == "host" && !path.empty());
  if (!stand_in) return {std::move(driver), Nvml::LoadSystem(), ""};
  return {std::move(driver), Nvml::LoadFrom(path), path};
}

}  // namespace vmm::tool
