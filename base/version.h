// Which Tessera this is.
#ifndef TESSERA_BASE_VERSION_H_
#define TESSERA_BASE_VERSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr char kVersion[] = "0.1.0";
// Of what processes of one cluster say to each other and keep in shared memory. To be raised with
// each change after which an older process would misunderstand a newer one, or the reverse.
inline constexpr int kProtocol = 7;

// "Tessera 0.1.0, protocol 2".
inline std::string DescribeVersion(absl::string_view version, int protocol) {
  return absl::StrCat("Tessera ", version, ", protocol ", protocol);
}

// Whether this process and `who`, which reports its own version, understand each other.
// Errors: FailedPrecondition  they do not: names both
inline absl::Status CheckVersion(absl::string_view who, absl::string_view version, int protocol) {
  if (protocol == kProtocol) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      who, " is ", DescribeVersion(version, protocol), "; this is ",
      DescribeVersion(kVersion, kProtocol), ": install the same version on both sides"));
}

}  // namespace tessera

#endif  // TESSERA_BASE_VERSION_H_
