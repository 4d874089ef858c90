#include "worker/comm/shm/process_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Whether this kernel lets a process read its parent's memory, as siblings read each other's.
TEST(ProcessMemoryTest, ChildReadsWhatItsParentWroteAfterTheFork) {
  std::vector<int> values(100000, 0), read(values.size(), -1);
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    if (::read(go[0], &byte, 1) != 1) _exit(3);
    const absl::Status status =
        ReadProcessMemory(parent, AddressOf(values.data()), read.data(), read.size() * sizeof(int));
    if (!status.ok()) _exit(2);
    std::vector<int> expected(read.size());
    std::iota(expected.begin(), expected.end(), 0);
    _exit(read == expected ? 0 : 1);
  }
  std::iota(values.begin(), values.end(), 0);
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this machine forbids it";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ProcessMemoryTest, AddressThatIsNotMappedIsAnErrorThatNamesTheProcess) {
  char byte;
  EXPECT_THAT(ReadProcessMemory(getpid(), 8, &byte, 1),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("read the memory of process " + std::to_string(getpid()))));
}

TEST(ProcessMemoryTest, ProcessThatIsGoneIsNotFound) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  char byte;
  EXPECT_THAT(ReadProcessMemory(child, AddressOf(&byte), &byte, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("No such process")));
}

}  // namespace
}  // namespace tessera
