# shellcheck shell=bash
# The stack as processes of this user, in a folder of its own.

READY_TIMEOUT_S=90

# The folder's name can be guessed, so one that somebody else made is refused.
# Others may pass through it: Postgres as another user has its data below.
open_stack_dir() {
  mkdir -p -- "$STACK_DIR"
  [[ ! -L $STACK_DIR && -O $STACK_DIR ]] ||
    fail "$STACK_DIR belongs to another user; set ONCEONLY_STACK_DIR to a folder of yours"
  chmod 711 "$STACK_DIR"
}

require_linux() {
  local command
  [[ -d /proc/self/fd ]] || fail "without a Docker engine the stack needs Linux; start one, such as Docker Desktop"
  for command in flock setsid setpriv; do
    command -v "$command" >/dev/null ||
      fail "'$command' is missing; it comes with Debian's package util-linux"
  done
}

# Two at once would start everything twice: the second waits for the first.
lock_stack() {
  require_linux
  exec {STACK_LOCK}>"$STACK_DIR/lock"
  flock -w 600 "$STACK_LOCK" ||
    fail "another compose/stack has held $STACK_DIR/lock for 10 minutes"
}

# Alive first, ready second: an answer may come from whoever took the port.
await_ready() {
  local service=$1 pid=$2 log started=$SECONDS
  log=$("${service}_log")
  while true; do
    if ! kill -0 "$pid" 2>/dev/null; then
      show_tail "$log"
      fail "$service ended while it started. If its data is damaged, delete it: compose/stack reset $service"
    fi
    ! "${service}_ready" "$pid" || return 0
    if ((SECONDS - started > READY_TIMEOUT_S)); then
      show_tail "$log"
      fail "$service (pid $pid) runs but is not ready after $READY_TIMEOUT_S s"
    fi
    sleep 0.2
  done
}

# A server of this stack that was started on another port than the one asked for
# now would never become ready.
check_same_port() {
  local service=$1 pid=$2 started_on=''
  read -r started_on 2>/dev/null <"$STACK_DIR/$service.port" || true
  [[ -z $started_on || $started_on == "$("${service}_port")" ]] ||
    fail "$service of $STACK_DIR runs already (pid $pid), but on port $started_on; stop it first: compose/stack down $service"
}

start_service() {
  local service=$1 pid
  if pid=$(running_pid "$service"); then
    check_same_port "$service" "$pid"
  else
    "${service}_prepare"
    say "starting $service on port $("${service}_port")"
    "${service}_start"
    pid=$SPAWNED
    "${service}_port" >"$STACK_DIR/$service.port"
  fi
  STARTED[$service]=$pid
}

# All start before any is waited for: they get ready side by side.
native_up() {
  local service
  local -A STARTED=()
  open_stack_dir
  lock_stack
  for service in "$@"; do start_service "$service"; done
  for service in "$@"; do
    await_ready "$service" "${STARTED[$service]}"
    say "$service is ready on 127.0.0.1:$("${service}_port")"
  done
}

stop_service() {
  local service=$1 pid
  if pid=$(running_pid "$service"); then
    say "stopping $service (pid $pid)"
    stop_process "$pid" "$service" "$("${service}_stop_signal")"
  else
    say "$service does not run"
  fi
}

native_down() {
  local service
  [[ -d $STACK_DIR ]] || return 0
  open_stack_dir
  lock_stack
  for service in "$@"; do stop_service "$service"; done
}

native_reset() {
  local service
  native_down "$@"
  for service in "$@"; do rm -rf -- "$("${service}_data")"; done
  say "deleted the data of: $*"
}

native_status() {
  local service pid port state all_up=0
  printf '%-9s %-9s %-16s %-8s %s\n' SERVICE STATE ADDRESS PID LOG
  for service in "$@"; do
    port=$("${service}_port")
    if pid=$(running_pid "$service"); then
      if "${service}_ready" "$pid"; then state=up; else state=unready; fi
    else
      pid=- state=down
    fi
    [[ $state == up ]] || all_up=1
    printf '%-9s %-9s %-16s %-8s %s\n' "$service" "$state" "127.0.0.1:$port" "$pid" "$("${service}_log")"
  done
  return "$all_up"
}

native_kafka_tool() {
  local class
  class=$(require_kafka_tool "$1")
  shift
  open_stack_dir
  kafka_prepare
  run_kafka_class warn "$class" "$@"
}

native_classpath() {
  open_stack_dir
  require_kafka_jars
  printf '%s/*\n' "$KAFKA_JARS"
}
