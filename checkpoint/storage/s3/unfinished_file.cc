#include "checkpoint/storage/s3/unfinished_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/strict_json.h"
#include "checkpoint/storage/storage_patience.h"
#include "nlohmann/json.hpp"

namespace tessera::s3 {
namespace {

constexpr absl::string_view kListSuffix = ".json";
constexpr int kIdBytes = 16;
// Few parts more than the protocol allows would fail at the very end.
constexpr int64_t kMostObjectBytes = int64_t{kMostParts - 1'000} * kUploadPartBytes;
constexpr int kPartsAtOnce = 4, kRemovalsAtOnce = 8;

S3Path CreatePath(const S3Path& path) {
  return {path.bucket, absl::StrCat(path.key, "/create.json")};
}

// What all writers listed, with the keys of their objects.
absl::StatusOr<std::vector<Extent>> ReadExtents(const S3Client& client, const S3Path& path,
                                                const std::string& attempt) {
  const std::string prefix = absl::StrCat(path.key, "/", attempt, "/");
  ASSIGN_OR_RETURN(const Listing listing, client.List(path.bucket, prefix, /*by_folder=*/false));
  std::vector<Extent> all;
  for (const std::string& key : listing.keys) {
    if (!absl::EndsWith(key, kListSuffix)) continue;
    ASSIGN_OR_RETURN(const std::optional<SmallObject> list, client.Get({path.bucket, key}));
    // Removed since the keys were listed. What is missing then, PlanParts finds.
    if (!list.has_value()) continue;
    const absl::StatusOr<std::vector<Extent>> extents =
        DecodeExtents(list->bytes, std::string(absl::StripSuffix(key, kListSuffix)));
    if (!extents.ok()) return Annotate(extents.status(), PathOf({path.bucket, key}));
    all.insert(all.end(), extents->begin(), extents->end());
  }
  return all;
}

absl::StatusOr<std::string> ReadPart(const S3Client& client, const std::string& bucket,
                                     const FilePart& part) {
  std::string bytes(part.size_bytes, '\0');
  int64_t at = 0;
  for (const Extent& extent : part.extents) {
    const S3Path from = {bucket, extent.key};
    ASSIGN_OR_RETURN(const std::optional<ObjectInfo> info, client.Head(from));
    if (!info.has_value()) return absl::DataLossError(absl::StrCat(PathOf(from), " is gone"));
    RETURN_IF_ERROR(client.GetRange(from, info->etag, extent.object_at_bytes,
                                    absl::MakeSpan(bytes.data() + at, extent.size_bytes)));
    at += extent.size_bytes;
  }
  return bytes;
}

// After an error: as far as the store answers soon. A rule of the bucket's can end the rest.
void GiveUp(const S3Client& client, const Upload& upload) {
  const StoragePatience patience(absl::Seconds(5));
  (void)client.AbortUpload(upload);
}

absl::Status AssembleParts(const S3Client& client, const std::vector<FilePart>& parts,
                           const Upload& upload) {
  std::vector<std::string> etags(parts.size());
  ParallelCalls calls(kPartsAtOnce);
  for (size_t i = 0; i < parts.size(); ++i) {
    RETURN_IF_ERROR(calls.Add([&, i]() -> absl::Status {
      const FilePart& part = parts[i];
      const int number = static_cast<int>(i) + 1;
      if (part.is_copy) {
        const Extent& from = part.extents[0];
        ASSIGN_OR_RETURN(etags[i], client.CopyPart(upload, number, {upload.path.bucket, from.key},
                                                   from.object_at_bytes, from.size_bytes));
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const std::string bytes, ReadPart(client, upload.path.bucket, part));
      ASSIGN_OR_RETURN(etags[i], client.PutPart(upload, number, bytes));
      return absl::OkStatus();
    }));
  }
  RETURN_IF_ERROR(calls.Await());
  return client.CompleteUpload(upload, etags);
}

absl::Status Assemble(const S3Client& client, const std::vector<FilePart>& parts,
                      const S3Path& to) {
  if (parts.empty()) return client.Put(to, "");
  if (parts.size() == 1 && !parts[0].is_copy) {
    ASSIGN_OR_RETURN(const std::string bytes, ReadPart(client, to.bucket, parts[0]));
    return client.Put(to, bytes);
  }
  ASSIGN_OR_RETURN(const Upload upload, client.BeginUpload(to));
  const absl::Status status = AssembleParts(client, parts, upload);
  if (!status.ok()) GiveUp(client, upload);
  return status;
}

}  // namespace

absl::Status RemoveAll(const S3Client& client, const S3Path& prefix) {
  ASSIGN_OR_RETURN(const Listing listing,
                   client.List(prefix.bucket, prefix.key, /*by_folder=*/false));
  ParallelCalls calls(kRemovalsAtOnce);
  for (const std::string& key : listing.keys)
    RETURN_IF_ERROR(calls.Add([&, key] { return client.Delete({prefix.bucket, key}); }));
  return calls.Await();
}

absl::Status RemoveUnfinished(const S3Client& client, const S3Path& path) {
  const std::string whole(absl::StripSuffix(path.key, ".partial"));
  // Uploads first: one that its writer completes meanwhile is an object, which RemoveAll finds.
  ASSIGN_OR_RETURN(const std::vector<Upload> uploads, client.ListUploads(path.bucket, whole));
  for (const Upload& upload : uploads) {
    // What its writers and its publisher had begun, and no other file's.
    if (upload.path.key == whole || absl::StartsWith(upload.path.key, absl::StrCat(path.key, "/")))
      RETURN_IF_ERROR(client.AbortUpload(upload));
  }
  return RemoveAll(client, {path.bucket, absl::StrCat(path.key, "/")});
}

absl::Status CreateUnfinished(const std::shared_ptr<const S3Client>& client, const S3Path& path,
                              int64_t size_bytes, absl::string_view beginning) {
  ASSIGN_OR_RETURN(const Listing there, client->List(path.bucket, absl::StrCat(path.key, "/"),
                                                     /*by_folder=*/false, /*most=*/1));
  if (!there.keys.empty()) RETURN_IF_ERROR(RemoveUnfinished(*client, path));
  // In the keys of all ranges: a writer of an earlier attempt adds nothing to this one.
  const std::string attempt = RandomHex(kIdBytes);
  const nlohmann::ordered_json json = {{"attempt", attempt}, {"size", size_bytes}};
  // Before any range: writers find the attempt by this object.
  RETURN_IF_ERROR(client->Put(CreatePath(path), json.dump()));
  UploadSink sink(client, path, attempt, PathOf(path));
  RETURN_IF_ERROR(sink.Write(beginning, 0));
  return sink.Sync();
}

absl::StatusOr<std::optional<UnfinishedFile>> FindUnfinished(const S3Client& client,
                                                             const S3Path& path) {
  ASSIGN_OR_RETURN(const std::optional<SmallObject> object, client.Get(CreatePath(path)));
  if (!object.has_value()) return std::nullopt;
  const absl::StatusOr<nlohmann::json> json = ParseStrictJsonObject(object->bytes);
  if (!json.ok() || !json->contains("attempt") || !(*json)["attempt"].is_string() ||
      !json->contains("size") || !(*json)["size"].is_number_unsigned() ||
      (*json)["size"].get<uint64_t>() > uint64_t{kMaxFileBytes}) {
    return absl::DataLossError(absl::StrCat(PathOf(CreatePath(path)), " is damaged"));
  }
  return UnfinishedFile{(*json)["attempt"].get<std::string>(), (*json)["size"].get<int64_t>()};
}

absl::Status PublishUnfinished(const S3Client& client, const S3Path& path, const S3Path& to) {
  ASSIGN_OR_RETURN(const std::optional<UnfinishedFile> file, FindUnfinished(client, path));
  if (!file.has_value()) return absl::NotFoundError(absl::StrCat("no unfinished ", PathOf(path)));
  ASSIGN_OR_RETURN(std::vector<Extent> extents, ReadExtents(client, path, file->attempt));
  const absl::StatusOr<std::vector<FilePart>> parts =
      PlanParts(std::move(extents), file->size_bytes, kMostCopyBytes);
  if (!parts.ok()) return Annotate(parts.status(), PathOf(path));
  RETURN_IF_ERROR(Assemble(client, *parts, to));
  // Only now: until the file was assembled these objects were the only copy.
  return RemoveAll(client, {path.bucket, absl::StrCat(path.key, "/")});
}

UploadSink::UploadSink(std::shared_ptr<const S3Client> client, const S3Path& path,
                       const std::string& attempt, std::string shown)
    : client_(std::move(client)),
      path_{path.bucket, absl::StrCat(path.key, "/", attempt, "/", RandomHex(kIdBytes))},
      shown_(std::move(shown)) {}

UploadSink::~UploadSink() { GiveUpUpload(); }

S3Path UploadSink::ObjectPath() const {
  return {path_.bucket, absl::StrCat(path_.key, "-", num_objects_)};
}

absl::Status UploadSink::Write(ByteSource* bytes, int64_t at_bytes, uint32_t* crc32,
                               const Wrote& wrote) {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;  // Summed while it is in the CPU's cache.
  RETURN_IF_ERROR(status_);
  for (const int64_t end = at_bytes + bytes->size_bytes(); at_bytes < end;) {
    const int64_t piece = std::min({kPieceBytes, end - at_bytes, kUploadPartBytes - filled_bytes_});
    status_ = WritePiece(bytes, piece, at_bytes, crc32);
    RETURN_IF_ERROR(status_);
    if (wrote != nullptr) wrote(piece);
    at_bytes += piece;
  }
  return absl::OkStatus();
}

absl::Status UploadSink::WritePiece(ByteSource* bytes, int64_t size_bytes, int64_t at_bytes,
                                    uint32_t* crc32) {
  if (buffer_ == nullptr) buffer_.reset(new char[kUploadPartBytes]);
  char* const into = buffer_.get() + filled_bytes_;
  const char* const taken = bytes->Take(size_bytes, into);
  if (taken != into) memcpy(into, taken, size_bytes);
  // Of the copy that is sent: a source that changes meanwhile would be noticed by readers.
  if (crc32 != nullptr) *crc32 = Crc32(into, size_bytes, *crc32);
  extents_.push_back({"", sent_bytes_ + filled_bytes_, at_bytes, size_bytes});
  const size_t last = extents_.size() - 1;
  if (last > 0 && extents_[last - 1].file_at_bytes + extents_[last - 1].size_bytes == at_bytes) {
    // They follow each other in the object in any case.
    extents_[last - 1].size_bytes += size_bytes;
    extents_.pop_back();
  }
  filled_bytes_ += size_bytes;
  if (filled_bytes_ < kUploadPartBytes) return absl::OkStatus();
  RETURN_IF_ERROR(SendPart());
  return sent_bytes_ < kMostObjectBytes ? absl::OkStatus() : FinishObject();
}

absl::Status UploadSink::SendPart() {
  if (!upload_.has_value()) {
    ASSIGN_OR_RETURN(upload_, client_->BeginUpload(ObjectPath()));
    calls_.emplace(kUploadsAtOnce);
  }
  std::string& etag = etags_.emplace_back();
  const int number = static_cast<int>(etags_.size());
  const int64_t size_bytes = filled_bytes_;
  RETURN_IF_ERROR(
      calls_->Add([this, &etag, number, size_bytes, buffer = std::move(buffer_)]() -> absl::Status {
        ASSIGN_OR_RETURN(etag, client_->PutPart(*upload_, number,
                                                {buffer.get(), static_cast<size_t>(size_bytes)}));
        return absl::OkStatus();
      }));
  buffer_ = nullptr;
  sent_bytes_ += filled_bytes_;
  filled_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status UploadSink::FinishUpload() {
  if (filled_bytes_ > 0) RETURN_IF_ERROR(SendPart());
  RETURN_IF_ERROR(calls_->Await());
  RETURN_IF_ERROR(client_->CompleteUpload(*upload_, {etags_.begin(), etags_.end()}));
  upload_.reset();
  return absl::OkStatus();
}

absl::Status UploadSink::FinishObject() {
  const S3Path object = ObjectPath();
  if (upload_.has_value()) {
    RETURN_IF_ERROR(FinishUpload());
  } else {
    RETURN_IF_ERROR(client_->Put(object, {buffer_.get(), static_cast<size_t>(filled_bytes_)}));
  }
  // After the object, so that a range that is listed is there.
  RETURN_IF_ERROR(client_->Put({object.bucket, absl::StrCat(object.key, kListSuffix)},
                               EncodeExtents(extents_)));
  ++num_objects_;
  filled_bytes_ = sent_bytes_ = 0;
  extents_.clear();
  etags_.clear();
  return absl::OkStatus();
}

absl::Status UploadSink::Sync() {
  RETURN_IF_ERROR(status_);
  if (filled_bytes_ == 0 && sent_bytes_ == 0) return absl::OkStatus();
  status_ = FinishObject();
  if (!status_.ok()) GiveUpUpload();
  return status_;
}

void UploadSink::GiveUpUpload() {
  if (!upload_.has_value()) return;
  // Parts on their way would outlive the upload, and their calls this object.
  (void)calls_->Await();
  GiveUp(*client_, *upload_);
  upload_.reset();
}

}  // namespace tessera::s3
