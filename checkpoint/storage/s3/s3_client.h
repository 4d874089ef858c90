// What an object store does, for one set of credentials: each method is one request, sent again as
// long as that can help and its deadline has not passed (request_retries.h), or a few.
//
// All are idempotent: one that was done and whose answer was lost is told from one that was refused.
// Errors of all: the store's, with bucket, key, HTTP status, the store's code and what to do:
//   NotFound (no such bucket), PermissionDenied, InvalidArgument (another region),
//   Internal (it fails, or does not answer in time); as Exchange. Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "checkpoint/storage/s3/http_exchange.h"
#include "checkpoint/storage/s3/s3_path.h"
#include "checkpoint/storage/s3/s3_settings.h"

namespace tessera::s3 {

struct ObjectInfo {
  int64_t size_bytes = 0;
  std::string etag;  // Of this version of the object, and of no other.
  absl::Time changed_at;
  std::string mark;  // As BeginUpload was given it; "" of others.
};

struct SmallObject {
  std::string bytes;
  ObjectInfo info;
};

struct Listing {
  std::vector<std::string> keys;
  std::vector<std::string> prefixes;  // With the '/' at their ends.
};

struct Upload {
  S3Path path;
  std::string id;
  std::string mark;  // Tells this upload's object from another's.
};

class S3Client {
 public:
  struct Deadlines {
    absl::Duration of_request = absl::Minutes(2);
    absl::Duration of_copy = absl::Minutes(10);  // What the store does by itself.
  };

  // With this process's settings. Errors: as ReadSettings.
  static absl::StatusOr<std::shared_ptr<const S3Client>> Make();
  explicit S3Client(S3Settings settings) : S3Client(std::move(settings), Deadlines()) {}
  S3Client(S3Settings settings, Deadlines deadlines)
      : settings_(std::move(settings)), deadlines_(deadlines) {}

  // nullopt: there is none.
  absl::StatusOr<std::optional<ObjectInfo>> Head(const S3Path& path) const;
  // All of an object of at most kMaxBodyBytes. Errors: also Internal  it is larger.
  absl::StatusOr<std::optional<SmallObject>> Get(const S3Path& path) const;
  // Bytes of that version. Errors: also DataLoss  it is not there any more.
  absl::Status GetRange(const S3Path& path, const std::string& etag, int64_t at_bytes,
                        absl::Span<char> into) const;
  absl::Status Put(const S3Path& path, absl::string_view bytes) const;
  // Only in place of the version `etag`; "": only where there is no object. No two puts have the
  // same bytes. Whether it was done.
  absl::StatusOr<bool> PutIf(const S3Path& path, absl::string_view bytes,
                             const std::string& etag) const;
  // OK where there is none.
  absl::Status Delete(const S3Path& path) const;
  // In one try, and in place of the version `etag` alone where the store knows conditions of
  // removals: a removal that is sent again may come after somebody else's next put.
  absl::Status DeleteOnce(const S3Path& path, const std::string& etag) const;
  // Keys that begin with `prefix`; `by_folder`: those with another '/' after it as prefixes.
  // `most`: of both together; 0: all.
  absl::StatusOr<Listing> List(const std::string& bucket, const std::string& prefix, bool by_folder,
                               int most = 0) const;

  absl::StatusOr<Upload> BeginUpload(const S3Path& path) const;
  // Part `number`, from 1 on. Returns its etag.
  absl::StatusOr<std::string> PutPart(const Upload& upload, int number,
                                      absl::string_view bytes) const;
  // As PutPart, of bytes of another object in the same bucket, which the store copies.
  absl::StatusOr<std::string> CopyPart(const Upload& upload, int number, const S3Path& from,
                                       int64_t at_bytes, int64_t size_bytes) const;
  // `etags`: of parts 1, 2, ... The object is there at once and whole.
  absl::Status CompleteUpload(const Upload& upload, const std::vector<std::string>& etags) const;
  absl::Status AbortUpload(const Upload& upload) const;
  // Uploads under way to keys that begin with `prefix`.
  absl::StatusOr<std::vector<Upload>> ListUploads(const std::string& bucket,
                                                  const std::string& prefix) const;

 private:
  using Parameters = std::vector<std::pair<std::string, std::string>>;
  struct Call {
    absl::string_view what;  // "read"
    Method method = Method::kGet;
    S3Path path;
    Parameters query = {};
    std::vector<std::string> headers = {};
    absl::string_view body = {};
    absl::Span<char> into = {};
    bool is_once = false;  // It is not sent again.
    bool is_copy = false;  // Done by the store, without a word until it is.
  };

  // The answer to the last try, if it is a success, or says that there is no such object or upload
  // (404) or that a condition does not hold (412).
  absl::StatusOr<HttpAnswer> Send(const Call& call) const;
  absl::StatusOr<std::string> PartEtag(const Call& call) const;
  // The error for a 404 or 412 that the request cannot have.
  static absl::Status Unexpected(const Call& call, const HttpAnswer& answer);
  static std::string NameOf(const Call& call);

  const S3Settings settings_;
  const Deadlines deadlines_;
};

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_
