// Access control: the roles of identities (net/caller_identity.h), and the owner of each job.
//
//              list   create   read a job,        change: put, save,    work: register, send
//                              its state, saves   delete, hand over     and fetch for a worker
//   operator   yes    yes      all                all                   no
//   owner      yes    yes      own jobs           own jobs              no
//   reader     yes             all                                      no
//   worker     yes                                                      for its own worker ids
//
// Every identified caller may own jobs, in addition to its roles. The coordinator's own user and
// root are operators, and work for any worker. Others get roles by grants, or by the common name of
// their certificate: "tessera:operator", "tessera:reader", "tessera:worker:ID". Of these
// certificates only the operator's creates jobs.
//
// Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_ACCESS_ACCESS_RULES_H_
#define TESSERA_COORDINATOR_ACCESS_ACCESS_RULES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::coordinator {

enum class Right { kList, kCreate, kRead, kChange };

class AccessRules {
 public:
  // `own`: the identity of the coordinator's user. `grants`: "operator=uid:1000",
  // "reader=certificate:alice", "worker:w1=uid:995" or "worker=uid:995", for any worker id.
  // `save_roots`: the folders that may contain the checkpoints that clients request; empty: any
  // folder, but only for the coordinator's own user and root. A root that ends in "/{owner}" stands
  // for the caller's own folder in it ("1000" for uid:1000), and for operators for all of these.
  // Errors: InvalidArgument  a malformed grant, or a folder that is neither an absolute path nor
  //         s3://BUCKET/PREFIX
  static absl::StatusOr<AccessRules> Make(const std::string& own,
                                          const std::vector<std::string>& grants,
                                          const std::vector<std::string>& save_roots);

  bool IsOperator(const std::string& identity) const { return RolesOf(identity).is_operator; }

  // `job` and `owner` apply only to kRead and kChange. An empty owner matches nobody.
  // Errors: PermissionDenied  names the identity, the job and its owner
  absl::Status Check(const std::string& identity, Right right, absl::string_view job = "",
                     const std::string& owner = "") const;
  // Errors: PermissionDenied  `identity` does not work for any worker
  absl::Status CheckIsWorker(const std::string& identity) const;
  // Errors: PermissionDenied  `identity` does not work for this worker
  absl::Status CheckWorker(const std::string& identity, const std::string& worker) const;
  // The folders of --save-root that this identity may use.
  std::vector<std::string> SaveRootsOf(const std::string& identity) const;
  // The root that contains `path` ("/", or the bucket, if any folder is allowed), compared as text: the code that
  // creates files there checks links.
  // Errors: InvalidArgument   not absolute, or with ".."
  //         PermissionDenied  not below a save root (names the roots)
  absl::StatusOr<std::string> SaveRootOf(const std::string& identity,
                                         const std::string& path) const;

 private:
  struct Roles {
    bool is_operator = false;
    bool is_reader = false;
    bool is_any_worker = false;
    std::set<std::string> workers;

    bool is_worker() const { return is_any_worker || !workers.empty(); }
  };

  AccessRules() = default;
  static bool AddRole(absl::string_view role, Roles* roles);
  Roles RolesOf(const std::string& identity) const;

  std::map<std::string, Roles> roles_;
  std::set<std::string> trusted_;  // The coordinator's own user and root.
  std::vector<std::string> save_roots_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_ACCESS_ACCESS_RULES_H_
