#include "coordinator/access/access_rules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_path.h"
#include "job/field_limits.h"

namespace tessera::coordinator {
namespace {

constexpr char kCertificate[] = "certificate:";
constexpr char kNamedRole[] = "tessera:";  // In a certificate's common name.
constexpr char kOwnFolder[] = "/{owner}";  // At the end of a save root.

// The identity in its canonical form; empty: not an identity.
std::string NormalizedIdentity(absl::string_view text) {
  uint32_t uid = 0;
  if (absl::ConsumePrefix(&text, "uid:"))
    return absl::SimpleAtoi(text, &uid) ? absl::StrCat("uid:", uid) : "";
  if (!absl::StartsWith(text, kCertificate) || text == kCertificate) return "";
  return std::string(text);
}

// As one part of a path; nullopt: the identity has no folder that is only its own.
std::optional<std::string> FolderOf(absl::string_view identity) {
  const absl::string_view name = identity.substr(identity.find(':') + 1);
  uint32_t uid = 0;
  // Numbers are folders of users.
  if (absl::StartsWith(identity, kCertificate) && absl::SimpleAtoi(name, &uid)) return std::nullopt;
  const auto is_plain = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  // Any other name could lead out of the root, or into another caller's folder.
  if (name.empty() || name[0] == '.' || !std::all_of(name.begin(), name.end(), is_plain))
    return std::nullopt;
  return std::string(name);
}

// Without empty parts and "."; nullopt: not absolute, or with "..".
std::optional<std::string> Normalized(absl::string_view path) {
  if (!SchemeOf(path).empty()) {
    const absl::StatusOr<std::string> plain = PlainPath(path);
    if (!plain.ok()) return std::nullopt;
    if (!SchemeOf(*plain).empty()) return std::string(absl::StripSuffix(*plain, "/"));
    return Normalized(*plain);
  }
  if (!absl::StartsWith(path, "/")) return std::nullopt;
  std::string normalized;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    // A part before ".." may be a link, so the text does not say where ".." leads.
    if (part == "..") return std::nullopt;
    if (part != ".") absl::StrAppend(&normalized, "/", part);
  }
  return normalized.empty() ? "/" : normalized;
}

bool IsBelow(absl::string_view path, absl::string_view root) {
  // With the slash, so that "/models2" is not below "/models".
  return (root == "/" && absl::StartsWith(path, "/")) ||
         (absl::ConsumePrefix(&path, root) && absl::StartsWith(path, "/"));
}

// The root of all that is where the path is: of the file system, or of a bucket.
std::string WholeStorageOf(absl::string_view path) {
  if (SchemeOf(path) != "s3") return "/";
  const size_t bucket = path.find("://") + 3;
  return std::string(path.substr(0, path.find('/', bucket)));
}

}  // namespace

bool AccessRules::AddRole(absl::string_view role, Roles* roles) {
  if (role == "operator") {
    roles->is_operator = true;
  } else if (role == "reader") {
    roles->is_reader = true;
  } else if (role == "worker") {
    roles->is_any_worker = true;
  } else if (absl::ConsumePrefix(&role, "worker:") && CheckWorkerId("worker id", role).ok()) {
    roles->workers.emplace(role);
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<AccessRules> AccessRules::Make(const std::string& own,
                                              const std::vector<std::string>& grants,
                                              const std::vector<std::string>& save_roots) {
  AccessRules rules;
  // Both could read the journal and trace this process, so to refuse them would protect nothing.
  rules.trusted_ = {own, "uid:0"};
  for (const std::string& grant : grants) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(grant, absl::MaxSplits('=', 1));
    const std::string identity = NormalizedIdentity(parts.second);
    if (identity.empty() || !AddRole(parts.first, &rules.roles_[identity]))
      return absl::InvalidArgumentError(absl::StrCat(
          "--grant '", grant, "': not like operator=uid:1000, reader=certificate:NAME, ",
          "worker=uid:1000 or worker:ID=certificate:NAME"));
  }
  for (const std::string& root : save_roots) {
    std::optional<std::string> normalized = Normalized(root);
    if (!normalized.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--save-root '", root, "': not an absolute path without '..', or s3://BUCKET/PREFIX"));
    }
    rules.save_roots_.push_back(*std::move(normalized));
  }
  return rules;
}

AccessRules::Roles AccessRules::RolesOf(const std::string& identity) const {
  const auto granted = roles_.find(identity);
  Roles roles = granted == roles_.end() ? Roles() : granted->second;
  if (trusted_.count(identity) > 0) roles.is_operator = roles.is_any_worker = true;
  absl::string_view name = identity;
  // The authority that signed the certificate has granted the role in its name.
  if (absl::ConsumePrefix(&name, kCertificate) && absl::ConsumePrefix(&name, kNamedRole))
    AddRole(name, &roles);
  return roles;
}

absl::Status AccessRules::Check(const std::string& identity, Right right, absl::string_view job,
                                const std::string& owner) const {
  const Roles roles = RolesOf(identity);
  if (right == Right::kList || roles.is_operator) return absl::OkStatus();
  if (right == Right::kCreate) {
    if (!absl::StartsWith(identity, absl::StrCat(kCertificate, kNamedRole)))
      return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "'", identity, "' is a certificate of a role that creates no jobs: take one of a name"));
  }
  // A job that an earlier version created has no owner, so only operators may change it.
  if (!owner.empty() && owner == identity) return absl::OkStatus();
  if (right == Right::kRead && roles.is_reader) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "'", identity, "' may not ", right == Right::kRead ? "read" : "change", " job '", job,
      "': its owner is ", owner.empty() ? "not known" : absl::StrCat("'", owner, "'"), ", and '",
      identity, "' is not an operator", right == Right::kRead ? " or reader" : ""));
}

absl::Status AccessRules::CheckIsWorker(const std::string& identity) const {
  if (RolesOf(identity).is_worker()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "'", identity, "' is no worker: start the coordinator with --grant worker:ID=", identity,
      ", or give the worker a certificate for 'tessera:worker:ID'"));
}

absl::Status AccessRules::CheckWorker(const std::string& identity,
                                      const std::string& worker) const {
  const Roles roles = RolesOf(identity);
  // A worker may speak for its own id only: another one's shards depend on what that one reports.
  if (roles.is_any_worker || roles.workers.count(worker) > 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("'", identity, "' is not worker '", worker,
                   "': start the coordinator with --grant worker:", worker, "=", identity,
                   ", or give the worker a certificate for 'tessera:worker:", worker, "'"));
}

std::vector<std::string> AccessRules::SaveRootsOf(const std::string& identity) const {
  const std::optional<std::string> own = FolderOf(identity);
  const bool is_operator = IsOperator(identity);
  std::vector<std::string> roots;
  for (absl::string_view root : save_roots_) {
    // Consumed in any case: an operator's root is the folder that holds those of all callers.
    if (!absl::ConsumeSuffix(&root, kOwnFolder) || is_operator) {
      roots.emplace_back(root.empty() ? "/" : root);
    } else if (own.has_value()) {
      roots.push_back(absl::StrCat(root, "/", *own));
    }
  }
  return roots;
}

absl::StatusOr<std::string> AccessRules::SaveRootOf(const std::string& identity,
                                                    const std::string& path) const {
  if (save_roots_.empty() && trusted_.count(identity) > 0) return WholeStorageOf(path);
  if (save_roots_.empty()) {
    return absl::PermissionDeniedError(absl::StrCat("path '", path, "': '", identity,
                                                    "' may name no folder, since the ",
                                                    "coordinator was started without --save-root"));
  }
  const std::optional<std::string> normalized = Normalized(path);
  if (!normalized.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", path, "': must be absolute, without '..'"));
  }
  // The longest, because a root inside another one may be reached through a link.
  std::string longest;
  for (const std::string& root : SaveRootsOf(identity)) {
    if (IsBelow(*normalized, root) && root.size() > longest.size()) longest = root;
  }
  if (!longest.empty()) return longest;
  return absl::PermissionDeniedError(
      absl::StrCat("path '", path, "' is below none of the folders for checkpoints (--save-root): ",
                   absl::StrJoin(save_roots_, ", ")));
}

}  // namespace tessera::coordinator
