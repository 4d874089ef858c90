// One signed request to an object store and its answer, or what became of it. It is not repeated
// here (s3_client.h does that). Thread-safe: connections are pooled, one exchange at a time each.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_HTTP_EXCHANGE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_HTTP_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "checkpoint/storage/s3/s3_settings.h"

namespace tessera::s3 {

enum class Method { kGet, kHead, kPut, kPost, kDelete };

struct HttpRequest {
  Method method = Method::kGet;
  std::string url;                   // Escaped.
  std::vector<std::string> headers;  // "name: value", names in lower case.
  absl::string_view body;            // Not owned.
  // Where the body of a success goes, which then has exactly this size; empty: to `body` of the
  // answer, up to kMaxBodyBytes.
  absl::Span<char> into;
  absl::Duration timeout;
  // A connection that carries next to nothing for so long is given up.
  absl::Duration most_silence = absl::Seconds(20);
};

inline constexpr size_t kMaxBodyBytes = 8 << 20;

struct HttpAnswer {
  int status = 0;  // 0: none came.
  // Why no whole answer came; "" if one did. Whether to ask again can help then.
  std::string failure;
  bool is_transient = false;
  std::map<std::string, std::string> headers;  // By names in lower case.
  std::string body;

  std::string HeaderOf(const std::string& name) const;
  bool is_success() const { return failure.empty() && status >= 200 && status < 300; }
};

// Errors: as LoadCurl; ResourceExhausted  no memory.
absl::StatusOr<HttpAnswer> Exchange(const S3Settings& settings, const HttpRequest& request);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_HTTP_EXCHANGE_H_
