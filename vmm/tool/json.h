// JSON as the command prints it, and the C interface.
#ifndef VMMSHARE_VMM_TOOL_JSON_H_
#define VMMSHARE_VMM_TOOL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

namespace vmm::tool {

// A value. Objects keep the order in which members were added.
using Json = nlohmann::ordered_json;

// RFC 8259, indented, with a newline at the end. Bytes that are not UTF-8
// become U+FFFD. Of control characters, which a terminal obeys, none is as it is:
// U+007F to U+009F are escaped too.
std::string JsonText(const Json& json);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_JSON_H_
