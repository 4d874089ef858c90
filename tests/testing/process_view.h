// What the kernel says of processes, for tests that look for leftovers.
// Stateless; thread-safe. A process that is gone has nothing: empty results.
#ifndef TESSERA_TESTS_TESTING_PROCESS_VIEW_H_
#define TESSERA_TESTS_TESTING_PROCESS_VIEW_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing_support {

// What can be read of it: nothing of a file that is not there, or of a process that just ended.
std::string ReadFile(const std::string& path);

// A process that ended has no command line, even before its parent took notice.
std::string CommandLine(int pid);

// By a signal, as SIGSTOP.
bool IsStopped(int pid);

// The vault of the worker whose daemon has this folder: it has the command line of the daemon that
// it was forked from. 0: there is none.
int VaultOf(const std::string& socket_dir);

// Children of `pid` that still run.
std::vector<int> ChildrenOf(int pid);

// Executors that `worker_pid` started and that still run: label ("job/rank") and pid.
std::map<std::string, int> ExecutorsOf(int worker_pid);

// What each open descriptor is: a path, "socket:[1234]", "/memfd:tessera:toy/0/state (deleted)".
std::map<int, std::string> DescriptorsOf(int pid);

// The names of all mappings, one entry a mapping; anonymous ones are "".
std::vector<std::string> MappingsOf(int pid);

int NumThreads(int pid);

// The contents of a job's memory in the process that owns it, by what follows the job's name:
// "parameters", "0/state". Read from the descriptors, so no copy of anybody's is looked at.
std::map<std::string, std::string> RegionsOf(int pid, const std::string& job_id);

// The bytes of each of these regions that really are in memory.
std::map<std::string, int64_t> ResidentBytesOf(int pid, const std::string& job_id);

// Looks again every millisecond, for at most 20 s. For what another process does.
bool Eventually(const std::function<bool()>& condition);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_PROCESS_VIEW_H_
