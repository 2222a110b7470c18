#include "platform/hostdriver/imex_os.h"

namespace vmm::hostdriver {

std::vector<std::uint32_t> OpenableChannels(const std::string&) { return {}; }

bool ImexDaemonRuns(const std::string&) { return false; }

std::string NetworkNamespace() { return ""; }

}  // namespace vmm::hostdriver
