#include "shm/local_messages.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "job/field_limits.h"

namespace tessera {
namespace {

constexpr char kRetryPayload[] = "tessera.v1.Retry";
constexpr size_t kMaxAnswerBytes = 48 << 10;  // With less than a packet has room for.
constexpr int kMaxCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

}  // namespace

std::string EncodeRequest(v1::LocalRequest request) {
  request.set_version(kVersion);
  request.set_protocol(kProtocol);
  return request.SerializeAsString();
}

absl::StatusOr<v1::LocalRequest> ParseRequest(absl::string_view packet) {
  v1::LocalRequest request;
  // Any process that may open the socket can send this. Nothing of it is used before the version
  // fits.
  if (!request.ParseFromArray(packet.data(), static_cast<int>(packet.size())))
    return absl::InvalidArgumentError("the received message is not a request");
  RETURN_IF_ERROR(CheckVersion("the caller", absl::string_view(request.version()).substr(0, 32),
                               request.protocol()));
  if (request.request_case() != v1::LocalRequest::REQUEST_NOT_SET) return request;
  return absl::InvalidArgumentError("the request asks for nothing");
}

absl::Status CheckReport(const v1::Report& report) {
  if (report.values_size() > kMaxReportedValues) {
    return absl::InvalidArgumentError(absl::StrCat(
        "report: ", report.values_size(), " values, which is more than ", kMaxReportedValues));
  }
  for (const auto& [name, value] : report.values()) RETURN_IF_ERROR(CheckReportedName(name));
  return absl::OkStatus();
}

std::string EncodeReply(const absl::Status& status) {
  v1::LocalReply reply;
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  reply.set_retry(RetryOf(status));
  return EncodeReply(reply);
}

std::string EncodeReply(const v1::LocalReply& reply) {
  // A packet without bytes would be the end of the socket.
  return reply.ByteSizeLong() > 0 ? reply.SerializeAsString() : std::string("\x08\x00", 2);
}

absl::StatusOr<v1::LocalReply> ParseReply(absl::string_view packet) {
  v1::LocalReply reply;
  // The code becomes a status of this process, so it has to be one that exists.
  if (!reply.ParseFromArray(packet.data(), static_cast<int>(packet.size())) || reply.code() < 0 ||
      reply.code() > kMaxCode) {
    return absl::UnavailableError("the worker's message is not a reply");
  }
  if (reply.code() == 0) return reply;
  return WithRetry(absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message()),
                   reply.retry());
}

absl::Status WithRetry(absl::Status status, v1::Retry retry) {
  if (retry != v1::RETRY_NEVER)
    status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(static_cast<int>(retry))));
  return status;
}

v1::Retry RetryOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryPayload);
  for (const v1::Retry retry : {v1::RETRY_SOON, v1::RETRY_WHEN_FREE}) {
    if (payload == absl::StrCat(static_cast<int>(retry))) return retry;
  }
  return v1::RETRY_NEVER;
}

bool HasRoomInPacket(const v1::LiveMapAnswer& answer) {
  return answer.ByteSizeLong() <= kMaxAnswerBytes;
}

absl::StatusOr<std::string> DescriptorSocketOf(absl::string_view worker_address) {
  absl::string_view path = worker_address;
  if (!absl::ConsumePrefix(&path, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker address '", worker_address, "' is not a Unix socket like unix:FOLDER/worker.sock"));
  }
  absl::ConsumePrefix(&path, "//");  // Of "unix:///...".
  const size_t name = path.rfind('/');
  const absl::string_view folder = name == path.npos ? "" : path.substr(0, name + 1);
  return absl::StrCat(folder, kDescriptorSocketName);
}

}  // namespace tessera
