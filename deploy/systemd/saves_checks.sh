# shellcheck shell=bash
# What saves_test.sh runs as root in the system that it has booted.
set -euo pipefail
checkpoints=/var/lib/tessera/checkpoints
# In the environment, as `tessera run` says it.
place=(TESSERA_COORDINATOR=unix:/run/tessera-coordinator/coordinator.sock
  TESSERA_WORKER=unix:/run/tessera-worker/worker.sock TESSERA_JOB=example RANK=0 WORLD_SIZE=1)

fail() {
  echo "FAILED: $*"
  journalctl --no-pager -o cat -n 60 -u tessera-worker -u tessera-coordinator || true
  exit 1
}

# await SECONDS COMMAND...: until it succeeds.
await() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || fail "not in time: $*"
    sleep 0.1
  done
}

# as USER COMMAND...
as() {
  setpriv --reuid "$1" --regid "$1" --clear-groups env HOME=/tmp "${@:2}"
}

# trained_by USER STEPS PATH: a job of one rank, whose model is saved there.
trained_by() {
  as "$1" "${place[@]}" train "$2" "$3"
}

is_live() { tessera workers | grep -q live; }

forget() { tessera jobs delete example >/dev/null; }

# expect_refusal FRAGMENT COMMAND...
expect_refusal() {
  local said
  if said=$("${@:2}" 2>&1); then fail "'${*:2}' was not refused"; fi
  [[ $said == *"$1"* ]] || fail "'${*:2}' does not say '$1': $said"
}

await 60 is_live
[ "$(stat -c '%U:%G %a' $checkpoints)" = "tessera:tessera 750" ] || fail "$checkpoints: $(stat -c '%U:%G %a' $checkpoints)"
worker=$(systemctl show --property=MainPID --value tessera-worker)
[ "$(stat -c %U "/proc/$worker")" = tessera ] || fail "the worker runs as another user"
mounts=$(cat "/proc/$worker/mounts")
echo "$mounts" | grep -qE '^overlay / overlay ro' || fail "the worker's root is not read-only: $mounts"

trained_by tessera 20 $checkpoints/model.safetensors || fail "a trainer of the worker's user"
[ "$(stat -c %U $checkpoints/model.safetensors)" = tessera ] || fail "its model belongs to another user"
tessera ls $checkpoints/model.safetensors >/dev/null || fail "its model cannot be read"
forget

# Its first save makes the folder, as docs/operations/install.md says.
trained_by visitor 20 $checkpoints/4711/model.safetensors || fail "a trainer of another user"
[ -f $checkpoints/4711/model.safetensors ] || fail "it saved nothing"
[ "$(stat -c '%U %a' $checkpoints/4711)" = 'tessera 750' ] || fail "another owner or mode of its folder"
forget
expect_refusal "--save-root" trained_by visitor 20 $checkpoints/4712/model.safetensors
forget
expect_refusal "Read-only file system" trained_by tessera 20 /checkpoints/model.safetensors
forget

trained_by tessera 100000000 $checkpoints/never & # Until the end.
await 60 tessera save --job example --to $checkpoints/step
tessera verify $checkpoints/step || fail "the requested checkpoint"
expect_refusal "--save-root" tessera save --job example --to /checkpoints/step

# The drop-in, while the job trains: its memory outlives the daemon.
mkdir -p /etc/systemd/system/tessera-worker.service.d
cp /saves.conf /etc/systemd/system/tessera-worker.service.d/
# An operator's own ExecStart=, with one more folder.
sed -n 's|--save-root |--save-root /checkpoints/{owner} &|; /^ExecStart=/,/[^\\]$/p' \
  /usr/lib/systemd/system/tessera-coordinator.service >/tmp/command
mkdir -p /etc/systemd/system/tessera-coordinator.service.d
(echo '[Service]' && echo 'ExecStart=' && cat /tmp/command) >/etc/systemd/system/tessera-coordinator.service.d/saves.conf
systemctl daemon-reload
systemctl restart tessera-worker tessera-coordinator
await 60 is_live
await 60 tessera save --job example --to /checkpoints/step
tessera verify /checkpoints/step || fail "the checkpoint in the drop-in's folder"
echo passed
