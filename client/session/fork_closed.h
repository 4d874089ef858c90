// A descriptor that children of fork() do not keep, and whether this process is such a child.
//
// A worker knows by a trainer's socket that the trainer lives. Data loaders are children of the
// trainer, and have all of its descriptors: without this the socket would stay open until the last
// of them has ended, too. In a child the number stays valid, and means /dev/null.
//
// Of at most 256 descriptors of a process at once; further ones are kept by children.
// Thread-compatible; fork() may be called by any thread at any time.
#ifndef TESSERA_CLIENT_SESSION_FORK_CLOSED_H_
#define TESSERA_CLIENT_SESSION_FORK_CLOSED_H_

namespace tessera {

class ForkClosed {
 public:
  ForkClosed();
  ~ForkClosed();
  ForkClosed(const ForkClosed&) = delete;
  ForkClosed& operator=(const ForkClosed&) = delete;

  // Instead of the one before; -1: none. Before the descriptor is closed, this is told.
  void Set(int fd);
  // Whether this was made in a process of which the present one is a child.
  bool is_inherited() const;

 private:
  const int made_after_forks_;
  int slot_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_FORK_CLOSED_H_
