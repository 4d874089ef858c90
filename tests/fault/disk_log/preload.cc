// Stands before libc's functions that change or read files (LD_PRELOAD). What concerns the watched
// folder is done under one lock and logged; a sync is logged and not done, since nobody pulls a
// plug here, and what would be lost is computed. Calls that are not followed are logged as unseen.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fault/disk_log/recorder.h"

using tessera::disk_log::DiskEvent;
using tessera::disk_log::InodeAt;
using tessera::disk_log::Operation;
using tessera::disk_log::Watch;
using namespace tessera::disk_log;  // NOLINT: the calls.

namespace {

// `call` opens; of the path it is known before whether it was there.
template <typename Call>
int Open(const char* name, const char* path, int flags, const Call& call) {
  Operation operation(kOpenCall, name, path);
  if (!operation.watched()) return call();
  if (operation.Fails()) return -1;
  int64_t size_bytes = 0;
  const uint64_t before = InodeAt(path, &size_bytes);
  const int fd = call();
  if (fd < 0) return fd;
  if ((flags & O_TMPFILE) == O_TMPFILE) operation.RecordUnseen();
  const uint64_t inode = Watch(fd);
  if (before == 0) {
    operation.Record(DiskEvent::kCreate, inode);
  } else if ((flags & O_TRUNC) != 0 && size_bytes > 0) {
    operation.Record(DiskEvent::kTruncate, inode);
  }
  return fd;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

bool IsDirect(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

template <typename Call>
ssize_t Write(DiskCall kind, const char* name, int fd, const void* data, size_t size, off_t at,
              const Call& call) {
  Operation operation(kind, name, fd);
  if (!operation.watched()) return call(size);
  if (operation.Fails(&size)) return -1;
  const ssize_t done = call(size);
  if (done <= 0) return done;
  if (at < 0) at = lseek(fd, 0, SEEK_CUR) - done;
  operation.Record(DiskEvent::kWrite, operation.inode(), at, done, data, done);
  return done;
}

template <typename Call>
ssize_t Read(const char* name, int fd, const Call& call) {
  Operation operation(kReadCall, name, fd);
  if (!operation.watched()) return call();
  if (operation.Fails()) return -1;
  const ssize_t done = call();
  if (done > 0) operation.CountRead(done);
  return done;
}

// A change of a file's size: its number is returned by posix_fallocate, set by the others.
template <typename Call>
int Resize(DiskCall kind, const char* name, int fd, DiskEvent event, int64_t size_bytes,
           const Call& call) {
  Operation operation(kind, name, fd);
  if (!operation.watched()) return call();
  if (operation.Fails()) return -1;
  const int result = call();
  if (result == 0) operation.Record(event, operation.inode(), 0, size_bytes);
  return result;
}

template <typename Call>
int Sync(const char* name, int fd, const Call& call) {
  Operation operation(kSyncCall, name, fd);
  if (!operation.watched()) return call();
  if (operation.Fails()) return -1;
  operation.Record(DiskEvent::kSync, operation.inode());
  return 0;
}

template <typename Call>
int Change(DiskCall kind, const char* name, const char* path, const char* second_path,
           DiskEvent event, const Call& call) {
  Operation operation(kind, name, path, second_path);
  if (!operation.watched()) return call();
  if (operation.Fails()) return -1;
  const int result = call();
  if (result == 0) operation.Record(event, event == DiskEvent::kMakeFolder ? InodeAt(path) : 0);
  return result;
}

// What is not followed, of a descriptor.
template <typename Call>
auto Unseen(DiskCall kind, const char* name, int fd, const Call& call) {
  Operation operation(kind, name, fd);
  if (operation.watched()) operation.RecordUnseen();
  return call();
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  REAL(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Open("open", path, flags, [&] { return real_open(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return open(path, flags, mode);
}
int creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char* path, mode_t mode) { return creat(path, mode); }
// Relative to a folder's descriptor only reading is followed; the rest shows as a difference at the
// log's end.
int openat(int folder, const char* path, int flags, ...) {
  REAL(openat);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Open("openat", path, flags, [&] { return real_openat(folder, path, flags, mode); });
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return openat(folder, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  REAL(write);
  return Write(kWriteCall, "write", fd, data, size, -1,
               [&](size_t n) { return real_write(fd, data, n); });
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  REAL(pwrite);
  const auto call = [&](size_t n) { return real_pwrite(fd, data, n, at); };
  return IsDirect(fd) ? Write(kDirectWriteCall, "pwrite O_DIRECT", fd, data, size, at, call)
                      : Write(kWriteCall, "pwrite", fd, data, size, at, call);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  return pwrite(fd, data, size, at);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  REAL(writev);
  return Unseen(kWriteCall, "writev", fd, [&] { return real_writev(fd, parts, count); });
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t at) {
  REAL(pwritev);
  return Unseen(kWriteCall, "pwritev", fd, [&] { return real_pwritev(fd, parts, count, at); });
}
ssize_t sendfile(int to, int from, off_t* at, size_t size) {
  REAL(sendfile);
  return Unseen(kWriteCall, "sendfile", to, [&] { return real_sendfile(to, from, at, size); });
}
ssize_t copy_file_range(int from, off64_t* at, int to, off64_t* to_at, size_t size,
                        unsigned flags) {
  REAL(copy_file_range);
  return Unseen(kWriteCall, "copy_file_range", to,
                [&] { return real_copy_file_range(from, at, to, to_at, size, flags); });
}
void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  REAL(mmap);
  const auto call = [&] { return real_mmap(at, size, protection, flags, fd, offset); };
  if (fd < 0 || (flags & MAP_TYPE) == MAP_PRIVATE || (protection & PROT_WRITE) == 0) return call();
  return Unseen(kWriteCall, "mmap", fd, call);
}

ssize_t read(int fd, void* into, size_t size) {
  REAL(read);
  return Read("read", fd, [&] { return real_read(fd, into, size); });
}
ssize_t pread(int fd, void* into, size_t size, off_t at) {
  REAL(pread);
  return Read("pread", fd, [&] { return real_pread(fd, into, size, at); });
}
ssize_t pread64(int fd, void* into, size_t size, off64_t at) { return pread(fd, into, size, at); }

int ftruncate(int fd, off_t size) {
  REAL(ftruncate);
  return Resize(kReserveCall, "ftruncate", fd, DiskEvent::kTruncate, size,
                [&] { return real_ftruncate(fd, size); });
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) {
  REAL(posix_fallocate);
  const int result = Resize(kReserveCall, "posix_fallocate", fd, DiskEvent::kReserve, at + size,
                            [&] { return real_posix_fallocate(fd, at, size); });
  return result < 0 ? errno : result;
}
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }
int fallocate(int fd, int mode, off_t at, off_t size) {
  REAL(fallocate);
  const auto call = [&] { return real_fallocate(fd, mode, at, size); };
  if (mode != 0) return Unseen(kReserveCall, "fallocate", fd, call);
  return Resize(kReserveCall, "fallocate", fd, DiskEvent::kReserve, at + size, call);
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
  return fallocate(fd, mode, at, size);
}

int fsync(int fd) {
  REAL(fsync);
  return Sync("fsync", fd, [&] { return real_fsync(fd); });
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return Sync("fdatasync", fd, [&] { return real_fdatasync(fd); });
}
// Promises nothing about the file's size, nor the disk's cache: as if it were not called.
int sync_file_range(int fd, off64_t at, off64_t size, unsigned flags) {
  REAL(sync_file_range);
  return real_sync_file_range(fd, at, size, flags);
}

int rename(const char* from, const char* to) {
  REAL(rename);
  return Change(kRenameCall, "rename", from, to, DiskEvent::kRename,
                [&] { return real_rename(from, to); });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  REAL(renameat);
  return Change(kRenameCall, "renameat", from, to, DiskEvent::kRename,
                [&] { return real_renameat(from_folder, from, to_folder, to); });
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  REAL(renameat2);
  const bool exchanges = (flags & RENAME_EXCHANGE) != 0;
  return Change(kRenameCall, "renameat2", from, to,
                exchanges ? DiskEvent::kExchange : DiskEvent::kRename,
                [&] { return real_renameat2(from_folder, from, to_folder, to, flags); });
}
int link(const char* from, const char* to) {
  REAL(link);
  return Change(kRenameCall, "link", from, to, DiskEvent::kLink,
                [&] { return real_link(from, to); });
}
int unlink(const char* path) {
  REAL(unlink);
  return Change(kUnlinkCall, "unlink", path, nullptr, DiskEvent::kUnlink,
                [&] { return real_unlink(path); });
}
int unlinkat(int folder, const char* path, int flags) {
  REAL(unlinkat);
  const bool of_folder = (flags & AT_REMOVEDIR) != 0;
  return Change(kUnlinkCall, "unlinkat", path, nullptr,
                of_folder ? DiskEvent::kRemoveFolder : DiskEvent::kUnlink,
                [&] { return real_unlinkat(folder, path, flags); });
}
int rmdir(const char* path) {
  REAL(rmdir);
  return Change(kUnlinkCall, "rmdir", path, nullptr, DiskEvent::kRemoveFolder,
                [&] { return real_rmdir(path); });
}
int remove(const char* path) {
  struct stat info;
  return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path);
}
int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  return Change(kMakeFolderCall, "mkdir", path, nullptr, DiskEvent::kMakeFolder,
                [&] { return real_mkdir(path, mode); });
}

}  // extern "C"
