// Structs that grow at their end: a caller that was compiled with an older header knows less of one.
#ifndef TESSERA_CLIENT_C_STRUCTS_H_
#define TESSERA_CLIENT_C_STRUCTS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::c_api {

inline absl::Status CheckStructSize(size_t struct_size, absl::string_view what) {
  if (struct_size >= sizeof(size_t)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": struct_size is not set"));
}

// Fields that the caller does not know are 0. Errors: InvalidArgument  null, or no struct_size.
template <typename Struct>
absl::Status ReadStruct(const Struct* given, absl::string_view what, Struct* out) {
  *out = Struct();
  if (given == nullptr) return absl::InvalidArgumentError(absl::StrCat(what, " is null"));
  const absl::Status status = CheckStructSize(given->struct_size, what);
  if (status.ok()) memcpy(out, given, std::min(given->struct_size, sizeof(Struct)));
  return status;
}

// So much of `result` as the caller's struct has. Errors: the same.
template <typename Struct>
absl::Status WriteStruct(Struct result, absl::string_view what, Struct* out) {
  if (out == nullptr) return absl::InvalidArgumentError(absl::StrCat(what, " is null"));
  const absl::Status status = CheckStructSize(out->struct_size, what);
  result.struct_size = out->struct_size;
  if (status.ok()) memcpy(out, &result, std::min(out->struct_size, sizeof(Struct)));
  return status;
}

}  // namespace tessera::c_api

#endif  // TESSERA_CLIENT_C_STRUCTS_H_
