// Whether the environment makes sense, for who asks before it is used.
#include <cstdio>
#include <new>
#include <string>
#include <utility>

#include "platform/hostdriver/config.h"
#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/environment.h"
#include "platform/hostdriver/failures.h"
#include "platform/hostdriver/kernels.h"
#include "platform/hostdriver/misuse.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {
namespace {

thread_local bool is_checking = false;

struct Checking {
  Checking() { is_checking = true; }
  ~Checking() { is_checking = false; }
  Checking(const Checking&) = delete;
  Checking& operator=(const Checking&) = delete;
};

struct BadSetting {
  std::string text;
};

// All that is read before, or in, the first cuInit.
void ReadAll() {
  DriverVersion();
  ToldLocation({});
  Failures::Get();
  const Config config = ReadConfig();
  if (config.kernels) OpenKernels(*config.kernels);
}

}  // namespace

void BadValue(const char* name, const std::string& value,
              const std::string& expected) {
  std::string text = std::string("the environment has ") + name + "=" + value +
                     "; expected " + expected;
  if (is_checking) throw BadSetting{std::move(text)};
  Stop(text);
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

int vmmshareHostCheckSettings(char* why, std::size_t size) {
  if (CurrentPhase() != Phase::kNew) return CUDA_SUCCESS;  // It was read.
  const Checking checking;
  try {
    ReadAll();
    return CUDA_SUCCESS;
  } catch (const BadSetting& bad) {
    if (size != 0) std::snprintf(why, size, "%s", bad.text.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}
