# shellcheck shell=bash
# Installs Debian packages that are missing, without starting their services.

POLICY=/usr/sbin/policy-rc.d

# Runs a command as root: as it is, or through a sudo that asks nothing.
as_root() {
  if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

can_be_root() {
  ((EUID == 0)) || sudo -n true 2>/dev/null
}

# A fresh package starts its service, on the standard port, unless this file
# forbids it. One that is already there is the machine's own rule: leave it.
forbid_service_start() {
  [[ ! -e $POLICY ]] || return 0
  POLICY_IS_OURS=yes
  printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
  as_root chmod 755 "$POLICY"
}

allow_service_start() {
  [[ ${POLICY_IS_OURS:-no} == yes ]] || return 0
  as_root rm -f "$POLICY"
  POLICY_IS_OURS=no
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2
}

# require_apt WHAT: fails with what to install where apt-get cannot do it.
require_apt() {
  command -v apt-get >/dev/null || fail "$1 is missing, and there is no apt-get here to install it"
  can_be_root || fail "$1 is missing, and installing it needs root; install it by hand"
}

refresh_package_lists() {
  [[ ${LISTS_ARE_FRESH:-no} == no ]] || return 0
  apt_get update || say "apt-get update failed; going on with the package lists that are here"
  LISTS_ARE_FRESH=yes
}

has_candidate() {
  [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [0-9] ]]
}

is_installed() {
  [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *' installed' ]]
}

# install_packages PACKAGE...: those that are not installed yet.
install_packages() {
  local package missing=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  require_apt "${missing[*]} (apt-get install ${missing[*]})"
  say "installing with apt-get: ${missing[*]}"
  refresh_package_lists
  (
    trap allow_service_start EXIT
    forbid_service_start && apt_get install --no-install-recommends "${missing[@]}"
  ) || fail "apt-get could not install ${missing[*]}; its messages are above"
}

# require PACKAGES COMMAND...: installs the packages unless every command is there.
# PACKAGES is one word or several separated by spaces.
require() {
  local packages=$1 command
  shift
  for command in "$@"; do
    command -v "$command" >/dev/null && continue
    require_apt "'$command', which comes with $packages,"
    # shellcheck disable=SC2086 # a list of packages
    install_packages $packages
    command -v "$command" >/dev/null ||
      fail "'$command' is missing although these packages are installed: $packages; is it on PATH?"
  done
}

# keep_service_off UNIT: a service that came with a package installed just now
# is not to start at the next boot either.
keep_service_off() {
  [[ -d /run/systemd/system ]] || return 0
  as_root systemctl disable --quiet "$1" 2>/dev/null || true
}
