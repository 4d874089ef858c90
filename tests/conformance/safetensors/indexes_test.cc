// The same indexes for our reader and for huggingface_hub, whose verdicts
// tests/reference/torch/golden holds.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Values = std::map<std::string, double>;  // Of each tensor's two elements, which are equal.

struct Case {
  std::string what, index, we_differ;  // Why, if so.
  std::string folder;                  // Where, below where the files are.
  std::map<std::string, Values> files;
  bool loads = false;
  Values values;  // If it loads.
};

// Characters below 256, in UTF-8, are bytes.
std::string FromLatin1(const std::string& utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    bytes += byte < 0x80
                 ? utf8[i]
                 : static_cast<char>((byte << 6) | (static_cast<unsigned char>(utf8[++i]) & 0x3f));
  }
  return bytes;
}

std::vector<Case> GoldenCases() {
  std::ifstream file("tests/reference/torch/golden/model_indexes.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const nlohmann::json& row : golden["cases"]) {
    Case& c = cases.emplace_back();
    c.what = row["what"];
    c.index = FromLatin1(row["index"]);
    c.we_differ = row.value("we_differ", "");
    c.folder = row["folder"];
    c.files = row["files"].get<std::map<std::string, Values>>();
    c.loads = !row["huggingface_hub"].is_null();
    if (c.loads) c.values = row["huggingface_hub"].get<Values>();
  }
  return cases;
}

std::string FileOf(const Values& tensors) {
  std::string header = "{", data;
  for (const auto& [name, value] : tensors) {
    absl::StrAppend(&header, header == "{" ? "" : ",", "\"", name,
                    R"(":{"dtype":"F32","shape":[2],"data_offsets":[)", data.size(), ",",
                    data.size() + 8, "]}");
    const float elements[2] = {static_cast<float>(value), static_cast<float>(value)};
    data.append(reinterpret_cast<const char*>(elements), sizeof(elements));
  }
  header += "}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + data;
}

// The folder of the case, in a new one of the test's.
std::string WriteOut(const Case& c) {
  std::string outer = testing::TempDir() + "/index-XXXXXX";
  outer = mkdtemp(outer.data());
  const auto write = [&outer](const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = absl::StrCat(outer, "/", name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  };
  for (const auto& [name, tensors] : c.files) write(name, FileOf(tensors));
  const std::string folder = absl::StrCat(outer, "/", c.folder);
  write(absl::StrCat(c.folder, "/model.safetensors.index.json"), c.index);
  return folder;
}

absl::StatusOr<Values> WeLoad(const Case& c) {
  ASSIGN_OR_RETURN(const auto model, OpenModel(WriteOut(c)));
  Values values;
  for (const auto& [name, info] : model->tensors()) {
    float elements[2] = {};
    RETURN_IF_ERROR(model->ReadSlice(name, 0, absl::MakeSpan(elements)));
    EXPECT_EQ(elements[0], elements[1]);
    values[name] = elements[0];
  }
  return values;
}

TEST(IndexesConformanceTest, IndexesAreTakenAndRefusedAsByHuggingfaceHubUnlessItIsSaidWhyNot) {
  std::set<std::string> whats;
  int num_loaded = 0, num_refused = 0, num_different = 0;
  for (const Case& c : GoldenCases()) {
    SCOPED_TRACE(absl::StrCat(c.what, ": ", c.index));
    EXPECT_TRUE(whats.insert(c.what).second) << "two cases of one name";
    const absl::StatusOr<Values> ours = WeLoad(c);
    if (!c.we_differ.empty()) {
      ++num_different;
      EXPECT_NE(ours.ok(), c.loads) << "we do not differ, though it is said: " << c.we_differ;
    } else if (c.loads) {
      ++num_loaded;
      EXPECT_TRUE(ours.ok()) << ours.status();
      if (ours.ok()) {
        EXPECT_EQ(*ours, c.values);
      }
    } else {
      ++num_refused;
      EXPECT_FALSE(ours.ok());
    }
  }
  EXPECT_GE(num_loaded, 20);
  EXPECT_GE(num_refused, 30);
  EXPECT_GE(num_different, 15);
}

}  // namespace
}  // namespace tessera
