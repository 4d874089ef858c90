// Writes past the page cache (O_DIRECT) of what one save has for them, whichever file it goes to.
//
//   caller: copies and sums ──► two buffers of 2 MiB ──► thread: pwrite, while the next is copied
//
// Alone the caller's copying would leave the device idle, and more buffers win nothing. They are
// huge pages, which a device gets in few pieces. The thread has the priority of its maker.
//
// Where a file system refuses such a write the cache takes it, which the log says once in a
// process. Confined to one thread at a time.
#ifndef TESSERA_CHECKPOINT_STORAGE_DIRECT_WRITES_H_
#define TESSERA_CHECKPOINT_STORAGE_DIRECT_WRITES_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/byte_source.h"

namespace tessera {

// Below this the page cache is faster, which combines adjacent writes.
inline constexpr int64_t kDirectFromBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxDirectFromBytes = int64_t{1} << 40;  // For flags.

class DirectWrites {
 public:
  // A file that direct writes go to.
  struct File {
    std::string path;
    UniqueFd cached, direct;
    int64_t block_bytes = 0;           // What a direct write begins and ends at a multiple of.
    std::atomic<bool> refused{false};  // Its file system has none after all.
  };

  // Ranges with so many bytes in whole blocks are worth it; 0: none is.
  explicit DirectWrites(int64_t from_bytes) : from_bytes_(from_bytes) {}
  // Waits for what is being written.
  ~DirectWrites();
  DirectWrites(const DirectWrites&) = delete;
  DirectWrites& operator=(const DirectWrites&) = delete;

  int64_t from_bytes() const { return from_bytes_; }

  // Opens what is there a second time. Nothing where its file system has no direct writes.
  // Errors: the file system's, with the path.
  static absl::StatusOr<std::shared_ptr<File>> Open(const std::string& path);

  // The next size_bytes of `bytes`, whole blocks of the file, copied before this returns and
  // written later. `crc32` is extended by them, and `wrote` is told of them piece by piece; both
  // may be null. Errors: that of an earlier write, with its file's path; ResourceExhausted  no
  // memory or thread.
  absl::Status Write(std::shared_ptr<File> file, ByteSource* bytes, int64_t size_bytes,
                     int64_t at_bytes, uint32_t* crc32,
                     const std::function<void(int64_t bytes)>& wrote);
  // Waits until all is written. Errors: that of the first write that failed.
  absl::Status Await();
  // How many bytes went past the page cache, after Await.
  int64_t direct_bytes() const { return direct_bytes_.load(); }

 private:
  struct Free {
    void operator()(char* memory) const { free(memory); }
  };
  struct Piece {
    std::unique_ptr<char, Free> buffer;
    std::shared_ptr<File> file;  // Null: the buffer is free.
    int64_t at_bytes = 0, size_bytes = 0;
  };
  static constexpr int kPieces = 2;

  absl::Status Start();
  // Waits until it is free.
  absl::Status AwaitFree(const Piece& piece);
  void Run();
  absl::Status WritePiece(const Piece& piece);

  const int64_t from_bytes_;
  std::thread thread_;
  int next_piece_ = 0;  // To be filled.
  std::atomic<int64_t> direct_bytes_{0};

  absl::Mutex mu_;
  // In the order of a ring. What is in a piece is the thread's while it has a file.
  Piece pieces_[kPieces];
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_DIRECT_WRITES_H_
