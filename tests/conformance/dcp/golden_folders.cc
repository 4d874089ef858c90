#include "tests/conformance/dcp/golden_folders.h"

#include <stdlib.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace tessera::testing_support {

std::string GoldenFolder::WriteOut() const {
  std::string folder = "/tmp/tessera-dcp-XXXXXX";
  folder = mkdtemp(folder.data());
  for (const auto& [name, bytes] : files)
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
  return folder;
}

GoldenFolder ReadGoldenFolder(const std::string& name) {
  std::ifstream file("tests/reference/torch/golden/dcp_folders.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  GoldenFolder folder;
  for (const nlohmann::json& row : golden["folders"]) {
    if (row["name"] != name) continue;
    for (const auto& [file_name, base64] : row["files"].items())
      absl::Base64Unescape(base64.get<std::string>(), &folder.files[file_name]);
    for (const auto& [tensor, holds] : row["tensors"].items()) {
      folder.tensors[tensor] = {holds["dtype"], holds["shape"],
                                holds.value("values", std::vector<double>())};
    }
  }
  return folder;
}

}  // namespace tessera::testing_support
