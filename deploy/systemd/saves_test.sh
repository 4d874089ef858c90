#!/usr/bin/env bash
# A worker that was installed with the units of this folder saves where they say that it can: to
# /var/lib/tessera/checkpoints, elsewhere with saves.conf alone, and for other users below the save
# root. systemd itself runs the units: as the first process of namespaces of its own, over an overlay
# of this machine's files, so that nothing of the machine changes. It applies all of the units'
# sandbox that this kernel has. The network is loopback, and there is no udev and no D-Bus.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin  # Of chroot.

# skip REASON: a skipped case, by name.
skip() {
  echo "skipped: $*"
  if [ -n "${XML_OUTPUT_FILE:-}" ]; then
    printf '<testsuites><testsuite name="saves_test" tests="1"><testcase name="InstalledWorkerSaves" classname="SystemdTest"><skipped message="%s"/></testcase></testsuite></testsuites>\n' "$*" >"$XML_OUTPUT_FILE"
  fi
  exit 0
}

# prepare ROOT: what tools/package-deb installs, and a unit that runs the checks and ends it all.
prepare() {
  local root=$1
  rm -rf "$root"/var/lib/tessera* "$root"/etc/systemd/system/tessera*
  mkdir -p "$root/usr/libexec/tessera" "$root/results" "$root/checkpoints"
  cp -L coordinator/tessera-coordinator worker/tessera-worker client/cli/tessera tests/example/train "$root/usr/bin/"
  cp -L worker/tessera-executor "$root/usr/libexec/tessera/"
  cp -L deploy/systemd/*.service "$root/usr/lib/systemd/system/"
  cp -L deploy/systemd/saves.conf deploy/systemd/saves_checks.sh "$root/"
  cp -L deploy/systemd/tessera.sysusers.conf "$root/usr/lib/sysusers.d/tessera.conf"
  printf 'u visitor 4711\nu stranger 4712\n' >"$root/usr/lib/sysusers.d/visitor.conf"
  chroot "$root" systemd-sysusers tessera.conf visitor.conf
  chroot "$root" chown tessera: /checkpoints
  cat >"$root/etc/systemd/system/saves-checks.service" <<'UNIT'
[Unit]
After=tessera-coordinator.service tessera-worker.service
Wants=tessera-coordinator.service tessera-worker.service
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=240
ExecStart=/bin/bash /saves_checks.sh
StandardOutput=append:/results/log
StandardError=append:/results/log
UNIT
}

# boot WORK: in new namespaces. Does not return.
boot() {
  local work=$1 root=$1/root
  mount -t tmpfs tmpfs "$work/overlay"
  mkdir "$work/overlay/upper" "$work/overlay/work"
  mount -t overlay overlay -o "lowerdir=/,upperdir=$work/overlay/upper,workdir=$work/overlay/work" "$root"
  prepare "$root"
  mount --bind "$work/results" "$root/results"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  ip link set lo up
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
  fi
  exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test /lib/systemd/systemd --system \
    --unit=saves-checks.service --log-target=console --log-level=warning --show-status=0
}

if [ "${1:-}" = boot ]; then boot "$2"; fi

[ "$(id -u)" -eq 0 ] || skip "needs root"
for program in unshare setpriv nsenter ip; do
  command -v "$program" >/dev/null || skip "needs $program"
done
[ -x /lib/systemd/systemd ] || skip "needs systemd"
# systemd manages the control groups below its own: one of this test.
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
else
  group=/sys/fs/cgroup/systemd$(sed -n 's/^[0-9]*:name=systemd://p' /proc/self/cgroup)
fi
group=${group%/}/tessera-test-$$
work=$(mktemp -d /tmp/tessera-systemd.XXXXXX)
clean() {
  rm -rf --one-file-system "$work"
  if [ -d "$group" ]; then find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true; fi
}
trap clean EXIT
mkdir "$work/overlay" "$work/root" "$work/results"
mkdir "$group" 2>/dev/null || skip "cannot make the control group $group"
namespaces=(--mount --pid --fork --kill-child --cgroup --uts --ipc --net --propagation private)
unshare "${namespaces[@]}" mount -t overlay overlay -o lowerdir=/usr:/etc "$work/root" 2>"$work/why" ||
  skip "no namespaces or no overlay: $(cat "$work/why")"

status=0
bash -c 'echo $BASHPID >"$1/cgroup.procs"; shift; exec "$@"' enter "$group" \
  timeout --signal=KILL 280 unshare "${namespaces[@]}" bash "$0" boot "$work" >"$work/console" 2>&1 || status=$?
cat "$work/results/log" 2>/dev/null || true
if [ "$status" -ne 0 ] || ! grep -q '^passed$' "$work/results/log"; then
  cat "$work/console"
  echo "systemd ended with status $status"
  exit 1
fi
