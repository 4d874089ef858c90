#include "client/cli/certs_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "client/cli/certificates.h"
#include "client/cli/text_table.h"
#include "job/field_limits.h"

namespace tessera::cli {
namespace {

struct Flags {
  std::string folder;
  std::vector<std::string> coordinators;  // Hosts.
  std::vector<std::string> workers;       // ID or ID=HOST.
  std::vector<std::string> users, operators, readers;
  std::string nodes;  // The owner of jobs that `tessera run` starts; empty: none.
  int64_t days = 365;
};

// A file that is not there yet. Errors: AlreadyExists; as of the file system.
absl::Status WriteNew(const std::string& path, const std::string& content, mode_t mode) {
  const UniqueFd file(
      // Never over another one: certificates that are in use belong to the key that is there.
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.valid()) return ErrnoStatus(errno, path);
  const ssize_t written = write(file.get(), content.data(), content.size());
  if (written == static_cast<ssize_t>(content.size()) && fsync(file.get()) == 0)
    return absl::OkStatus();
  const absl::Status status = ErrnoStatus(written < 0 ? errno : ENOSPC, path);
  unlink(path.c_str());  // Half a key is none.
  return status;
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  return content.str();
}

class Folder {
 public:
  Folder(std::string path, const Console& console) : path_(std::move(path)), console_(console) {}

  // Whether both files are there, or none. Errors: FailedPrecondition  one of them is.
  absl::StatusOr<bool> Has(const std::string& name) const {
    const bool has_key = access(KeyOf(name).c_str(), F_OK) == 0;
    const bool has_certificate = access(CertificateOf(name).c_str(), F_OK) == 0;
    if (has_key == has_certificate) return has_key;
    return absl::FailedPreconditionError(absl::StrCat(
        has_key ? CertificateOf(name) : KeyOf(name), " is missing, and ",
        has_key ? KeyOf(name) : CertificateOf(name), " is there: put it back, or move both away"));
  }

  absl::Status Write(const std::string& name, const KeyAndCertificate& made) const {
    // The key first: where it cannot be written there is no certificate without one.
    RETURN_IF_ERROR(WriteNew(KeyOf(name), made.key, 0600));
    RETURN_IF_ERROR(WriteNew(CertificateOf(name), made.certificate, 0644));
    *console_.out << "made " << Printable(CertificateOf(name)) << ", " << Printable(KeyOf(name))
                  << "\n";
    return absl::OkStatus();
  }

  absl::StatusOr<KeyAndCertificate> Read(const std::string& name) const {
    KeyAndCertificate read;
    ASSIGN_OR_RETURN(read.key, ReadAll(KeyOf(name)));
    ASSIGN_OR_RETURN(read.certificate, ReadAll(CertificateOf(name)));
    return read;
  }

  absl::Status Make(const KeyAndCertificate& authority, const std::string& name,
                    const CertificateRequest& request) const {
    ASSIGN_OR_RETURN(const bool is_there, Has(name));
    if (is_there) {
      *console_.out << "kept " << Printable(CertificateOf(name)) << "\n";
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const KeyAndCertificate made, MakeCertificate(authority, request));
    return Write(name, made);
  }

 private:
  std::string KeyOf(const std::string& name) const {
    return absl::StrCat(path_, "/", name, ".key");
  }
  std::string CertificateOf(const std::string& name) const {
    return absl::StrCat(path_, "/", name, ".pem");
  }

  const std::string path_;
  const Console& console_;
};

struct Wanted {
  std::string file;
  CertificateRequest request;
};

absl::StatusOr<std::vector<Wanted>> WantedBy(const Flags& flags) {
  const absl::Duration valid_for = absl::Hours(24 * flags.days);
  std::vector<Wanted> wanted;
  if (!flags.coordinators.empty())
    wanted.push_back({"coordinator", {"tessera:coordinator", flags.coordinators, valid_for, true}});
  for (const std::string& worker : flags.workers) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(worker, absl::MaxSplits('=', 1));
    RETURN_IF_ERROR(CheckWorkerId("--worker", parts.first));
    const std::string& host = parts.second.empty() ? parts.first : parts.second;
    wanted.push_back({absl::StrCat("worker-", parts.first),
                      {absl::StrCat("tessera:worker:", parts.first), {host}, valid_for, true}});
  }
  const auto add_people = [&](const std::vector<std::string>& names, const std::string& role) {
    for (const std::string& name : names) {
      // It is a file's name, and `tessera:` is not for people to choose.
      RETURN_IF_ERROR(CheckWorkerId(absl::StrCat("--", role), name));
      wanted.push_back({absl::StrCat(role, "-", name),
                        {role == "user" ? name : absl::StrCat("tessera:", role), {}, valid_for}});
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add_people(flags.users, "user"));
  RETURN_IF_ERROR(add_people(flags.operators, "operator"));
  RETURN_IF_ERROR(add_people(flags.readers, "reader"));
  if (!flags.nodes.empty()) {
    RETURN_IF_ERROR(CheckWorkerId("--nodes", flags.nodes));
    wanted.push_back({"node", {flags.nodes, {}, valid_for}});
  }
  if (!wanted.empty()) return wanted;
  return absl::InvalidArgumentError(
      "certs make: for whom? --coordinator HOST, --worker ID=HOST, --user NAME, --nodes NAME");
}

absl::Status Run(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const std::vector<Wanted> wanted, WantedBy(flags));
  // For this user alone: a reader of ca.key can pose as anybody to the cluster.
  if (mkdir(flags.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, flags.folder);
  const Folder folder(flags.folder, console);
  ASSIGN_OR_RETURN(const bool has_authority, folder.Has("ca"));
  if (!has_authority) {
    ASSIGN_OR_RETURN(const KeyAndCertificate made, MakeAuthority(absl::Hours(24 * 3650)));
    RETURN_IF_ERROR(folder.Write("ca", made));
  }
  ASSIGN_OR_RETURN(const KeyAndCertificate authority, folder.Read("ca"));
  for (const Wanted& one : wanted) RETURN_IF_ERROR(folder.Make(authority, one.file, one.request));
  *console.out << "Give each host ca.pem and its own two files, and nobody ca.key.\n";
  return absl::OkStatus();
}

}  // namespace

void RegisterCertsCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* certs = app->add_subcommand("certs", "make certificates for TLS");
  certs->require_subcommand(1);
  CLI::App* command = certs->add_subcommand(
      "make", "make an authority in a folder, if it has none, and certificates of it");
  auto flags = std::make_shared<Flags>();
  constexpr int64_t kMaxDays = 3650;
  command->add_option("folder", flags->folder, "made if it is missing; what is there stays")
      ->required();
  command->add_option("--coordinator", flags->coordinators,
                      "a host by which the coordinator is dialled; may be repeated");
  command->add_option("--worker", flags->workers,
                      "a worker's ID=HOST, or its id, which is its host; may be repeated");
  command->add_option("--user", flags->users, "a name that owns jobs; may be repeated");
  command->add_option("--nodes", flags->nodes,
                      "a name that owns jobs of `tessera run`: the file that all nodes share");
  command->add_option("--operator", flags->operators,
                      "a name for the file of one who may do everything; may be repeated");
  command->add_option("--reader", flags->readers,
                      "a name for the file of one who may read everything; may be repeated");
  command->add_option("--days", flags->days, "how long they are valid; the authority 3650")
      ->check(WholeNumber(1, kMaxDays))
      ->capture_default_str();
  command->callback(
      [flags, selected] { *selected = [flags](const Console& c) { return Run(*flags, c); }; });
}

}  // namespace tessera::cli
