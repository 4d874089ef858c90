// The signature of a request: version 4 of AWS's, over its method, URL, headers and body.
//
// libcurl makes such signatures, too, but before version 8 not right ones where a header's name
// begins with another's, as those of copies do (docs/adr/0081). Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_SIGNATURE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_SIGNATURE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/storage/s3/s3_settings.h"

namespace tessera::s3 {

// In hexadecimal digits.
std::string Sha256Hex(absl::string_view bytes);

struct SignedRequest {
  std::string method;  // "GET"
  std::string url;     // "https://host:port/path?query", escaped, its query sorted.
  // "name: value", names in lower case. All are signed.
  std::vector<std::string> headers;
  absl::string_view body;
};

// The headers to send: those that are given, the host, those that a signature needs, and it.
std::vector<std::string> SignHeaders(const SignedRequest& request, const S3Settings& settings,
                                     absl::Time now);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_SIGNATURE_H_
