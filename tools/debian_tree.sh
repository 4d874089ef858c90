# shellcheck shell=bash
# Bare Debian trees, for checks of what a new machine has. Source it after common.sh; needs root.

readonly release=bookworm

# "URI SUITE" of each Debian archive that the host's apt reads.
debian_sources() {
  # shellcheck disable=SC2016 # apt fills these in
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="$release" '$2 ~ "^" release "(-updates|-security)?$" && $3 == "main" { print $1, $2 }' |
    sort -u
}

# copy_apt_settings TREE: its apt sees what the host's apt sees: mirror, proxy, credentials; Debian main only.
copy_apt_settings() {
  local tree=$1 file
  debian_sources | sed 's/^/deb /; s/$/ main/' >"$tree/etc/apt/sources.list"
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    if [ -f "$file" ] && grep -q '^ *Acquire' "$file"; then
      cp "$file" "$tree/etc/apt/apt.conf.d/90host-$(basename "$file")"
    fi
  done
  if [ -d /etc/apt/auth.conf.d ]; then cp -a /etc/apt/auth.conf.d/. "$tree/etc/apt/auth.conf.d/"; fi
  if [ -f /etc/apt/auth.conf ]; then cp -a /etc/apt/auth.conf "$tree/etc/apt/"; fi
  for file in /etc/hosts /etc/resolv.conf; do
    if [ -e "$file" ]; then cat "$file" >"$tree$file"; fi
  done
}

# make_bare_tree TREE LOG: from the mirror that this host's apt uses.
make_bare_tree() {
  local mirror proxy
  mirror=$(debian_sources | awk -v release="$release" '$2 == release { print $1; exit }')
  [ -n "$mirror" ] || die "this host's apt has no source of $release"
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  http_proxy=${proxy:-${http_proxy:-}} \
    debootstrap --variant=minbase "$release" "$1" "$mirror" >"$2" 2>&1
  copy_apt_settings "$1"
}
