#include "checkpoint/storage/s3/request_retries.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/retry.h"
#include "base/utf8.h"
#include "checkpoint/storage/s3/xml_reader.h"

namespace tessera::s3 {
namespace {

constexpr absl::Duration kMostDelay = absl::Seconds(20);
constexpr RetryOptions kRetries = {absl::Milliseconds(100), kMostDelay, 2.0, 0.5};
constexpr size_t kMaxShownBytes = 300;

std::string Shown(absl::string_view text) {
  return PrintableUtf8(Utf8Prefix(text, kMaxShownBytes));
}

absl::StatusCode CodeOf(int status) {
  switch (status) {
    case 400:
    case 301:
      return absl::StatusCode::kInvalidArgument;
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
    case 412:
      return absl::StatusCode::kFailedPrecondition;
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 507:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

// What to do about it, as far as that is known.
std::string AdviceOn(const HttpAnswer& answer, const StoreError& error) {
  if (error.code == "NoSuchBucket") return "create the bucket, or name another one";
  if (error.code == "InvalidAccessKeyId" || error.code == "SignatureDoesNotMatch")
    return "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of this process";
  if (error.code == "ExpiredToken" || error.code == "InvalidToken")
    return "renew the credentials of this process: its session token is not valid any more";
  if (error.code == "RequestTimeTooSkewed") return "set this machine's clock";
  if (error.code == "AuthorizationHeaderMalformed" || answer.status == 301) {
    const std::string region =
        error.region.empty() ? answer.HeaderOf("x-amz-bucket-region") : error.region;
    return absl::StrCat("set AWS_REGION to the bucket's region",
                        region.empty() ? "" : absl::StrCat(", ", Shown(region)));
  }
  if (error.code == "NotImplemented" || answer.status == 501)
    return "this store lacks an operation of S3 that checkpoints need";
  if (answer.status == 401 || answer.status == 403)
    return "let the credentials of this process list, read, write and delete there";
  if (answer.status == 0 && !answer.is_transient)
    return "check AWS_ENDPOINT_URL_S3, and AWS_CA_BUNDLE where its certificate is not a public one";
  if (answer.status == 0) return "check AWS_ENDPOINT_URL_S3 and the network";
  return "";
}

}  // namespace

StoreError ErrorOf(const HttpAnswer& answer) {
  StoreError error;
  // A store that has sent 200 for a long copy can report its failure in the body only.
  const bool may_have = answer.status >= 300 || answer.is_success();
  if (!may_have || answer.body.empty()) return error;
  const absl::StatusOr<XmlElement> document = ReadXml(answer.body);
  if (!document.ok() || document->name != "Error") return error;
  error.code = document->TextOf("Code");
  if (error.code.empty()) error.code = "Unknown";
  error.message = document->TextOf("Message");
  error.region = document->TextOf("Region");
  return error;
}

bool MayRetry(const HttpAnswer& answer, const StoreError& error) {
  if (!answer.failure.empty()) return answer.is_transient;
  switch (answer.status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    default:
      break;
  }
  // The last two are of a body that was damaged on its way.
  if (error.code == "RequestTimeout" || error.code == "ConditionalRequestConflict" ||
      error.code == "OperationAborted" || error.code == "SlowDown" ||
      error.code == "InternalError" || error.code == "ServiceUnavailable" ||
      error.code == "XAmzContentSHA256Mismatch" || error.code == "BadDigest") {
    return true;
  }
  // The failure of a copy whose 200 had been sent already.
  return answer.is_success() && !error.code.empty();
}

absl::Duration DelayBefore(int attempt, double uniform, const HttpAnswer& answer) {
  const absl::Duration delay = RetryDelay(kRetries, attempt, uniform);
  int seconds = 0;
  if (!absl::SimpleAtoi(answer.HeaderOf("retry-after"), &seconds) || seconds < 0) return delay;
  // Bounded, because the store may ask for any time.
  return std::max(delay, std::min(absl::Seconds(seconds), kMostDelay));
}

absl::Status StatusOf(absl::string_view what, const HttpAnswer& answer, const StoreError& error) {
  std::string message(what);
  if (answer.status != 0) absl::StrAppend(&message, ": HTTP ", answer.status);
  if (!answer.failure.empty()) absl::StrAppend(&message, ": ", Shown(answer.failure));
  if (!error.code.empty()) {
    absl::StrAppend(&message, answer.failure.empty() ? " " : ": ", Shown(error.code));
    if (!error.message.empty()) absl::StrAppend(&message, ": ", Shown(error.message));
  }
  if (const std::string advice = AdviceOn(answer, error); !advice.empty())
    absl::StrAppend(&message, "; ", advice);
  const bool is_cut = !answer.failure.empty() || answer.is_success();
  return absl::Status(is_cut ? absl::StatusCode::kInternal : CodeOf(answer.status), message);
}

}  // namespace tessera::s3
