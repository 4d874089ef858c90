#include "checkpoint/storage/s3/s3_client.h"

#include <algorithm>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/storage/s3/request_retries.h"
#include "checkpoint/storage/s3/xml_reader.h"
#include "checkpoint/storage/storage_patience.h"

namespace tessera::s3 {
namespace {

constexpr char kMarkHeader[] = "x-amz-meta-tessera-upload";
constexpr int kMostPages = 10'000;  // Of 1,000 keys: ends the list of a store that never ends it.

double Uniform() {
  // Of a thread's own, so that ranks that fail together do not come back together.
  thread_local std::mt19937_64 random{std::random_device()()};
  return std::uniform_real_distribution<double>(0, 1)(random);
}

absl::StatusOr<ObjectInfo> InfoOf(const S3Path& path, const HttpAnswer& answer) {
  ObjectInfo info;
  std::string error;
  if (!absl::SimpleAtoi(answer.HeaderOf("content-length"), &info.size_bytes) ||
      info.size_bytes < 0) {
    return absl::InternalError(absl::StrCat(PathOf(path), ": the store's answer has no size"));
  }
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", answer.HeaderOf("last-modified"),
                       &info.changed_at, &error)) {
    info.changed_at = absl::UnixEpoch();
  }
  info.etag = answer.HeaderOf("etag");
  info.mark = answer.HeaderOf(kMarkHeader);
  return info;
}

std::string EscapeXml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// The document of an answer, whose element has that name.
absl::StatusOr<XmlElement> DocumentOf(absl::string_view what, const HttpAnswer& answer,
                                      absl::string_view name) {
  absl::StatusOr<XmlElement> document = ReadXml(answer.body);
  if (document.ok() && document->name == name) return document;
  return absl::InternalError(
      absl::StrCat(what, ": the store's answer is no ", name,
                   document.ok() ? "" : absl::StrCat(": ", document.status().message())));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const S3Client>> S3Client::Make() {
  ASSIGN_OR_RETURN(S3Settings settings, ReadSettings());
  return std::make_shared<const S3Client>(std::move(settings));
}

std::string S3Client::NameOf(const Call& call) {
  return absl::StrCat(call.what, " ", PathOf(call.path));
}

absl::StatusOr<HttpAnswer> S3Client::Send(const Call& call) const {
  const absl::Duration most = call.is_copy ? deadlines_.of_copy : deadlines_.of_request;
  const absl::Time deadline = std::min(SteadyNow() + most, StoragePatience::Deadline());
  HttpRequest request;
  request.method = call.method;
  request.url = BucketUrl(settings_, call.path.bucket);
  // Of a bucket itself with the '/', which its signature has.
  absl::StrAppend(&request.url, "/", EscapeKey(call.path.key));
  if (!call.query.empty()) absl::StrAppend(&request.url, "?", QueryOf(call.query));
  request.headers = call.headers;
  request.body = call.body;
  request.into = call.into;
  if (call.is_copy) request.most_silence = absl::Minutes(5);
  for (int attempt = 0;; ++attempt) {
    request.timeout = deadline - SteadyNow();
    if (request.timeout <= absl::ZeroDuration()) {
      return absl::InternalError(
          absl::StrCat(NameOf(call), ": no time is left for the object store"));
    }
    ASSIGN_OR_RETURN(HttpAnswer answer, Exchange(settings_, request));
    const StoreError error = ErrorOf(answer);
    const bool is_done = answer.is_success() && error.code.empty();
    // What callers expect: the object is not there, or the condition does not hold.
    const bool is_told = answer.failure.empty() && error.code != "NoSuchBucket" &&
                         (answer.status == 404 || answer.status == 412);
    if (is_done || is_told) return answer;
    if (call.is_once || !MayRetry(answer, error)) return StatusOf(NameOf(call), answer, error);
    const absl::Duration delay = DelayBefore(attempt, Uniform(), answer);
    if (SteadyNow() + delay >= deadline) {
      return Annotate(StatusOf(NameOf(call), answer, error),
                      absl::StrCat("given up after ", attempt + 1, " tries"));
    }
    absl::SleepFor(delay);
  }
}

absl::Status S3Client::Unexpected(const Call& call, const HttpAnswer& answer) {
  return StatusOf(NameOf(call), answer, ErrorOf(answer));
}

absl::StatusOr<std::optional<ObjectInfo>> S3Client::Head(const S3Path& path) const {
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send({"look at", Method::kHead, path}));
  if (!answer.is_success()) return std::nullopt;
  ASSIGN_OR_RETURN(ObjectInfo info, InfoOf(path, answer));
  return info;
}

absl::StatusOr<std::optional<SmallObject>> S3Client::Get(const S3Path& path) const {
  ASSIGN_OR_RETURN(HttpAnswer answer, Send({"read", Method::kGet, path}));
  if (!answer.is_success()) return std::nullopt;
  ASSIGN_OR_RETURN(ObjectInfo info, InfoOf(path, answer));
  return SmallObject{std::move(answer.body), std::move(info)};
}

absl::Status S3Client::GetRange(const S3Path& path, const std::string& etag, int64_t at_bytes,
                                absl::Span<char> into) const {
  if (into.empty()) return absl::OkStatus();
  const int64_t last = at_bytes + static_cast<int64_t>(into.size()) - 1;
  Call call = {"read", Method::kGet, path};
  // Of the version that was opened: ranges of two versions would make a file that never was.
  call.headers = {absl::StrCat("range: bytes=", at_bytes, "-", last),
                  absl::StrCat("if-match: ", etag)};
  call.into = into;
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  if (answer.status == 206) return absl::OkStatus();
  if (answer.is_success()) {
    // All of an object of exactly this size, or a store that ignores ranges.
    if (at_bytes == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(NameOf(call), ": the store ignores ranges"));
  }
  return absl::DataLossError(
      absl::StrCat(PathOf(path), " was removed or replaced while it was read"));
}

absl::Status S3Client::Put(const S3Path& path, absl::string_view bytes) const {
  Call call = {"write", Method::kPut, path};
  call.body = bytes;
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  return answer.is_success() ? absl::OkStatus() : Unexpected(call, answer);
}

absl::StatusOr<bool> S3Client::PutIf(const S3Path& path, absl::string_view bytes,
                                     const std::string& etag) const {
  Call call = {"write", Method::kPut, path};
  call.headers = {etag.empty() ? "if-none-match: *" : absl::StrCat("if-match: ", etag)};
  call.body = bytes;
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  if (answer.is_success()) return true;
  // An earlier try of this very put may have been done, and its answer lost.
  ASSIGN_OR_RETURN(const std::optional<SmallObject> there, Get(path));
  return there.has_value() && there->bytes == bytes;
}

absl::Status S3Client::Delete(const S3Path& path) const {
  // Not there is as good: an earlier try may have removed it.
  return Send({"remove", Method::kDelete, path}).status();
}

absl::Status S3Client::DeleteOnce(const S3Path& path, const std::string& etag) const {
  Call call = {"remove", Method::kDelete, path};
  call.headers = {absl::StrCat("if-match: ", etag)};
  call.is_once = true;
  return Send(call).status();
}

absl::StatusOr<Listing> S3Client::List(const std::string& bucket, const std::string& prefix,
                                       bool by_folder, int most) const {
  Listing listing;
  Call call = {"list", Method::kGet, {bucket, ""}};
  call.query = {{"list-type", "2"}, {"prefix", prefix}};
  if (by_folder) call.query.emplace_back("delimiter", "/");
  if (most > 0) call.query.emplace_back("max-keys", absl::StrCat(most));
  const Parameters first = call.query;
  for (int page = 0; page < kMostPages; ++page) {
    ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
    if (!answer.is_success()) return Unexpected(call, answer);
    ASSIGN_OR_RETURN(const XmlElement document,
                     DocumentOf(NameOf(call), answer, "ListBucketResult"));
    for (const XmlElement& child : document.children) {
      if (child.name == "Contents") listing.keys.push_back(child.TextOf("Key"));
      if (child.name == "CommonPrefixes") listing.prefixes.push_back(child.TextOf("Prefix"));
    }
    const std::string token = document.TextOf("NextContinuationToken");
    const bool is_over = document.TextOf("IsTruncated") != "true" || token.empty();
    // Who asks for a few wants to know whether there is any.
    if (is_over || most > 0) return listing;
    call.query = first;
    call.query.emplace_back("continuation-token", token);
  }
  return absl::InternalError(absl::StrCat(NameOf(call), ": the store's list does not end"));
}

absl::StatusOr<Upload> S3Client::BeginUpload(const S3Path& path) const {
  Upload upload = {path, "", RandomHex(16)};
  Call call = {"begin to write", Method::kPost, path};
  call.query = {{"uploads", ""}};
  // By this mark CompleteUpload tells its own object from another save's.
  call.headers = {absl::StrCat(kMarkHeader, ": ", upload.mark)};
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  if (!answer.is_success()) return Unexpected(call, answer);
  ASSIGN_OR_RETURN(const XmlElement document,
                   DocumentOf(NameOf(call), answer, "InitiateMultipartUploadResult"));
  upload.id = document.TextOf("UploadId");
  if (!upload.id.empty()) return upload;
  return absl::InternalError(absl::StrCat(NameOf(call), ": the store's answer has no UploadId"));
}

absl::StatusOr<std::string> S3Client::PartEtag(const Call& call) const {
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  if (!answer.is_success()) return Unexpected(call, answer);
  std::string etag = answer.HeaderOf("etag");
  if (call.is_copy) {
    ASSIGN_OR_RETURN(const XmlElement document, DocumentOf(NameOf(call), answer, "CopyPartResult"));
    etag = document.TextOf("ETag");
  }
  if (!etag.empty()) return etag;
  return absl::InternalError(absl::StrCat(NameOf(call), ": the store's answer has no ETag"));
}

absl::StatusOr<std::string> S3Client::PutPart(const Upload& upload, int number,
                                              absl::string_view bytes) const {
  Call call = {"write a part of", Method::kPut, upload.path};
  call.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}};
  call.body = bytes;
  return PartEtag(call);
}

absl::StatusOr<std::string> S3Client::CopyPart(const Upload& upload, int number, const S3Path& from,
                                               int64_t at_bytes, int64_t size_bytes) const {
  Call call = {"copy a part of", Method::kPut, upload.path};
  call.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}};
  call.headers = {
      absl::StrCat("x-amz-copy-source: /", from.bucket, "/", EscapeKey(from.key)),
      absl::StrCat("x-amz-copy-source-range: bytes=", at_bytes, "-", at_bytes + size_bytes - 1)};
  call.is_copy = true;
  return PartEtag(call);
}

absl::Status S3Client::CompleteUpload(const Upload& upload,
                                      const std::vector<std::string>& etags) const {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>", EscapeXml(etags[i]),
                    "</ETag></Part>");
  }
  absl::StrAppend(&body, "</CompleteMultipartUpload>");
  Call call = {"finish", Method::kPost, upload.path};
  call.query = {{"uploadId", upload.id}};
  // A store may put the parts together before it answers, which takes as long as a copy.
  call.body = body;
  call.is_copy = true;
  ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
  if (answer.is_success()) return absl::OkStatus();
  // An earlier try may have been done, and its answer lost: then the upload is not there any more.
  ASSIGN_OR_RETURN(const std::optional<ObjectInfo> there, Head(upload.path));
  if (there.has_value() && there->mark == upload.mark) return absl::OkStatus();
  return Unexpected(call, answer);
}

absl::Status S3Client::AbortUpload(const Upload& upload) const {
  // As in Delete: an upload that was finished or given up meanwhile is as good.
  Call call = {"give up", Method::kDelete, upload.path};
  call.query = {{"uploadId", upload.id}};
  return Send(call).status();
}

absl::StatusOr<std::vector<Upload>> S3Client::ListUploads(const std::string& bucket,
                                                          const std::string& prefix) const {
  std::vector<Upload> uploads;
  Call call = {"list uploads to", Method::kGet, {bucket, ""}};
  const Parameters first = {{"uploads", ""}, {"prefix", prefix}};
  call.query = first;
  for (int page = 0; page < kMostPages; ++page) {
    ASSIGN_OR_RETURN(const HttpAnswer answer, Send(call));
    if (!answer.is_success()) return Unexpected(call, answer);
    ASSIGN_OR_RETURN(const XmlElement document,
                     DocumentOf(NameOf(call), answer, "ListMultipartUploadsResult"));
    for (const XmlElement& child : document.children) {
      if (child.name != "Upload") continue;
      uploads.push_back({{bucket, child.TextOf("Key")}, child.TextOf("UploadId"), ""});
    }
    const std::string key = document.TextOf("NextKeyMarker");
    if (document.TextOf("IsTruncated") != "true" || key.empty()) return uploads;
    call.query = first;
    call.query.emplace_back("key-marker", key);
    call.query.emplace_back("upload-id-marker", document.TextOf("NextUploadIdMarker"));
  }
  return absl::InternalError(absl::StrCat(NameOf(call), ": the store's list does not end"));
}

}  // namespace tessera::s3
