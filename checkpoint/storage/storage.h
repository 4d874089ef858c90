// Where files of checkpoints and models are stored. All that is done to them goes through here: a new
// kind of storage is one more subclass.
//
//   a file:    CreateFile(partial) ──► OpenToWrite(partial) by any processes: Write ..., Sync
//              ──► PublishFile(partial, path)
//   a folder:  MakeFolder(partial) ──► files in it, all synced ──► PublishFolder(partial, path)
//
// What gets a name by Publish is whole and durable before it has it, and whatever ends the process
// or the power, the name is that of the old one or of the new one. Nothing here renames: a store of
// objects cannot, and need not. "Objects:" says how one does each with what such stores have:
// conditional puts, multipart uploads, reads of ranges, lists by prefix (docs/adr/0081).
//
// Paths are absolute and name their storage (storage_path.h). Thread-safe; calls for one path that
// change something are their callers' to order. Errors of all: the storage's, with the path:
// NotFound, PermissionDenied, ResourceExhausted (full), Internal (it fails).
#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "checkpoint/storage/byte_source.h"

namespace tessera {

class DirectWrites;

// A file that is open for reading; what it was when it was opened. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Errors: also DataLoss  the file ends before.  Objects: a get of the range, of that version.
  virtual absl::Status Read(int64_t at_bytes, int64_t size_bytes, void* into) const = 0;
  // All of these bytes, in order: `take` is given a piece after the other, each but the last a
  // multiple of kPieceMultipleBytes. A piece belongs to this process, nobody changes it any more,
  // it is in the CPU's nearest caches as far as possible, and is gone once `take` returns.
  // Errors: as Read; what was taken before stands.
  static constexpr int64_t kPieceMultipleBytes = 8 << 10;
  struct alignas(4096) PieceRoom {  // A reader's own.
    char bytes[256 << 10];
  };
  using TakePiece = absl::FunctionRef<void(absl::Span<const char> piece)>;
  virtual absl::Status ReadInPieces(int64_t at_bytes, int64_t size_bytes, PieceRoom* room,
                                    TakePiece take) const;
  virtual const std::string& path() const = 0;
  virtual int64_t size_bytes() const = 0;
  virtual absl::Time changed_at() const = 0;
};

// Ranges of a file that is there in its full size and that other processes write too.
// Thread-compatible.
class RangeSink {
 public:
  // Told how many bytes more were taken.
  using Wrote = std::function<void(int64_t bytes)>;

  virtual ~RangeSink() = default;
  // All of `bytes`, which no other call writes, in any process, from byte `at_bytes` of the file
  // on. `crc32` is extended by them, while they are copied or written, and `wrote` is told of
  // taken, and all before this returns. Errors: also those of earlier writes.
  // Objects: goes, in parts, to an object of this sink's own.
  virtual absl::Status Write(ByteSource* bytes, int64_t at_bytes, uint32_t* crc32 = nullptr,
                             const Wrote& wrote = nullptr) = 0;
  absl::Status Write(absl::string_view bytes, int64_t at_bytes, uint32_t* crc32 = nullptr,
                     const Wrote& wrote = nullptr) {
    MemoryBytes memory(bytes);
    return Write(&memory, at_bytes, crc32, wrote);
  }
  // Makes what was written durable. Errors: also those of earlier writes.
  // Objects: finishes that object, and lists which ranges of the file it has.
  virtual absl::Status Sync() = 0;
  virtual const std::string& path() const = 0;
};

struct EntryInfo {
  enum class Kind { kFile, kFolder, kLink, kOther };
  Kind kind = Kind::kOther;
  int64_t size_bytes = 0;
  absl::Time changed_at;
  // The same under each name of the file there, and of no other file.
  std::pair<uint64_t, uint64_t> identity;
};

enum class Links { kFollowed, kSeen };

class Storage {
 public:
  virtual ~Storage() = default;

  // --- Files ---

  // Of all that makes, replaces or removes files: a link is never followed, and anything but a
  // regular file stays as it is. Errors: FailedPrecondition  names it, and says what it is.

  // Makes a file of that size, which begins with `beginning` and is otherwise zero, in place of one
  // that has the name. Not durable yet.
  // Objects: puts the number of this attempt below `path`, where others look for it. Every byte must
  // be written.
  virtual absl::Status CreateFile(const std::string& path, int64_t size_bytes,
                                  absl::string_view beginning) = 0;
  // Opens what CreateFile made. `direct`: what large ranges may go through, not owned, outlives the
  // result; null: nothing does.  Objects: reads the attempt's number.
  virtual absl::StatusOr<std::unique_ptr<RangeSink>> OpenToWrite(const std::string& path,
                                                                 DirectWrites* direct) = 0;
  // Makes a file of these bytes, in place of one that has the name; durable, but for its name.
  // Objects: a put.
  virtual absl::Status WriteWhole(const std::string& path, absl::string_view bytes) = 0;
  // Gives the finished file at `partial` the name `path`, durably; a file that had it is gone.
  // After an error the one that had the name has it again, or nothing has.
  // Errors: also FailedPrecondition  a file has the name, on a file system that can neither exchange
  // two files nor link one
  // Objects: a multipart upload to `path`, of ranges that the store copies from the sinks' objects.
  // Errors: also DataLoss  bytes that nobody wrote, or two did.
  virtual absl::Status PublishFile(const std::string& partial, const std::string& path) = 0;
  // Errors: also InvalidArgument  no regular file. Never waits, also where `path` is a pipe.
  // Objects: a head of it.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) = 0;
  // Not durable.  Objects: a delete; of one that is being made, ends the upload.
  virtual absl::Status RemoveFile(const std::string& path) = 0;

  // --- Folders ---

  // In a folder that exists. Errors: also AlreadyExists.
  // Objects: of one that is to be published, a conditional put of the object that says which prefix
  // has its files; else nothing: a folder is what names begin with.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Makes what a folder has durable: its names, not what they name.  Objects: nothing.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Gives the folder at `partial`, whose files are durable, the name `path`, durably. With
  // `exchange` a folder has the name, and is `partial` afterwards; else nothing has, and of several
  // that are given one name at once, by whichever processes, one gets it. After an error the names
  // are as before.
  // Errors: also FailedPrecondition  folders cannot be exchanged; AlreadyExists  without
  //         `exchange`, and something has the name.
  // Objects: one conditional put of the small object that says which prefix has the files, in place
  // of the version that was read.
  virtual absl::Status PublishFolder(const std::string& partial, const std::string& path,
                                     bool exchange) = 0;
  // Undoes it, as far as that goes: not durable.  Objects: the same.
  virtual absl::Status UnpublishFolder(const std::string& path, const std::string& partial,
                                       bool exchange) = 0;
  // Takes the name from a folder that is to be removed, durably: it is at `partial`, where nothing
  // is. After an error it has one of the two names.  Objects: the same.
  virtual absl::Status RetireFolder(const std::string& path, const std::string& partial) = 0;
  // Errors: also FailedPrecondition or Internal  something is in it.  Objects: nothing.
  virtual absl::Status RemoveEmptyFolder(const std::string& path) = 0;
  // The names in it, unordered.  Objects: a list by prefix, up to the next '/'.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;

  // nullopt: nothing has that name.  Objects: a head, or a list of one.
  virtual absl::StatusOr<std::optional<EntryInfo>> Look(const std::string& path,
                                                        Links links = Links::kFollowed) = 0;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_H_
