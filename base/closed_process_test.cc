#include "base/closed_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int kNobody = 65534;

// What a process of an ordinary user gets that opens a descriptor of another one of that user: 0,
// or an errno. -1: this test cannot become that user.
int LookInto(bool closed) {
  int ready[2], done[2], result[2];
  if (pipe(ready) != 0 || pipe(done) != 0 || pipe(result) != 0) return -1;
  char byte = 0;
  const pid_t target = fork();
  if (target == 0) {
    if (setuid(kNobody) != 0) _exit(1);
    if (closed) {
      CloseProcess();
    } else {
      prctl(PR_SET_DUMPABLE, 1);  // setuid has cleared it.
    }
    const int own = memfd_create("own", 0);  // Of that user, so that only the process is asked.
    (void)!write(ready[1], &own, sizeof(own));
    close(done[1]);
    (void)!read(done[0], &byte, 1);
    _exit(0);
  }
  close(ready[1]);
  int held = -1;
  const bool is_nobody = read(ready[0], &held, sizeof(held)) == sizeof(held) && held >= 0;
  const pid_t looker = fork();
  if (looker == 0) {
    if (setuid(kNobody) != 0) _exit(1);
    const std::string path = "/proc/" + std::to_string(target) + "/fd/" + std::to_string(held);
    const int error = open(path.c_str(), O_RDONLY) >= 0 ? 0 : errno;
    (void)!write(result[1], &error, sizeof(error));
    _exit(0);
  }
  int error = -1;
  close(result[1]);
  (void)!read(result[0], &error, sizeof(error));
  close(done[1]);
  for (const pid_t child : {target, looker}) waitpid(child, nullptr, 0);
  for (const int fd : {ready[0], done[0], result[0]}) close(fd);
  return is_nobody ? error : -1;
}

TEST(ClosedProcessTest, ProcessOfTheSameUserCannotOpenItsDescriptors) {
  if (LookInto(/*closed=*/false) != 0) GTEST_SKIP() << "needs root, to become another user";
  EXPECT_EQ(LookInto(/*closed=*/true), EACCES);
}

}  // namespace
}  // namespace tessera
