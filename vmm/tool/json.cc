#include "vmm/tool/json.h"

namespace vmm::tool {

std::string JsonText(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         '\n';
}

}  // namespace vmm::tool
