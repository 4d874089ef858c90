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

std::string ClaimReply(int64_t first_epoch) {
  return first_epoch == 0 ? std::string(kGiven) : absl::StrCat(kGiven, " ", first_epoch);
}

absl::StatusOr<int64_t> ParseClaimReply(absl::string_view text) {
  if (text == kGiven) return 0;
  int64_t first_epoch;
  absl::string_view number = text;
  if (absl::ConsumePrefix(&number, absl::StrCat(kGiven, " ")) &&
      absl::SimpleAtoi(number, &first_epoch) && first_epoch > 0) {
    return first_epoch;
  }
  return absl::UnavailableError(absl::StrCat("the worker gave no memory: ", text));
}

}  // namespace tessera
