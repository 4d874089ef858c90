// The same DCP folders for our reader and for PyTorch's, whose verdicts
// tests/reference/torch/golden holds.
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

struct Case {
  std::string what, we_differ;  // Why, if so.
  bool loads = false;
  std::vector<float> values;  // If it loads.
  std::string folder;         // Where, below where the files are.
  std::map<std::string, std::string> files;
};

std::vector<Case> GoldenCases() {
  std::ifstream file("tests/reference/torch/golden/dcp_verdicts.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const nlohmann::json& row : golden["cases"]) {
    Case& c = cases.emplace_back();
    c.what = row["what"];
    c.we_differ = row.value("we_differ", "");
    c.loads = row["loads"];
    c.values = row.value("values", std::vector<float>());
    c.folder = row["folder"];
    for (const auto& [name, number] : row["files"].items()) {
      const std::string base64 = golden["contents"][number.get<size_t>()];
      EXPECT_TRUE(absl::Base64Unescape(base64, &c.files[name]));
    }
  }
  return cases;
}

// The folder of the case, in a new one of the test's.
std::string WriteOut(const Case& c) {
  std::string outer = testing::TempDir() + "/dcp-XXXXXX";
  outer = mkdtemp(outer.data());
  const std::string folder = absl::StrCat(outer, "/", c.folder);
  mkdir(folder.c_str(), 0755);
  for (const auto& [name, bytes] : c.files)
    std::ofstream(absl::StrCat(outer, "/", name), std::ios::binary) << bytes;
  return folder;
}

// All that the reference was asked for: the tensor "w".
absl::StatusOr<std::vector<float>> WeLoad(const Case& c) {
  ASSIGN_OR_RETURN(const auto model, OpenModel(WriteOut(c)));
  const auto tensor = model->tensors().find("w");
  if (tensor == model->tensors().end()) return absl::NotFoundError("no tensor 'w'");
  int64_t numel = 1;
  for (const int64_t size : tensor->second.shape) numel *= size;
  std::vector<float> values(numel);
  RETURN_IF_ERROR(model->ReadSlice("w", 0, absl::MakeSpan(values)));
  return values;
}

TEST(DcpVerdictsTest, FoldersAreTakenAndRefusedAsByPyTorchUnlessItIsSaidWhyNot) {
  const std::vector<Case> cases = GoldenCases();
  std::set<std::string> whats;
  int num_loaded = 0, num_refused = 0, num_different = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_TRUE(whats.insert(c.what).second) << "two cases of one name";
    const absl::StatusOr<std::vector<float>> ours = WeLoad(c);
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
  EXPECT_GE(num_loaded, 30);
  EXPECT_GE(num_refused, 30);
  EXPECT_GE(num_different, 30);
}

// Whatever the reasons are, none of them is to take what PyTorch refuses.
TEST(DcpVerdictsTest, NothingIsTakenThatPyTorchRefuses) {
  for (const Case& c : GoldenCases()) {
    if (c.loads) continue;
    EXPECT_FALSE(WeLoad(c).ok()) << c.what;
  }
}

}  // namespace
}  // namespace tessera
