#include "coordinator/storage/journal_witness.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "coordinator/storage/row_checksum.h"

namespace tessera::coordinator {
namespace {

// "0000000000000000057 b2a2ae3c5ce8a3f1\n": of constant length.
std::string Line(int64_t number) {
  const std::string digits = absl::StrFormat("%019d", number);
  return absl::StrFormat("%s %016x\n", digits, RowChecksum("head", digits));
}

}  // namespace

absl::StatusOr<JournalWitness> JournalWitness::Open(const std::string& path) {
  JournalWitness witness;
  witness.path_ = path;
  witness.file_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!witness.file_.valid()) return ErrnoStatus(errno, path);
  char text[64];
  const ssize_t size = pread(witness.file_.get(), text, sizeof(text), 0);
  if (size < 0) return ErrnoStatus(errno, path);
  const absl::string_view line(text, size);
  // Created and never written, or the write had not reached the disk before a power failure.
  if (line.find_first_not_of('\0') == absl::string_view::npos) {
    RETURN_IF_ERROR(witness.Write(0));
    if (fsync(witness.file_.get()) != 0) return ErrnoStatus(errno, path);
    return witness;
  }
  if (!absl::SimpleAtoi(line.substr(0, line.find(' ')), &witness.number_) ||
      line != Line(witness.number_)) {
    return absl::DataLossError(absl::StrCat(
        "'", path,
        "', which records how many changes the journal next to it has, is damaged: if that "
        "journal is known to be complete, remove this file"));
  }
  return witness;
}

absl::Status JournalWitness::Write(int64_t number) {
  const std::string line = Line(number);
  // In place and without a sync: the journal is synced already, so this can lag but not run ahead.
  if (pwrite(file_.get(), line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()))
    return ErrnoStatus(errno, path_);
  number_ = number;
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
