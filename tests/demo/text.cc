#include "tests/demo/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::demo {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  return content.str();
}

// Index files and the like hold bytes that no text does.
bool LooksLikeText(const std::string& content) { return content.find('\0') == std::string::npos; }

uint64_t Scramble(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<std::string> ReadText(const std::string& path, int64_t min_bytes) {
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::directory_iterator(path, error)) {
      // The fortunes package has an index (.dat) and a link (.u8) next to each text.
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file(error) && !entry.is_symlink(error) &&
          !absl::EndsWith(name, ".dat")) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
  } else if (fs::exists(path, error)) {
    files.push_back(path);
  } else {
    return absl::NotFoundError(absl::StrCat("text '", path, "' does not exist"));
  }
  std::string text;
  for (const fs::path& file : files) {
    ASSIGN_OR_RETURN(const std::string content, ReadFile(file));
    if (LooksLikeText(content)) text += content;
  }
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat("text '", path, "' is empty"));
  if (static_cast<int64_t>(text.size()) < min_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("text '", path, "' is too short: ", text.size(),
                                                   " bytes, at least ", min_bytes, " are needed"));
  }
  return text;
}

std::vector<int64_t> WindowStarts(uint64_t seed, int64_t step, int rank, int count, int64_t length,
                                  int64_t text_bytes) {
  std::vector<int64_t> starts;
  uint64_t state = Scramble(Scramble(Scramble(seed) ^ static_cast<uint64_t>(step)) ^
                            static_cast<uint64_t>(rank));
  for (int i = 0; i < count; ++i) {
    state = Scramble(state);
    starts.push_back(static_cast<int64_t>(state % static_cast<uint64_t>(text_bytes - length + 1)));
  }
  return starts;
}

}  // namespace tessera::demo
