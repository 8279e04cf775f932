# shellcheck shell=bash
# Servers as processes that outlive the shell which started them.

# spawn LOG COMMAND...: starts a server in a session of its own, with no
# standard input and none of the caller's descriptors, so that nobody who reads
# the caller's output waits for the server. Sets SPAWNED to its process id.
spawn() {
  local log=$1 descriptor
  shift
  [[ ! -f $log ]] || mv -f -- "$log" "$log.old"
  (
    exec </dev/null >"$log" 2>&1
    for descriptor in /proc/"$BASHPID"/fd/*; do
      descriptor=${descriptor##*/}
      # Bash reads this script through 255 and closes it on exec by itself.
      if ((descriptor > 2 && descriptor != 255)); then eval "exec $descriptor>&-"; fi
    done
    cd /
    exec setsid nohup "$@"
  ) &
  SPAWNED=$!
  disown "$SPAWNED"
}

# is_ours PID MARK: whether a live process has the argument MARK. A pid
# file alone proves nothing: the number may belong to somebody else by now.
is_ours() {
  local pid=$1 mark=$2 argument
  [[ $pid =~ ^[0-9]+$ && -r /proc/$pid/cmdline ]] || return 1
  while IFS= read -r -d '' argument; do
    [[ $argument != "$mark" ]] || return 0
  done 2>/dev/null <"/proc/$pid/cmdline"
  return 1
}

# running_pid SERVICE: prints the process id of this stack's server, if it runs.
running_pid() {
  local service=$1 pid=''
  read -r pid 2>/dev/null <"$("${service}_pid_file")" || true
  is_ours "$pid" "$("${service}_mark")" && printf '%s\n' "$pid"
}

port_answers() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# require_free_port SERVICE PORT VARIABLE
require_free_port() {
  local service=$1 port=$2 variable=$3 holder=''
  port_answers "$port" || return 0
  if command -v ss >/dev/null; then
    holder=$(ss -Hltnp "sport = :$port" 2>/dev/null | grep -o 'users:.*' | head -n 1 || true)
  fi
  fail "$service cannot have port $port: another program listens there${holder:+ ($holder)}. Stop it, or set $variable to a free port."
}

# stop_process PID NAME SIGNAL: asks, waits half a minute, then insists.
stop_process() {
  local pid=$1 name=$2 signal=$3 tries
  kill -s "$signal" "$pid" 2>/dev/null || return 0
  for ((tries = 0; tries < 300; tries++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  say "$name (pid $pid) does not stop within 30 s; killing it"
  kill -s KILL "$pid" 2>/dev/null || true
  sleep 0.5
}
