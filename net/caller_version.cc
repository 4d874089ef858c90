#include "net/caller_version.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/version.h"

namespace tessera {
namespace {

constexpr char kPrefix[] = "tessera/";

}  // namespace

std::string OwnUserAgent() { return absl::StrCat(kPrefix, kVersion, "/", kProtocol); }

absl::Status CheckUserAgent(absl::string_view user_agent) {
  // Tools that are not Tessera's are not refused.
  if (!absl::ConsumePrefix(&user_agent, kPrefix)) return absl::OkStatus();
  const std::vector<absl::string_view> parts =
      absl::StrSplit(user_agent.substr(0, user_agent.find(' ')), '/');
  int protocol = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &protocol)) protocol = 0;
  return CheckVersion("the caller", parts[0].substr(0, 32), protocol);
}

absl::Status CheckCaller(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("user-agent");
  if (found == metadata.end()) return absl::OkStatus();
  return CheckUserAgent({found->second.data(), found->second.size()});
}

}  // namespace tessera
