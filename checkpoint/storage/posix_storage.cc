#include "checkpoint/storage/posix_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/mapped_window.h"
#include "checkpoint/storage/range_writer.h"
#include "checkpoint/storage/write_at.h"

namespace tessera {
namespace {

class PosixFile final : public ReadableFile {
 public:
  PosixFile(UniqueFd fd, std::string path, const struct stat& info)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        size_bytes_(info.st_size),
        changed_at_(absl::TimeFromTimespec(info.st_mtim)) {}

  absl::Status Read(int64_t at_bytes, int64_t size_bytes, void* into) const override {
    char* data = static_cast<char*>(into);
    while (size_bytes > 0) {
      const ssize_t got = pread(fd_.get(), data, size_bytes, at_bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path_));
      // The file was truncated after it was opened.
      if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": shorter than it was"));
      data += got;
      at_bytes += got;
      size_bytes -= got;
    }
    return absl::OkStatus();
  }
  absl::Status ReadInPieces(int64_t at_bytes, int64_t size_bytes, PieceRoom* room,
                            TakePiece take) const override {
    int64_t taken_bytes = 0;
    while (size_bytes - taken_bytes >= kLeastMappedBytes && is_mapped_) {
      const int64_t window_bytes = std::min(kMappedBytes, size_bytes - taken_bytes);
      const auto window = MappedWindow::OfCached(fd_.get(), at_bytes + taken_bytes, window_bytes);
      const int64_t copied_bytes = window ? TakeFrom(*window, window_bytes, room, take) : 0;
      // An unreadable range is reported by the read. What the page cache lacks is read from here
      // on: reads bring it there in larger pieces than page faults do, which helps the next reader
      // too.
      if (copied_bytes < window_bytes) is_mapped_ = false;
      taken_bytes += copied_bytes;
    }
    return ReadableFile::ReadInPieces(at_bytes + taken_bytes, size_bytes - taken_bytes, room, take);
  }
  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return size_bytes_; }
  absl::Time changed_at() const override { return changed_at_; }

 private:
  // Mapped at once: enough for what that takes in system calls not to matter, and little memory.
  static constexpr int64_t kMappedBytes = 4 << 20, kLeastMappedBytes = 512 << 10;

  // Returns how many bytes were taken: all, or as many as could be read.
  static int64_t TakeFrom(const MappedWindow& window, int64_t size_bytes, PieceRoom* room,
                          TakePiece take) {
    for (int64_t at = 0; at < size_bytes; at += kPieceMultipleBytes) {
      const int64_t piece_bytes = std::min(kPieceMultipleBytes, size_bytes - at);
      if (!window.Copy(at, piece_bytes, room->bytes)) return at;
      take(absl::MakeConstSpan(room->bytes, piece_bytes));
    }
    return size_bytes;
  }

  const UniqueFd fd_;
  const std::string path_;
  const int64_t size_bytes_;
  const absl::Time changed_at_;
  mutable std::atomic<bool> is_mapped_{true};  // As far as the process and the file let it be.
};

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

absl::Status FsyncFolder(const std::string& path) {
  // A name is durable when its folder is synced, not its file.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open folder ", path));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync folder ", path));
  return absl::OkStatus();
}

// Whether the two files have each other's name now. Not where there is but one, where `to` is a
// folder, or on a file system that cannot.
bool ExchangeFiles(const std::string& from, const std::string& to) {
  struct stat info;
  if (lstat(to.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return false;
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
}

// Some network file systems know no flags.
bool RefusesFlags(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

absl::Status CannotExchange(const std::string& from, const std::string& to) {
  return absl::FailedPreconditionError(absl::StrCat("this file system cannot exchange ", from,
                                                    " and ", to,
                                                    ": give each checkpoint a name of its own"));
}

// Where nothing has the name `to` or, with `exchange`, something has, which becomes `from`.
absl::Status RenameFolder(const std::string& from, const std::string& to, bool exchange) {
  const unsigned flags = exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return absl::OkStatus();
  if (RefusesFlags(errno) && exchange) return CannotExchange(from, to);
  // Without flags it is refused as well, but for an empty folder, which nobody misses.
  if (RefusesFlags(errno) && rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  const int error = errno == ENOTEMPTY ? EEXIST : errno;
  return ErrnoStatus(error, absl::StrCat("rename ", from, " to ", to));
}

EntryInfo::Kind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return EntryInfo::Kind::kFile;
  if (S_ISDIR(mode)) return EntryInfo::Kind::kFolder;
  return S_ISLNK(mode) ? EntryInfo::Kind::kLink : EntryInfo::Kind::kOther;
}

const char* NameOf(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

// What has the name, if anything, may be replaced or removed: it is a regular file.
absl::Status CheckReplaceable(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", NameOf(info.st_mode), ", and is not replaced"));
}

// Makes a new file; a regular file that has the name is removed first. A link or device that
// another process puts there meanwhile is not written through.
absl::StatusOr<UniqueFd> CreateNew(const std::string& path) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    // O_EXCL: nothing that is there is written to.
    UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (fd.valid()) return fd;
    if (errno != EEXIST) return ErrnoStatus(errno, absl::StrCat("create ", path));
    RETURN_IF_ERROR(CheckReplaceable(path));
    // Another save may create it again at once, hence a few attempts.
    if (unlink(path.c_str()) != 0 && errno != ENOENT)
      return ErrnoStatus(errno, absl::StrCat("replace ", path));
  }
  return absl::FailedPreconditionError(absl::StrCat(path, ": another save writes it, too"));
}

// As ExchangeFiles, where it cannot: what has the name `to` is never without one.
// Errors: FailedPrecondition  the file system cannot do that either
absl::Status ExchangeByLinks(const std::string& from, const std::string& to) {
  const std::string older = absl::StrCat(from, ".older");
  RETURN_IF_ERROR(CheckReplaceable(older));  // A process that died in here has left it.
  if (unlink(older.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, absl::StrCat("remove ", older));
  if (link(to.c_str(), older.c_str()) != 0) {
    if (errno == EPERM || RefusesFlags(errno)) return CannotExchange(from, to);
    return ErrnoStatus(errno, absl::StrCat("link ", to));
  }
  // From here on the older file is kept by the link alone.
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    unlink(older.c_str());
    return ErrnoStatus(error, absl::StrCat("rename to ", to));
  }
  if (rename(older.c_str(), from.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  // The caller reports an error, and then the older file has to have its name.
  (void)rename(older.c_str(), to.c_str());
  return ErrnoStatus(error, absl::StrCat("rename ", older));
}

// Gives the file at `from` the name `to`. Returns whether something had the name, which has `from`
// now.
absl::StatusOr<bool> GiveName(const std::string& from, const std::string& to) {
  // First: an exchange leaves `to` without a file at no time.
  if (ExchangeFiles(from, to)) return true;
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return false;
  if (errno != EEXIST && !RefusesFlags(errno))
    return ErrnoStatus(errno, absl::StrCat("rename to ", to));
  const absl::Status exchanged = ExchangeByLinks(from, to);
  if (!absl::IsNotFound(exchanged)) RETURN_IF_ERROR(exchanged);
  if (exchanged.ok()) return true;
  if (rename(from.c_str(), to.c_str()) == 0) return false;
  return ErrnoStatus(errno, absl::StrCat("rename to ", to));
}

// Undoes GiveName. Where files cannot be exchanged, the one that got the name is gone.
void TakeNameBack(const std::string& from, const std::string& to, bool had_name) {
  if (had_name) {
    if (!ExchangeFiles(to, from)) (void)rename(from.c_str(), to.c_str());
  } else {
    (void)rename(to.c_str(), from.c_str());
  }
}

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

}  // namespace

absl::Status PosixStorage::CreateFile(const std::string& path, int64_t size_bytes,
                                      absl::string_view beginning) {
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateNew(path));
  // The blocks are taken now: a full disk must not stop a save in its middle.
  if (const int error = posix_fallocate(fd.get(), 0, size_bytes); error != 0)
    return ErrnoStatus(error, absl::StrCat("reserve ", size_bytes, " bytes for ", path));
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  // Not synced: each process that writes ranges syncs the file after that.
  return WriteAt(fd.get(), beginning, 0, path);
}

absl::StatusOr<std::unique_ptr<RangeSink>> PosixStorage::OpenToWrite(const std::string& path,
                                                                     DirectWrites* direct) {
  ASSIGN_OR_RETURN(RangeWriter writer, RangeWriter::Open(path, direct));
  return std::make_unique<RangeWriter>(std::move(writer));
}

absl::Status PosixStorage::WriteWhole(const std::string& path, absl::string_view bytes) {
  RETURN_IF_ERROR(FaultPoint("file.write"));
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateNew(path));
  RETURN_IF_ERROR(WriteAt(fd.get(), bytes, 0, path));
  RETURN_IF_ERROR(FaultPoint("file.sync"));
  // Synced here, since such a file gets no Sync of its own.
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync ", path));
  return absl::OkStatus();
}

absl::Status PosixStorage::PublishFile(const std::string& partial, const std::string& path) {
  // Before the first change.
  RETURN_IF_ERROR(CheckReplaceable(path));
  ASSIGN_OR_RETURN(const bool had_name, GiveName(partial, path));
  absl::Status status;
  if (had_name) status = CheckReplaceable(partial);  // Something else may be there meanwhile.
  if (status.ok()) status = FsyncFolder(FolderOf(path));
  if (!status.ok()) {
    // After an error the previous state is there.
    TakeNameBack(partial, path, had_name);
    return status;
  }
  if (had_name) (void)RemoveFile(partial);  // What has its name now is the older file.
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReadableFile>> PosixStorage::OpenFile(const std::string& path) {
  // O_NONBLOCK: the path may be a pipe, which would wait for a writer.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return std::make_unique<PosixFile>(std::move(fd), path, info);
}

absl::Status PosixStorage::RemoveFile(const std::string& path) {
  RETURN_IF_ERROR(CheckReplaceable(path));
  if (unlink(path.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("remove ", path));
}

absl::Status PosixStorage::MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("make folder ", path));
}

absl::Status PosixStorage::SyncFolder(const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("folder.sync"));
  return FsyncFolder(path);
}

absl::Status PosixStorage::PublishFolder(const std::string& partial, const std::string& path,
                                         bool exchange) {
  // The files' names must be durable before the folder's name is.
  RETURN_IF_ERROR(SyncFolder(partial));
  RETURN_IF_ERROR(FaultPoint("checkpoint.rename"));
  RETURN_IF_ERROR(RenameFolder(partial, path, exchange));
  // Only a place to die in.
  (void)FaultPoint("checkpoint.renamed");
  if (const absl::Status synced = SyncFolder(FolderOf(path)); !synced.ok()) {
    (void)UnpublishFolder(path, partial, exchange);  // As PublishFile.
    return synced;
  }
  (void)FaultPoint("checkpoint.published");
  return absl::OkStatus();
}

absl::Status PosixStorage::UnpublishFolder(const std::string& path, const std::string& partial,
                                           bool exchange) {
  return RenameFolder(path, partial, exchange);
}

absl::Status PosixStorage::RetireFolder(const std::string& path, const std::string& partial) {
  RETURN_IF_ERROR(RenameFolder(path, partial, /*exchange=*/false));
  // Durable before its files are removed.
  return SyncFolder(FolderOf(path));
}

absl::Status PosixStorage::RemoveEmptyFolder(const std::string& path) {
  if (rmdir(path.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("remove ", path));
}

absl::StatusOr<std::vector<std::string>> PosixStorage::List(const std::string& folder) {
  const std::unique_ptr<DIR, CloseFolder> open_folder(opendir(folder.c_str()));
  if (open_folder == nullptr) return ErrnoStatus(errno, absl::StrCat("list ", folder));
  std::vector<std::string> names;
  while (true) {
    // readdir tells an error by errno alone.
    errno = 0;
    const dirent* entry = readdir(open_folder.get());
    if (entry == nullptr && errno != 0) return ErrnoStatus(errno, absl::StrCat("list ", folder));
    if (entry == nullptr) return names;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

namespace {

// The number of an inode with when it was made, where the file system says so: the number of one
// that is removed is often given to the next.
uint64_t NumberOf(const std::string& path, int flags, uint64_t inode) {
  struct statx info = {};
  if (statx(AT_FDCWD, path.c_str(), flags, STATX_BTIME, &info) != 0) return inode;
  if ((info.stx_mask & STATX_BTIME) == 0) return inode;
  const uint64_t born = info.stx_btime.tv_sec * uint64_t{1'000'000'000} + info.stx_btime.tv_nsec;
  return inode + born * 0x9e3779b97f4a7c15;  // Odd, so that no time is lost.
}

}  // namespace

absl::StatusOr<std::optional<EntryInfo>> PosixStorage::Look(const std::string& path, Links links) {
  struct stat info;
  const int flags = links == Links::kSeen ? AT_SYMLINK_NOFOLLOW : 0;
  if (fstatat(AT_FDCWD, path.c_str(), &info, flags) != 0) {
    // A part of the path that is not a folder: nothing can be there.
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  return EntryInfo{KindOf(info.st_mode),
                   info.st_size,
                   absl::TimeFromTimespec(info.st_mtim),
                   {info.st_dev, NumberOf(path, flags, info.st_ino)}};
}

}  // namespace tessera
