// Every file of every corpus, through the function that libFuzzer calls.
#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_targets.h"

namespace tessera::fuzz {
namespace {

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> files;
  DIR* const dir = opendir(folder.c_str());
  if (dir == nullptr) return files;
  while (const dirent* const entry = readdir(dir)) {
    if (entry->d_name[0] != '.') files.push_back(entry->d_name);
  }
  closedir(dir);
  std::sort(files.begin(), files.end());
  return files;
}

TEST(CorpusTest, EveryFileIsReadWithoutHarm) {
  for (const Target& target : Targets()) {
    const std::string folder = absl::StrCat("tests/fuzz/corpus/", target.name);
    const std::vector<std::string> files = FilesIn(folder);
    EXPECT_GE(files.size(), 10) << folder;
    for (const std::string& name : files) {
      SCOPED_TRACE(absl::StrCat(folder, "/", name));
      std::ifstream file(absl::StrCat(folder, "/", name), std::ios::binary);
      ASSERT_TRUE(file.good());
      const std::string bytes((std::istreambuf_iterator<char>(file)),
                              std::istreambuf_iterator<char>());
      target.run(bytes);
    }
  }
}

}  // namespace
}  // namespace tessera::fuzz
