// vmmshare: the command-line tool.
#include <string>
#include <vector>

#include "platform/os/standard_streams.h"
#include "vmm/tool/run.h"

int main(int argc, char** argv) {
  vmm::platform::SurviveBrokenOutputs();
  return vmm::tool::Run(
      std::vector<std::string>(argv + (argc > 0), argv + argc));
}
