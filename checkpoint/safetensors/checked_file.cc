#include "checkpoint/safetensors/checked_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {
namespace {

// As much as a trainer can give.
constexpr int64_t kMaxWholeFileBytes = int64_t{1} << 30;

absl::StatusOr<ManifestFile> Expected(const std::string& folder, const std::string& name,
                                      const Manifest& manifest) {
  const auto it = manifest.files.find(name);
  if (it != manifest.files.end()) return it->second;
  return absl::InvalidArgumentError(absl::StrCat(folder, ": the checkpoint has no ", name));
}

// For the error about a file that cannot be read: what of it is lost.
std::string TensorsOf(const ManifestFile& expected) {
  constexpr size_t kMaxNames = 3;
  if (expected.tensors.empty()) return "";
  std::vector<std::string> names;
  for (const auto& [name, crc32] : expected.tensors) {
    if (names.size() < kMaxNames) names.push_back(absl::StrCat("'", name, "'"));
  }
  const size_t more = expected.tensors.size() - names.size();
  return absl::StrCat("; it had tensor", names.size() + more > 1 ? "s " : " ",
                      absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// The file's size and header, as far as the file has them. Errors: as ReadableFile::Read.
absl::StatusOr<std::string> ReadPrefix(const ReadableFile& file) {
  uint64_t header_bytes = 0;
  if (file.size_bytes() < 8) return std::string();
  RETURN_IF_ERROR(file.Read(0, 8, &header_bytes));
  // The announced length is untrusted, and allocated: it is bounded by the format and by the file.
  const uint64_t most = std::min<uint64_t>(kMaxHeaderBytes, file.size_bytes() - 8);
  std::string prefix(8 + std::min(header_bytes, most), '\0');
  RETURN_IF_ERROR(file.Read(0, prefix.size(), prefix.data()));
  return prefix;
}

// Where a file with the header that was saved ends too early: the first tensor that is not whole.
std::string CutTensors(const SafetensorsHeader& header, int64_t size_bytes) {
  const StoredTensor* first = nullptr;
  int num_cut = 0;
  for (const auto& [name, stored] : header.tensors) {
    if (header.data_offset_bytes + stored.end_bytes <= size_bytes) continue;
    ++num_cut;
    if (first == nullptr || stored.begin_bytes < first->begin_bytes) first = &stored;
  }
  if (first == nullptr) return "";
  const bool is_within = header.data_offset_bytes + first->begin_bytes < size_bytes;
  return absl::StrCat("; it ends ", is_within ? "within" : "before", " tensor '", first->name, "'",
                      num_cut > 1 ? absl::StrCat(", and ", num_cut - 1, " more are lost") : "");
}

// What a file of another size than expected lacks, by name.
std::string LostOf(const ReadableFile& file, const ManifestFile& expected) {
  if (expected.tensors.empty()) return "";
  // The header is used for the message only if it is the one that was saved.
  const absl::StatusOr<std::string> prefix = ReadPrefix(file);
  if (!prefix.ok() || Crc32(*prefix) != expected.crc32) return TensorsOf(expected);
  const absl::StatusOr<SafetensorsHeader> header = DecodeHeader(*prefix, expected.size_bytes);
  return header.ok() ? CutTensors(*header, file.size_bytes()) : TensorsOf(expected);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenExpected(const std::string& path,
                                                           const ManifestFile& expected) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage->OpenFile(path);
  // A file of the manifest that is not there is lost data, not a wrong path.
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(
        absl::StrCat(path, " is missing from the checkpoint", TensorsOf(expected)));
  }
  if (absl::IsInvalidArgument(file.status()))
    return absl::DataLossError(absl::StrCat(file.status().message(), TensorsOf(expected)));
  if (file.ok() && (*file)->size_bytes() != expected.size_bytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", (*file)->size_bytes(),
                                            " bytes, the manifest says ", expected.size_bytes,
                                            LostOf(**file, expected)));
  }
  return file;
}

// The header is the one that was saved, so this fails only for a manifest that contradicts itself.
absl::Status CheckTensorsAreThose(const std::string& path, const SafetensorsHeader& header,
                                  const ManifestFile& expected) {
  for (const auto& [name, crc32] : expected.tensors) {
    if (header.tensors.count(name) == 0)
      return absl::DataLossError(absl::StrCat(path, " lacks tensor '", name, "'"));
  }
  for (const auto& [name, stored] : header.tensors) {
    if (expected.tensors.count(name) == 0) {
      return absl::DataLossError(absl::StrCat(path, ": the manifest knows no tensor '", name, "'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckedFile> CheckedFile::Open(const std::string& folder, const std::string& name,
                                              const Manifest& manifest) {
  ASSIGN_OR_RETURN(ManifestFile expected, Expected(folder, name, manifest));
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, OpenExpected(path, expected));
  if (expected.size_bytes < 8)
    return absl::DataLossError(absl::StrCat(path, ": shorter than 8 bytes"));
  ASSIGN_OR_RETURN(const std::string prefix, ReadPrefix(*file));
  // Before it is parsed.
  if (Crc32(prefix) != expected.crc32) {
    return absl::DataLossError(
        absl::StrCat(path, ": its header is damaged, or another file's", TensorsOf(expected)));
  }
  absl::StatusOr<SafetensorsHeader> header = DecodeHeader(prefix, expected.size_bytes);
  if (!header.ok()) return absl::DataLossError(absl::StrCat(path, ": ", header.status().message()));
  RETURN_IF_ERROR(CheckTensorsAreThose(path, *header, expected));
  return CheckedFile(std::move(file), *std::move(header), std::move(expected));
}

absl::StatusOr<const StoredTensor*> CheckedFile::Find(const std::string& tensor) const {
  const auto it = header_.tensors.find(tensor);
  if (it != header_.tensors.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat(file_->path(), " has no tensor '", tensor, "'"));
}

absl::StatusOr<int64_t> CheckedFile::OffsetOf(const std::string& tensor, int64_t begin_bytes,
                                              int64_t size_bytes) const {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  const int64_t all_bytes = stored->end_bytes - stored->begin_bytes;
  // Written so that no sum can overflow.
  if (begin_bytes < 0 || size_bytes < 0 || begin_bytes > all_bytes ||
      size_bytes > all_bytes - begin_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": bytes [", begin_bytes, ", +",
                                                   size_bytes, ") of tensor '", tensor, "', ",
                                                   all_bytes));
  }
  return header_.data_offset_bytes + stored->begin_bytes + begin_bytes;
}

absl::Status CheckedFile::Read(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes,
                               void* into, uint32_t* crc32) const {
  ASSIGN_OR_RETURN(const int64_t file_offset, OffsetOf(tensor, begin_bytes, size_bytes));
  // The sum finds in the cache what was just read.
  constexpr int64_t kPieceBytes = 256 << 10;
  for (int64_t at = 0; at < size_bytes; at += kPieceBytes) {
    const int64_t piece_bytes = std::min(kPieceBytes, size_bytes - at);
    char* piece = static_cast<char*>(into) + at;
    const absl::Status read = file_->Read(file_offset + at, piece_bytes, piece);
    if (!read.ok()) return Annotate(read, absl::StrCat("tensor '", tensor, "'"));
    *crc32 = Crc32(piece, piece_bytes, *crc32);
  }
  return absl::OkStatus();
}

absl::Status CheckedFile::ReadInPieces(const std::string& tensor, int64_t begin_bytes,
                                       int64_t size_bytes, ReadableFile::PieceRoom* room,
                                       ReadableFile::TakePiece take, uint32_t* crc32) const {
  ASSIGN_OR_RETURN(const int64_t file_offset, OffsetOf(tensor, begin_bytes, size_bytes));
  const auto sum_and_take = [&](absl::Span<const char> piece) {
    *crc32 = Crc32(piece.data(), piece.size(), *crc32);
    take(piece);
  };
  const absl::Status read = file_->ReadInPieces(file_offset, size_bytes, room, sum_and_take);
  return read.ok() ? read : Annotate(read, absl::StrCat("tensor '", tensor, "'"));
}

absl::Status CheckedFile::Check(const std::string& tensor, uint32_t crc32) const {
  // Without a sum it cannot be told that it is whole.
  const auto it = expected_.tensors.find(tensor);
  if (it != expected_.tensors.end() && it->second == crc32) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file_->path(), ": tensor '", tensor, "' is damaged"));
}

absl::Status CheckedFile::Verify(const std::string& tensor) const {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  const int64_t all_bytes = stored->end_bytes - stored->begin_bytes;
  const std::unique_ptr<ReadableFile::PieceRoom> room(new ReadableFile::PieceRoom);
  uint32_t crc32 = kCrc32OfNothing;
  RETURN_IF_ERROR(ReadInPieces(
      tensor, 0, all_bytes, room.get(), [](absl::Span<const char>) {}, &crc32));
  return Check(tensor, crc32);
}

absl::StatusOr<std::string> ReadCheckedBytes(const std::string& folder, const std::string& name,
                                             const Manifest& manifest) {
  ASSIGN_OR_RETURN(const ManifestFile expected, Expected(folder, name, manifest));
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, OpenExpected(path, expected));
  // Before it is allocated.
  if (expected.size_bytes > kMaxWholeFileBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", expected.size_bytes, " bytes, more than ", kMaxWholeFileBytes));
  }
  std::string bytes(expected.size_bytes, '\0');
  RETURN_IF_ERROR(file->Read(0, expected.size_bytes, bytes.data()));
  if (Crc32(bytes) == expected.crc32) return bytes;
  return absl::DataLossError(absl::StrCat(path, " is damaged"));
}

}  // namespace tessera
