#include "net/access_token.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

constexpr int kTokenBytes = 32;
constexpr size_t kTokenDigits = 2 * kTokenBytes;

std::string Describe(const std::string& path) {
  return absl::StrCat("token file '", path, "' (TESSERA_TOKEN_FILE names another)");
}

std::string HomeFolder() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') return home;
  passwd entry, *found = nullptr;
  std::vector<char> texts(1 << 14);
  if (getpwuid_r(geteuid(), &entry, texts.data(), texts.size(), &found) != 0 || found == nullptr)
    return "";
  return found->pw_dir;
}

// Writes it under another name first: readers see the whole file, and of two writers one wins.
absl::Status MakeToken(const std::string& path) {
  const std::string temporary = absl::StrCat(path, ".", RandomHex(8));
  // With this mode from the first moment, so that no other user ever reads it.
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, Describe(path));
  const std::string text = absl::StrCat(RandomHex(kTokenBytes), "\n");
  const ssize_t written = TEMP_FAILURE_RETRY(write(file.get(), text.data(), text.size()));
  absl::Status status;
  // Linked, not renamed: a token that another process made meanwhile stays.
  if (written != static_cast<ssize_t>(text.size())) {
    status = ErrnoStatus(written < 0 ? errno : ENOSPC, Describe(path));
  } else if (fsync(file.get()) != 0) {
    status = ErrnoStatus(errno, Describe(path));
  } else if (link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    status = ErrnoStatus(errno, Describe(path));
  }
  // In any case: a link has given the token its own name by now.
  unlink(temporary.c_str());
  return status;
}

}  // namespace

absl::StatusOr<std::string> AccessTokenPath() {
  if (const char* path = std::getenv("TESSERA_TOKEN_FILE"); path != nullptr && *path != '\0')
    return std::string(path);
  const std::string home = HomeFolder();
  if (!home.empty()) return absl::StrCat(home, "/.config/tessera/token");
  return absl::FailedPreconditionError(
      "this user has no home folder: set TESSERA_TOKEN_FILE to the token file's path");
}

absl::StatusOr<std::string> ReadAccessToken(const std::string& path) {
  // O_NONBLOCK: the path may be a pipe.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, Describe(path));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, Describe(path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(path), ": is not a regular file"));
  }
  // What others can read or replace proves nothing.
  if ((info.st_mode & 077) != 0 || info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat(Describe(path), ": must belong to the user of this process, and be readable ",
                     "by nobody else (chmod 600)"));
  }
  // A little more than a token, so that a longer text is noticed.
  std::string text(kTokenDigits + 2, '\0');
  // A signal of the process's own, say a profiler's, may interrupt it on a network's file system.
  const ssize_t got = TEMP_FAILURE_RETRY(read(file.get(), text.data(), text.size()));
  if (got < 0) return ErrnoStatus(errno, Describe(path));
  text.resize(got);
  absl::StripAsciiWhitespace(&text);
  if (text.size() == kTokenDigits && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit))
    return text;
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(path), ": does not hold ", kTokenDigits,
                   " hexadecimal digits; remove it, and the next coordinator makes a new one"));
}

absl::StatusOr<std::string> ReadOrMakeAccessToken(const std::string& path) {
  absl::StatusOr<std::string> token = ReadAccessToken(path);
  if (!absl::IsNotFound(token.status())) return token;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), Describe(path));
  // Another process may have been faster. Then its token is read.
  RETURN_IF_ERROR(MakeToken(path));
  return ReadAccessToken(path);
}

}  // namespace tessera
