#include "tests/conformance/dcp/golden_folders.h"

#include <stdlib.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::testing_support {

std::string GoldenFolder::WriteOut() const {
  std::string folder = testing::TempDir() + "/dcp-XXXXXX";  // Which goes with the test.
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

namespace {

void ReplaceAll(const std::string& from, const std::string& to, std::string* in) {
  for (size_t at = in->find(from); at != std::string::npos; at = in->find(from, at + to.size()))
    in->replace(at, from.size(), to);
}

// A text of a pickle: protocol 4's, as metadata has them, and protocol 2's, as objects.
std::string ShortText(const std::string& text) {
  return std::string("\x8c") + static_cast<char>(text.size()) + text;
}
std::string LongText(const std::string& text) {
  return std::string("X") + static_cast<char>(text.size()) + std::string(3, '\0') + text;
}

}  // namespace

void PutIds(const std::map<std::string, int>& ids, GoldenFolder* folder) {
  for (const auto& [name, id] : ids) {
    for (const char* moment : {"step", "exp_avg", "exp_avg_sq", "momentum_buffer"}) {
      const std::string text = absl::StrCat("optim.state.", name, ".", moment);
      ReplaceAll(ShortText(text), ShortText(absl::StrCat("optim.state.", id, ".", moment)),
                 &folder->files[".metadata"]);
    }
    // A number as long as the text was, so that all stays in its place: the same protocol opcode is
    // repeated after it.
    const std::string text = LongText(name);
    std::string number = std::string("\x8a\x01") + static_cast<char>(id);
    while (number.size() < text.size()) number += "\x80\x02";
    for (auto& [file, bytes] : folder->files) {
      if (file != ".metadata") ReplaceAll(text, number, &bytes);
    }
  }
}

}  // namespace tessera::testing_support
