// A part of a file that the page cache has, mapped to be copied from. A copy in the process reads
// ahead over the ends of pages, which one in the kernel does not, and goes no way but one.
//
//   if (const auto window = MappedWindow::OfCached(fd, at_bytes, size_bytes))
//     if (!window->Copy(from_bytes, some_bytes, into)) ...   // read() will say why
//
// Under a map, a file that was cut off, a device that fails and memory that does are a SIGBUS. So
// files are mapped only where the process has said that it may be guarded: then such a page is
// zeros to the copy that met it, which returns false.
#ifndef TESSERA_CHECKPOINT_STORAGE_MAPPED_WINDOW_H_
#define TESSERA_CHECKPOINT_STORAGE_MAPPED_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace tessera {

// From here on this process may map files to read them: handles SIGBUS, and passes on what comes of
// anything else. For a program's own beginning: a process that is somebody else's is not asked for
// its signals. Again: nothing. Thread-safe.
void LetFilesBeMapped();

// Move-only; thread-compatible.
class MappedWindow {
 public:
  // Bytes [at_bytes, at_bytes + size_bytes) of the file, of which all but some were in the page
  // cache just now; nullopt: they were not, or this process or this file cannot be mapped. Then
  // read them: a read also reads ahead, and further than a map does.
  // `fd` may be closed meanwhile.
  static std::optional<MappedWindow> OfCached(int fd, int64_t at_bytes, int64_t size_bytes);

  MappedWindow(MappedWindow&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)),
        size_bytes_(other.size_bytes_),
        skipped_bytes_(other.skipped_bytes_) {}
  MappedWindow& operator=(MappedWindow&&) = delete;
  ~MappedWindow();

  // The window's bytes [from_bytes, from_bytes + size_bytes), each of them read once, so that what
  // others write to the file meanwhile is in `into` or is not. False: some could not be read, and
  // `into` means nothing.
  bool Copy(int64_t from_bytes, int64_t size_bytes, void* into) const;

 private:
  MappedWindow(char* begin, int64_t size_bytes, int64_t skipped_bytes)
      : begin_(begin), size_bytes_(size_bytes), skipped_bytes_(skipped_bytes) {}

  char* begin_;  // Of a page.
  int64_t size_bytes_;
  int64_t skipped_bytes_;  // Of that page.
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_MAPPED_WINDOW_H_
