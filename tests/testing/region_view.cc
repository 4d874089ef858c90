#include "tests/testing/region_view.h"

#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "tests/testing/process_view.h"

namespace tessera::testing_support {

Mapping MapRegionOf(int pid, const std::string& label) {
  for (const auto& [number, name] : DescriptorsOf(pid)) {
    if (name != absl::StrCat("/memfd:tessera:", label, " (deleted)")) continue;
    const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    auto mapped = Mapping::CreateWhole(fd.get(), Access::kReadWrite);
    return mapped.ok() ? *std::move(mapped) : Mapping();
  }
  return Mapping();
}

std::string VersionOf(const Mapping& state, int64_t step) {
  // p v0 | p v1 | m v0 | m v1 | v v0 | v v1 | reduced
  const int64_t array_bytes = state.size_bytes() / 7;
  std::string bytes;
  for (int array = 0; array < 3; ++array) {
    bytes.append(reinterpret_cast<const char*>(state.data()) + array_bytes * (2 * array + step % 2),
                 array_bytes);
  }
  return bytes;
}

}  // namespace tessera::testing_support
