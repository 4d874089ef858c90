#include "checkpoint/manifest/relative_path.h"

#include "absl/strings/str_split.h"

namespace tessera {

bool StaysInFolder(absl::string_view path) {
  // The system would end the name there.
  if (path.find('\0') != absl::string_view::npos) return false;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace tessera
