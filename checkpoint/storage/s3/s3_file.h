// An object that is open for reading: that version of it, by ranges.
//
// Large reads are several requests at once, kReadBytes each, of which kReadsAtOnce are in memory.
// Small ones that follow each other are taken from one range that is read ahead. Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_FILE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/storage.h"

namespace tessera::s3 {

inline constexpr int64_t kReadBytes = 8 << 20;
inline constexpr int kReadsAtOnce = 4;

class S3File final : public ReadableFile {
 public:
  // `shown`: as its user calls it.
  S3File(std::shared_ptr<const S3Client> client, S3Path object, ObjectInfo info, std::string shown)
      : client_(std::move(client)),
        object_(std::move(object)),
        info_(std::move(info)),
        shown_(std::move(shown)) {}

  absl::Status Read(int64_t at_bytes, int64_t size_bytes, void* into) const override;
  absl::Status ReadInPieces(int64_t at_bytes, int64_t size_bytes, PieceRoom* room,
                            TakePiece take) const override;
  const std::string& path() const override { return shown_; }
  int64_t size_bytes() const override { return info_.size_bytes; }
  absl::Time changed_at() const override { return info_.changed_at; }

 private:
  struct Window {
    int64_t at_bytes = 0;
    std::string bytes;
  };

  absl::Status CheckWithin(int64_t at_bytes, int64_t size_bytes) const;
  absl::Status ReadLarge(int64_t at_bytes, int64_t size_bytes, char* into) const;
  // The window with these bytes; null: they are read by themselves.
  absl::StatusOr<std::shared_ptr<const Window>> WindowWith(int64_t at_bytes,
                                                           int64_t size_bytes) const;

  const std::shared_ptr<const S3Client> client_;
  const S3Path object_;
  const ObjectInfo info_;
  const std::string shown_;

  mutable absl::Mutex mu_;
  mutable std::shared_ptr<const Window> window_ ABSL_GUARDED_BY(mu_);
  mutable int64_t next_at_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // After the last small read.
  mutable int64_t ahead_bytes_ ABSL_GUARDED_BY(mu_) = 0;    // Of the last window.
};

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_FILE_H_
