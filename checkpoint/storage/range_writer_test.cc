#include "checkpoint/storage/range_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/direct_writes.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int kWriters = 4;

std::string RandomBytes(int64_t size_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string ReadCached(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

struct PageFree {
  void operator()(char* memory) const { free(memory); }
};
using PageMemory = std::unique_ptr<char, PageFree>;
PageMemory AlignedMemory(int64_t size_bytes) {
  return PageMemory(static_cast<char*>(aligned_alloc(kPageBytes, size_bytes)));
}

// What is on the disk, whatever the page cache has.
std::string ReadDirect(const std::string& path, int64_t size_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  const int64_t whole = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const PageMemory memory = AlignedMemory(whole);
  EXPECT_EQ(pread(fd.get(), memory.get(), whole, 0), size_bytes) << ErrnoStatus(errno, path);
  return std::string(memory.get(), size_bytes);
}

class RangeWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/tessera-ranges-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/file";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Zeros, as ModelFile::Create leaves them.
  static void Reserve(const std::string& path, int64_t size_bytes) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(posix_fallocate(fd.get(), 0, size_bytes), 0);
  }
  // Whether the file system of the folder has direct writes, tried without the writer.
  static bool HasDirectWrites(const std::string& folder) {
    const std::string path = folder + "/tried";
    Reserve(path, kPageBytes);
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
    const PageMemory page = AlignedMemory(kPageBytes);
    memset(page.get(), 'x', kPageBytes);
    return fd.valid() && pwrite(fd.get(), page.get(), kPageBytes, 0) == kPageBytes;
  }

  std::string folder_, path_;
};

struct Range {
  int64_t begin_bytes, end_bytes;
};

// Cuts a file into ranges of very different lengths, few of which begin at a block.
std::vector<Range> RandomCut(int64_t size_bytes, std::mt19937_64* random) {
  std::vector<Range> ranges;
  for (int64_t at = 0; at < size_bytes;) {
    const int64_t most = int64_t{1} << (1 + (*random)() % 21);
    const int64_t end = std::min<int64_t>(size_bytes, at + 1 + (*random)() % most);
    ranges.push_back({at, end});
    at = end;
  }
  return ranges;
}

// What the processes of a test have in common.
struct Shared {
  pthread_barrier_t begin;
  int64_t direct_bytes[kWriters];
};

class SharedPage {
 public:
  SharedPage() {
    void* page =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = static_cast<Shared*>(page);
    pthread_barrierattr_t between_processes;
    pthread_barrierattr_init(&between_processes);
    pthread_barrierattr_setpshared(&between_processes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared_->begin, &between_processes, kWriters);
  }
  ~SharedPage() { munmap(shared_, sizeof(Shared)); }
  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

// A writer's process: every kWriters-th range, so that neighbours are another one's.
bool WriteEach(const std::string& path, const std::vector<Range>& ranges, const std::string& bytes,
               int number, const SharedPage& shared) {
  DirectWrites direct(kPageBytes);
  absl::StatusOr<RangeWriter> writer = RangeWriter::Open(path, &direct);
  pthread_barrier_wait(&shared->begin);
  if (!writer.ok()) return false;
  for (size_t i = number; i < ranges.size(); i += kWriters) {
    const auto [begin, end] = ranges[i];
    const absl::string_view part = absl::string_view(bytes).substr(begin, end - begin);
    uint32_t crc32 = Crc32("before");
    int64_t told_bytes = 0;
    const auto wrote = [&](int64_t more_bytes) { told_bytes += more_bytes; };
    if (!writer->Write(part, begin, &crc32, wrote).ok()) return false;
    if (crc32 != Crc32(absl::StrCat("before", part)) || told_bytes != end - begin) return false;
  }
  const bool synced = writer->Sync().ok();
  shared->direct_bytes[number] = direct.direct_bytes();
  return synced;
}

// Blocks are shared by two processes, by many, and by direct and cached ranges.
TEST_F(RangeWriterTest, RangesOfSeveralProcessesHaveTheirBytesWhateverBlocksTheyShare) {
  const bool has_direct = HasDirectWrites(folder_);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t size_bytes = (4 << 20) + static_cast<int64_t>(random() % (4 << 20));
    const std::string bytes = RandomBytes(size_bytes, seed);
    const std::vector<Range> ranges = RandomCut(size_bytes, &random);
    Reserve(path_, size_bytes);
    const SharedPage shared;
    std::vector<pid_t> writers;
    for (int number = 0; number < kWriters; ++number) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) _exit(WriteEach(path_, ranges, bytes, number, shared) ? 0 : 1);
      writers.push_back(pid);
    }
    int64_t direct_bytes = 0;
    for (int number = 0; number < kWriters; ++number) {
      int status = 0;
      ASSERT_EQ(waitpid(writers[number], &status, 0), writers[number]);
      EXPECT_EQ(status, 0) << "writer " << number;
      direct_bytes += shared->direct_bytes[number];
    }
    EXPECT_TRUE(ReadCached(path_) == bytes);
    if (has_direct) {
      EXPECT_TRUE(ReadDirect(path_, size_bytes) == bytes);
      EXPECT_GT(direct_bytes, size_bytes / 2) << "most goes directly";
    }
  }
}

TEST_F(RangeWriterTest, OnlyWholeBlocksOfLargeRangesGoDirectly) {
  const bool has_direct = HasDirectWrites(folder_);
  const std::string bytes = RandomBytes(5 << 20, 1);
  Reserve(path_, 5 << 20);
  const auto direct_bytes_of = [&](int64_t begin_bytes, int64_t size_bytes, int64_t from_bytes) {
    DirectWrites direct(from_bytes);
    absl::StatusOr<RangeWriter> writer = RangeWriter::Open(path_, &direct);
    EXPECT_OK(writer);
    EXPECT_OK(writer->Write(bytes.substr(begin_bytes, size_bytes), begin_bytes));
    EXPECT_OK(writer->Sync());
    return direct.direct_bytes();
  };
  EXPECT_EQ(direct_bytes_of(0, kDirectFromBytes - 1, kDirectFromBytes), 0);
  EXPECT_EQ(direct_bytes_of(kDirectFromBytes - 1, kDirectFromBytes, kDirectFromBytes), 0)
      << "as many bytes, but not in whole blocks";
  EXPECT_EQ(direct_bytes_of(2 << 20, 3 << 20, 0), 0) << "not asked for";
  // The first byte of this range is the last one of a block, whatever a block is.
  const int64_t direct_bytes = direct_bytes_of((2 << 20) - 1, (3 << 20) + 1, kDirectFromBytes);
  EXPECT_EQ(direct_bytes, has_direct ? 3 << 20 : 0);
  EXPECT_TRUE(ReadCached(path_) == bytes);
}

// A mount namespace of this process's own, where it may mount: as root at once, else as the root
// of a user namespace.
bool EnterOwnMountNamespace() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

TEST_F(RangeWriterTest, FileSystemWithoutDirectWritesIsWrittenThroughThePageCache) {
  if (!EnterOwnMountNamespace()) GTEST_SKIP() << "no mount namespace";
  const std::string mounted = folder_ + "/mounted";
  ASSERT_TRUE(std::filesystem::create_directory(mounted));
  if (mount("ramfs", mounted.c_str(), "ramfs", 0, nullptr) != 0)
    GTEST_SKIP() << ErrnoStatus(errno, "mount a ramfs");
  {
    ASSERT_FALSE(HasDirectWrites(mounted)) << "it is why this file system was taken";
    const std::string path = mounted + "/file", bytes = RandomBytes(3 << 20, 2);
    Reserve(path, 3 << 20);
    DirectWrites direct(kPageBytes);
    ASSERT_OK_AND_ASSIGN(RangeWriter writer, RangeWriter::Open(path, &direct));
    uint32_t crc32 = kCrc32OfNothing;
    EXPECT_OK(writer.Write(bytes.substr(0, 1 << 20), 0, &crc32));
    EXPECT_OK(writer.Write(bytes.substr(1 << 20), 1 << 20, &crc32));
    EXPECT_OK(writer.Sync());
    EXPECT_EQ(direct.direct_bytes(), 0);
    EXPECT_EQ(crc32, Crc32(bytes));
    EXPECT_TRUE(ReadCached(path) == bytes);
  }
  EXPECT_EQ(umount(mounted.c_str()), 0);
}

TEST_F(RangeWriterTest, ErrorsNameTheFile) {
  EXPECT_THAT(RangeWriter::Open(path_, nullptr).status(),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr(path_)));
  Reserve(path_, kPageBytes);
  const UniqueFd read_only(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  RangeWriter writer(UniqueFd(dup(read_only.get())), path_, nullptr);
  EXPECT_THAT(writer.Write("bytes", 0),
              StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("write " + path_)));
}

}  // namespace
}  // namespace tessera
