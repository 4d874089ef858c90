#!/usr/bin/env bash
# run_cluster.sh: what it refuses, in one line; and that what it prints can be used as it stands.
set -euo pipefail
script=$PWD/deploy/local/run_cluster.sh
folder=$(mktemp -d /tmp/tessera-rc.XXXXXX) # A short path: that of a Unix socket has little room.
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "$*" >&2
  exit 1
}

# refused FRAGMENT ARGUMENT...: fails, with one line that has FRAGMENT in it.
refused() {
  local fragment=$1 text
  shift
  ! text=$("$script" "$@" 2>&1) || fail "'$*' was not refused"
  [[ $text == *"$fragment"* ]] || fail "'$*' does not say '$fragment': $text"
  [ "$(wc -l <<<"$text")" -eq 1 ] || fail "'$*' says more than a line: $text"
}
refused "from 1 to 240: '241'" --ranks 241
refused "from 1 to 240: '0'" --ranks 0
refused "there is no program /nonexistent/coordinator/tessera-coordinator" --bin /nonexistent
refused "cannot make folders in '/proc/foo': No such file or directory" --bin "$PWD" --dir /proc/foo
refused "unknown argument '--rank'" --rank 2

"$script" --ranks 2 --bin "$PWD" --dir "$folder" >"$folder/out" 2>"$folder/err" &
pid=$!
until grep -q '^Ctrl-C' "$folder/out"; do
  kill -0 "$pid" 2>/dev/null || fail "it ended: $(cat "$folder/err")"
  sleep 0.1
done
look_inside=$(sed -n 's/^look inside *//p' "$folder/out")
[ "$($look_inside)" = "no jobs" ] || fail "'$look_inside' does not work"
worker=$(sed -n 's/^worker *//p' "$folder/out")
client/cli/tessera status --worker "$worker" | grep -q '^worker local: 2 devices' ||
  fail "no worker at '$worker'"

kill -TERM "$pid"
wait "$pid" || fail "a cluster that was stopped has failed: $(cat "$folder/err")"
[ ! -S "$folder/sockets/worker.sock" ] || fail "the worker's socket is left"
