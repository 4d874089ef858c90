#include "net/caller_identity.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/same_secret.h"
#include "base/utf8.h"
#include "net/access_token.h"
#include "net/local_listener.h"

namespace tessera {
namespace {

constexpr size_t kMaxNameBytes = 128;

}  // namespace

std::string OwnIdentity() { return absl::StrCat("uid:", geteuid()); }

absl::StatusOr<std::string> CallerIdentities::Of(const grpc::ServerContextBase& context) const {
  const std::string peer = context.peer();
  // The kernel's word comes first: it cannot be forged.
  if (local_ != nullptr) {
    if (const auto user = local_->UserOf(peer)) return absl::StrCat("uid:", *user);
  }
  const auto auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->FindPropertyValues("x509_common_name");
    // Of several names none says which one is the caller's.
    const std::string name =
        names.size() == 1 ? std::string(names[0].data(), names[0].size()) : std::string();
    // It is compared with owners of jobs and written to logs.
    if (!name.empty() && name.size() <= kMaxNameBytes && PrintableUtf8(name) == name)
      return absl::StrCat("certificate:", name);
    return absl::UnauthenticatedError(
        "the client's certificate has no printable common name that identifies it");
  }
  // The token is a file of this user alone, so it proves this user.
  if (HasToken(context)) return OwnIdentity();
  return absl::UnauthenticatedError(absl::StrCat(
      "the coordinator does not know who calls (", peer,
      "): over TCP without TLS a call needs the token of the coordinator's user, which its "
      "programs "
      "find in ~/.config/tessera/token or at TESSERA_TOKEN_FILE; other users connect to the "
      "coordinator's Unix socket, or by TLS"));
}

bool CallerIdentities::HasToken(const grpc::ServerContextBase& context) const {
  if (token_.empty()) return false;
  const auto& metadata = context.client_metadata();
  const auto range = metadata.equal_range(kTokenMetadata);
  return std::any_of(range.first, range.second, [this](const auto& entry) {
    return IsSameSecret(token_, absl::string_view(entry.second.data(), entry.second.size()));
  });
}

}  // namespace tessera
