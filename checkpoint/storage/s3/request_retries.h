// Whether and when a request to an object store is sent again. All requests that are sent again are
// idempotent. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_REQUEST_RETRIES_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_REQUEST_RETRIES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/storage/s3/http_exchange.h"

namespace tessera::s3 {

// What the store's error document says; "" what it does not, or without one.
struct StoreError {
  std::string code, message, region;
};
StoreError ErrorOf(const HttpAnswer& answer);

// Connections that could not be made or were cut; 408, 429, 500, 502, 503, 504, and what the store
// says is a conflict of requests. Also a success whose body is an error: a store begins its answer
// before a long request is done.
bool MayRetry(const HttpAnswer& answer, const StoreError& error);

// Before try number `attempt` + 1, where `attempt` starts at 0; at least what the answer asks for,
// as far as that is sensible. `uniform`: in [0, 1).
absl::Duration DelayBefore(int attempt, double uniform, const HttpAnswer& answer);

// `what`: "get s3://bucket/key". Names HTTP status, the store's code and message, and what to do.
absl::Status StatusOf(absl::string_view what, const HttpAnswer& answer, const StoreError& error);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_REQUEST_RETRIES_H_
