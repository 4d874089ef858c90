// Calls each function that preload.cc stands before, below the folder given. Ends with the errno of
// the first that fails; 0: none did. A short write is continued, as programs do.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace {

// Of a call that gives -1, or of posix_fallocate, which gives the number.
void Check(long result) {
  if (result < 0) exit(errno);
}
void CheckNumber(int error) {
  if (error != 0) exit(error);
}

void WriteAll(int fd, std::string data, off_t at) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t more = at < 0 ? write(fd, &data[done], data.size() - done)
                                : pwrite(fd, &data[done], data.size() - done, at + done);
    Check(more);
    done += more;
  }
}

void Make(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  Check(fd);
  CheckNumber(posix_fallocate(fd, 0, 100));
  WriteAll(fd, "first", -1);
  WriteAll(fd, "second", -1);
  WriteAll(fd, std::string(5000, 'x'), 50);
  Check(ftruncate(fd, 4321));
  Check(fallocate(fd, 0, 4000, 500));
  Check(fdatasync(fd));
  Check(fsync(fd));
  char back[8];
  Check(pread(fd, back, sizeof(back), 0));
  Check(lseek(fd, 50, SEEK_SET));
  Check(read(fd, back, sizeof(back)));
  close(fd);
}

void SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Check(fd);
  Check(fsync(fd));
  close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = std::string(argv[1]) + "/";
  const auto at = [&](const char* name) { return folder + name; };
  Check(mkdir(at("f").c_str(), 0755));
  Check(mkdir(at("g").c_str(), 0755));
  Make(at("f/a"));
  Make(at("f/b"));
  Make(at("f/b"));  // Truncates.
  Make(at("g/c"));
  SyncFolder(at("f"));
  SyncFolder(folder);
  Check(rename(at("f/a").c_str(), at("f/d").c_str()));
  Check(rename(at("f/b").c_str(), at("f/d").c_str()));
  Check(renameat2(AT_FDCWD, at("f").c_str(), AT_FDCWD, at("g").c_str(), RENAME_EXCHANGE));
  Check(link(at("g/d").c_str(), at("g/e").c_str()));
  Check(unlink(at("g/d").c_str()));
  Check(remove(at("f/c").c_str()));
  Check(rmdir(at("f").c_str()));
  return 0;
}
