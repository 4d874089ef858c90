#!/usr/bin/env bash
# A cluster on this machine: the coordinator and one worker, in the foreground until Ctrl-C.
#
#   deploy/local/run_cluster.sh [--ranks N] [--dir DIR] [--bin DIR] [--log-level LEVEL]
#
#   --ranks N   devices of the worker, one rank each, at most 240 (default 2)
#   --dir DIR   journal, sockets and logs (default: a new folder under TMPDIR or /tmp)
#   --bin DIR   where the programs are (default: bazel-bin; built first if missing)
#
# Prints both addresses once both run. DIR/logs has one file per process. If one of the two ends by
# itself the other is stopped and the script fails; DIR is never removed.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$top/tools/common.sh"

ranks=2 dir='' bin='' log_level=info
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --ranks | --dir | --bin | --log-level) [ $# -ge 2 ] || die "$1 needs a value" ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  case "$1" in
    --ranks) ranks=$2 ;;
    --dir) dir=$2 ;;
    --bin) bin=$2 ;;
    --log-level) log_level=$2 ;;
  esac
  shift 2
done
# No job has more ranks than this.
[[ $ranks =~ ^[1-9][0-9]{0,2}$ && $ranks -le 240 ]] ||
  die "--ranks is not a number from 1 to 240: '$ranks'"

if [ -z "$bin" ]; then
  bin=$top/bazel-bin
  (cd "$top" && bazel_here build --ui_event_filters=-info,-debug --show_result=0 \
    //coordinator:tessera-coordinator //worker:tessera-worker //worker:tessera-executor \
    //client/cli:tessera)
fi
for program in coordinator/tessera-coordinator worker/tessera-worker worker/tessera-executor \
  client/cli/tessera; do
  [ -x "$bin/$program" ] || die "there is no program $bin/$program; see --bin"
done
[ -n "$dir" ] || dir=$(mktemp -d "${TMPDIR:-/tmp}/tessera-cluster.XXXXXX")
refusal=$(mkdir -p "$dir/logs" "$dir/sockets" 2>&1) ||
  die "cannot make folders in '$dir': ${refusal##*: }; see --dir"
chmod 700 "$dir/sockets"
dir=$(cd "$dir" && pwd)

pids=()

# Asks all to stop, waits 15 s, then insists, on whole process groups: no executor is left.
# shellcheck disable=SC2317 # reached by the traps
stop_all() {
  trap - EXIT INT TERM
  local pid deadline=$((SECONDS + 15))
  [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
  for pid in "${pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
    if kill -0 "$pid" 2>/dev/null; then say "process $pid did not stop by itself"; fi
    kill -KILL -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}
trap stop_all EXIT
trap 'say "stopping"; stop_all; exit 0' INT TERM

# Each in a process group of its own, so that a Ctrl-C reaches this script alone, which orders the end.
set -m

# wait_for FILE PID WHAT: until FILE has something in it, at most 30 s, and only while PID lives.
wait_for() {
  local deadline=$((SECONDS + 30))
  until [ -s "$1" ] || [ -S "$1" ]; do
    kill -0 "$2" 2>/dev/null || { tail -n 20 "$dir/logs/$3" >&2; die "the $3 ended; its log is $dir/logs/$3"; }
    [ "$SECONDS" -lt "$deadline" ] || die "the $3 was not ready within 30 s; its log is $dir/logs/$3"
    sleep 0.1
  done
}

rm -f "$dir/port"
"$bin/coordinator/tessera-coordinator" --listen 127.0.0.1:0 --journal "$dir/journal.sqlite" \
  --port-file "$dir/port" --log-level "$log_level" </dev/null >"$dir/logs/coordinator" 2>&1 &
pids+=($!)
wait_for "$dir/port" $! coordinator
address=127.0.0.1:$(cat "$dir/port")

"$bin/worker/tessera-worker" --coordinator "$address" --worker-id local --devices "$ranks" \
  --keep-memory 0 \
  --socket-dir "$dir/sockets" --executor-binary "$bin/worker/tessera-executor" \
  --log-level "$log_level" </dev/null >"$dir/logs/worker" 2>&1 &
pids+=($!)
wait_for "$dir/sockets/worker.sock" $! worker

cat <<END
coordinator  $address
worker       unix:$dir/sockets/worker.sock
             $ranks ranks
logs         $dir/logs
look inside  $bin/client/cli/tessera status --coordinator $address
Ctrl-C stops both.
END

wait -n "${pids[@]}" || true
say "a process ended by itself; the last lines of the logs:"
tail -n 5 "$dir/logs/coordinator" "$dir/logs/worker" >&2
exit 1
