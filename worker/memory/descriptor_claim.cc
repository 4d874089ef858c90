#include "worker/memory/descriptor_claim.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr absl::string_view kHosts = "hosts";
constexpr absl::string_view kGiven = "ok";
constexpr absl::string_view kOnly = " only";
constexpr absl::string_view kRefused = "FAILED_PRECONDITION: ";  // As of Status::ToString.

}  // namespace

std::string TicketOf(const DescriptorClaim& claim) {
  return absl::StrCat(claim.job_id, "|", claim.creation, "|", claim.rank.value(), "|",
                      claim.attachment.value());
}

std::string ClaimText(absl::string_view ticket, bool hosts_executor) {
  return hosts_executor ? absl::StrCat(ticket, "|", kHosts) : std::string(ticket);
}

absl::StatusOr<DescriptorClaim> ParseClaim(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '|');
  int64_t creation, rank, attachment;
  if (parts.size() < 4 || parts.size() > 5 || (parts.size() == 5 && parts[4] != kHosts) ||
      !absl::SimpleAtoi(parts[1], &creation) || !absl::SimpleAtoi(parts[2], &rank) ||
      !absl::SimpleAtoi(parts[3], &attachment)) {
    return absl::NotFoundError("not a ticket");
  }
  return DescriptorClaim{std::string(parts[0]), creation, Rank(rank), Incarnation(attachment),
                         parts.size() == 5};
}

std::string ClaimReply(const GivenClaim& given) {
  if (given.first_epoch == 0) return std::string(kGiven);
  return absl::StrCat(kGiven, " ", given.first_epoch, given.only_host ? kOnly : "");
}

absl::StatusOr<GivenClaim> ParseClaimReply(absl::string_view text) {
  GivenClaim given;
  if (text == kGiven) return given;
  absl::string_view number = text;
  if (absl::ConsumePrefix(&number, absl::StrCat(kGiven, " "))) {
    given.only_host = absl::ConsumeSuffix(&number, kOnly);
    if (absl::SimpleAtoi(number, &given.first_epoch) && given.first_epoch > 0) return given;
  }
  if (absl::ConsumePrefix(&text, kRefused)) return absl::FailedPreconditionError(text);
  return absl::UnavailableError(absl::StrCat("the worker gave no memory: ", text));
}

}  // namespace tessera
