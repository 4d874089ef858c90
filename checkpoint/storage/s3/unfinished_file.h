// A file that several processes write before it has its name.
//
//   KEY.partial/create.json           its size, and the number of this attempt
//   KEY.partial/ATTEMPT/WRITER-N      what one writer uploaded, whatever ranges of the file it is
//   KEY.partial/ATTEMPT/WRITER-N.json where in the file that belongs (file_parts.h)
//   PublishUnfinished: KEY            put together of these by the store, at once and whole
//
// Each writer uploads in parts of kUploadPartBytes, kUploadsAtOnce at a time beside the one that is
// filled: that bounds its memory. Errors: the client's.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_UNFINISHED_FILE_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_UNFINISHED_FILE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/s3/file_parts.h"
#include "checkpoint/storage/s3/parallel_calls.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "checkpoint/storage/storage.h"

namespace tessera::s3 {

inline constexpr int64_t kUploadPartBytes = 8 << 20;
inline constexpr int kUploadsAtOnce = 3;
inline constexpr int64_t kMostCopyBytes = 512 << 20;

struct UnfinishedFile {
  std::string attempt;
  int64_t size_bytes = 0;
};

// `path`: of KEY.partial, in these and the following. In place of what an earlier attempt left.
// `beginning`: what the file begins with.
absl::Status CreateUnfinished(const std::shared_ptr<const S3Client>& client, const S3Path& path,
                              int64_t size_bytes, absl::string_view beginning);
// nullopt: there is none. Errors: also DataLoss  create.json is not one.
absl::StatusOr<std::optional<UnfinishedFile>> FindUnfinished(const S3Client& client,
                                                             const S3Path& path);
// `to`: where the file gets its name. Errors: also DataLoss  bytes that nobody wrote, or two did.
absl::Status PublishUnfinished(const S3Client& client, const S3Path& path, const S3Path& to);
// Removes all of it and ends its uploads.
absl::Status RemoveUnfinished(const S3Client& client, const S3Path& path);
// Removes all objects whose keys begin with the path's.
absl::Status RemoveAll(const S3Client& client, const S3Path& prefix);

// Ranges of such a file. Thread-compatible.
class UploadSink final : public RangeSink {
 public:
  // `shown`: the path for messages.
  UploadSink(std::shared_ptr<const S3Client> client, const S3Path& path, const std::string& attempt,
             std::string shown);
  // Gives up what was not synced.
  ~UploadSink() override;

  using RangeSink::Write;
  absl::Status Write(ByteSource* bytes, int64_t at_bytes, uint32_t* crc32 = nullptr,
                     const Wrote& wrote = nullptr) override;
  absl::Status Sync() override;
  const std::string& path() const override { return shown_; }

 private:
  absl::Status WritePiece(ByteSource* bytes, int64_t size_bytes, int64_t at_bytes, uint32_t* crc32);
  S3Path ObjectPath() const;
  absl::Status SendPart();
  absl::Status FinishUpload();
  // The object, and then the list of what it has: one without a list is not looked at.
  absl::Status FinishObject();
  void GiveUpUpload();

  const std::shared_ptr<const S3Client> client_;
  const S3Path path_;  // Of what it uploads, without the number.
  const std::string shown_;
  absl::Status status_;  // Of the first write that failed.
  int num_objects_ = 0;  // That are finished.
  // Of the object that is being written:
  std::shared_ptr<char[]> buffer_;
  int64_t filled_bytes_ = 0, sent_bytes_ = 0;
  std::vector<Extent> extents_;
  std::optional<Upload> upload_;
  std::deque<std::string> etags_;  // Each is written by the call that uploads the part.
  std::optional<ParallelCalls> calls_;
};

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_UNFINISHED_FILE_H_
