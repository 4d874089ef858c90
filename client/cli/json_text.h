// JSON as commands print it: two spaces a level, and a line's end. Bytes that are not UTF-8, as a
// path may have, are replaced. Pure.
#ifndef TESSERA_CLIENT_CLI_JSON_TEXT_H_
#define TESSERA_CLIENT_CLI_JSON_TEXT_H_

#include <string>

#include "nlohmann/json.hpp"

namespace tessera::cli {

inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}
// Escaped to ASCII: for texts that come from a server and may be shown on a terminal.
inline std::string AsciiJsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JSON_TEXT_H_
